"""A slave beside its master: the same messages, topics, groups and offsets; reads, no writes."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import client
from broker.app import Broker
from broker.limits import BrokerLimits
from client.wire.offsets import pull_header
from remoting.pool import ConnectionPool
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
)
from remoting.protocol.bodies.stats import HARuntimeInfo, KVTable
from remoting.protocol.bodies.topic import TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.disk.timer import TimerCheck, decode_check, encode_check
from remoting.protocol.headers.pull import (
    PullMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.protocol.names import HALF_TOPIC
from remoting.protocol.queue import MessageQueue
from remoting.server import Server
from tests.harness.cluster import Cluster
from tests.integration.pocketmq.conftest import CommandLine
from tests.support import waiting
from tests.support.ports import free_port
from tests.unit.broker.store.copy.copies import copied
from tests.unit.broker.store.stores import bodies, message

SLAVE = {"brokerName": "broker-a", "brokerRole": "SLAVE", "brokerId": "1"}


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - stores and tables have no events
            await asyncio.sleep(0.01)


QUICK = BrokerLimits(table_copy_seconds=0.03)


class Pair:
    """A cluster with a master and its slave."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.master: Broker
        self.slave: Broker

    async def start(self) -> None:
        self.port = free_port()
        await self.start_master()
        await self.start_slave()

    async def start_slave(self) -> None:
        self.slave = await self.cluster.start("slave", limits=QUICK, **SLAVE)

    async def start_master(self) -> None:
        port = str(self.port)
        self.master = await self.cluster.start("broker-a", haListenPort=port)

    def slave_delays(self) -> dict[int, int]:
        """Return the progress of delays in the slave's files."""
        path = self.slave.store.paths.root / "config" / "delayOffset.json"
        return decode(DelayOffsetSerializeWrapper, path.read_bytes()).offset_table

    def slave_timers(self) -> int:
        """Return the time, ms since the epoch, up to which timers are delivered by its files."""
        path = self.slave.store.paths.root / "config" / "timercheck"
        return decode_check(path.read_bytes()).read_ms if path.exists() else 0

    async def same(self) -> None:
        """Wait until the slave has the master's log."""
        await until(lambda: self.slave.store.log.end == self.master.store.log.end)


@pytest_asyncio.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Cluster(tmp_path) as cluster:
        pair = Pair(cluster)
        await pair.start()
        yield pair


async def ask(pair: Pair, request: Command) -> Command:
    """Send a request to the slave."""
    async with ConnectionPool() as pool:
        return await pool.request(pair.slave.address, request, timeout=30)


async def test_a_slave_has_messages_topics_groups_and_offsets(pair: Pair) -> None:
    address = pair.cluster.nameserver
    async with client.Producer(address) as producer:
        for number in range(200):
            await producer.send("orders", b"%d" % number, keys=[f"k{number}"])
    async with client.PullConsumer(address, group="g") as consumer:
        await consumer.subscribe("orders")
        assert await consumer.get_many(50)
        await consumer.commit()
    await pair.same()
    slave, master = pair.slave.state, pair.master.state
    # Each table is copied by a request of its own.
    await until(lambda: slave.topics.table == master.topics.table)
    await until(lambda: slave.groups.table == master.groups.table)
    await until(lambda: slave.offsets.table == master.offsets.table)
    assert slave.offsets.topics_of("g")
    for queue_id in range(master.topics.table["orders"].write_queue_nums):
        number = master.store.queries.max_offset("orders", queue_id)
        assert slave.store.queries.max_offset("orders", queue_id) == number > 0


async def test_a_slave_takes_no_messages_and_no_changes(pair: Pair) -> None:
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("orders", b"1")
    await pair.same()
    for code, answer in (
        (RequestCode.SEND_MESSAGE_V2, ResponseCode.SERVICE_NOT_AVAILABLE),
        (RequestCode.SEND_BATCH_MESSAGE, ResponseCode.SERVICE_NOT_AVAILABLE),
        (RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SERVICE_NOT_AVAILABLE),
        (RequestCode.END_TRANSACTION, ResponseCode.SLAVE_NOT_AVAILABLE),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, ResponseCode.SYSTEM_ERROR),
        (RequestCode.DELETE_TOPIC_IN_BROKER, ResponseCode.SYSTEM_ERROR),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, ResponseCode.SYSTEM_ERROR),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, ResponseCode.SYSTEM_ERROR),
    ):
        reply = await ask(pair, Command.request(code))
        assert reply.code == answer
        assert "this broker is a slave" in (reply.remark or "")
    assert pair.slave.store.log.end == pair.master.store.log.end
    assert pair.slave.store.put(message(b"no")).message.startswith("this broker is a slave")


async def test_a_topic_deleted_at_the_master_goes_and_a_new_one_begins_anew(pair: Pair) -> None:
    address = pair.cluster.nameserver
    async with client.Producer(address) as producer, client.Admin(address) as admin:
        await producer.send("orders", b"old")
        await pair.same()
        await until(lambda: "orders" in pair.slave.state.topics)
        await admin.delete_topic("orders")
        await until(lambda: "orders" not in pair.slave.state.topics)
        assert pair.slave.store.queues.queue_ids("orders") == []
        await admin.create_topic("orders", queues=1)
        await producer.send("orders", b"new")
        await pair.same()
    assert bodies(pair.slave.store, "orders") == [b"new"]


async def test_groups_begin_anew_with_a_topic_that_was_deleted_and_created_again(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path) as cluster:
        pair = Pair(cluster)
        pair.port = free_port()
        await pair.start_master()
        # It copies the tables when it connects, and when the log brings new queues.
        rarely = BrokerLimits(table_copy_seconds=3600)
        pair.slave = await cluster.start("slave", limits=rarely, **SLAVE)
        offsets = pair.slave.state.offsets
        async with (
            client.Admin(cluster.nameserver) as admin,
            client.Producer(cluster.nameserver) as producer,
            client.PullConsumer(cluster.nameserver, group="g") as consumer,
        ):
            queue = MessageQueue("orders", "broker-a", 0)
            await admin.create_topic("orders", queues=1)
            for number in range(5):
                await producer.send("orders", b"%d" % number)
            consumer.assign([queue])
            await consumer.seek(queue, client.BEGIN)
            assert await consumer.get_many(5)
            await consumer.commit()
            await producer.send("others", b"1")
            await until(lambda: offsets.query("g", "orders", 0) > 0)
            await admin.delete_topic("orders")
            await admin.create_topic("orders", queues=1)
            await producer.send("orders", b"new")
            await pair.same()
        assert offsets.query("g", "orders", 0) == -1


async def test_delayed_messages_are_delivered_once_and_by_the_master(pair: Pair) -> None:
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("later", b"1", delay_level=1)
    delivered = pair.master.store.queries.max_offset
    await until(lambda: sum(delivered("later", n) for n in range(8)) == 1)
    await pair.same()
    own = pair.slave.store.queries.max_offset
    assert sum(own("later", n) for n in range(8)) == 1
    # The master's progress is in the slave's file, for the day when it is the master.
    await until(lambda: pair.slave_delays().get(1) == 1)
    answer = await ask(pair, Command.request(RequestCode.GET_ALL_DELAY_OFFSET))
    assert decode(DelayOffsetSerializeWrapper, answer.body).offset_table == {1: 1}


async def test_offsets_committed_at_a_slave_are_kept_and_reach_the_master(pair: Pair) -> None:
    async with client.Producer(pair.cluster.nameserver) as producer:
        for _ in range(20):
            await producer.send("orders", b"1")
    pair.master.state.offsets.commit("g", "orders", 0, 1)
    await until(lambda: pair.slave.state.offsets.query("g", "orders", 0) == 1)
    pair.slave.state.offsets.commit("g", "orders", 0, 4)
    await until(lambda: pair.master.state.offsets.query("g", "orders", 0) == 4)
    # A reset at the master is newer, though it is lower.
    pair.master.state.offsets.commit("g", "orders", 0, 2)
    await until(lambda: pair.slave.state.offsets.query("g", "orders", 0) == 2)
    assert pair.master.state.offsets.query("g", "orders", 0) == 2


@pytest.mark.parametrize("kept", [(), ("kept",)])
async def test_offsets_of_a_deleted_group_are_deleted_at_the_slave(
    pair: Pair, kept: tuple[str, ...]
) -> None:
    for group in ("deleted", *kept):
        pair.master.state.offsets.commit(group, "orders", 0, 1)
    offsets = pair.slave.state.offsets
    await until(lambda: offsets.query("deleted", "orders", 0) == 1)
    pair.master.state.offsets.remove_group("deleted")
    await until(lambda: not offsets.topics_of("deleted"))
    assert {key: dict(queues) for key, queues in offsets.table.items()} == {
        f"orders@{group}": {0: 1} for group in kept
    }


async def test_offsets_stay_until_the_log_of_a_master_that_lacks_them_is_followed(
    pair: Pair,
) -> None:
    await pair.same()
    await pair.cluster.stop("broker-a")
    replica = pair.slave.state.replica
    assert replica is not None
    await until(lambda: not replica.state.connected)
    tables = [{"orders@new": {0: 1}}, {"orders@new": {0: 1}}, {"orders@g": {0: 5}}]

    def answer(command: Command, _: object) -> Command:
        if command.code != RequestCode.GET_ALL_CONSUMER_OFFSET:
            return command.reply(ResponseCode.SYSTEM_ERROR)
        table = tables.pop() if tables else {}
        return command.reply(body=encode(ConsumerOffsetSerializeWrapper(table)))

    async with Server(answer, port=pair.master.port):
        await until(lambda: not tables)
    assert pair.slave.state.offsets.query("new", "orders", 0) == 1
    assert pair.slave.state.offsets.query("g", "orders", 0) == 5


async def test_transactions_count_as_ended_once_the_log_has_their_ends(pair: Pair) -> None:
    await pair.same()
    await pair.cluster.stop("broker-a")
    end = pair.slave.store.log.end
    trans = f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS"
    asked: list[int] = []

    def answer(command: Command, _: object) -> Command:
        asked.append(command.code)
        if command.code == RequestCode.GET_ALL_CONSUMER_OFFSET:
            wrapper = ConsumerOffsetSerializeWrapper({trans: {0: 3}, "orders@g": {0: 5}})
            return command.reply(body=encode(wrapper))
        return command.reply(body=encode(KVTable({"commitLogMaxOffset": str(end)})))

    offsets = pair.slave.state.offsets
    end += 1
    async with Server(answer, port=pair.master.port):
        await until(lambda: asked.count(RequestCode.GET_ALL_CONSUMER_OFFSET) == 2)
        assert offsets.query("g", "orders", 0) == 5
        assert trans not in offsets.table
        end -= 1
        await until(lambda: offsets.table.get(trans) == {0: 3})


async def test_an_offset_that_the_master_refuses_is_kept_and_committed_again(pair: Pair) -> None:
    await pair.same()
    await pair.cluster.stop("broker-a")
    wrapper = ConsumerOffsetSerializeWrapper({"orders@g": {0: 5}})
    refused: list[int] = []
    offsets = pair.slave.state.offsets

    def answer(command: Command, _: object) -> Command:
        if command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            refused.append(command.read(UpdateConsumerOffsetRequestHeader).commit_offset)
            return command.reply(ResponseCode.SYSTEM_ERROR, "handing over")
        return command.reply(body=encode(wrapper))

    async with Server(answer, port=pair.master.port):
        await until(lambda: offsets.query("g", "orders", 0) == 5)
        offsets.commit("g", "orders", 0, 9)
        await until(lambda: len(refused) > 2)
    assert set(refused) == {9}
    assert offsets.query("g", "orders", 0) == 9


async def test_a_stopped_slave_catches_up_and_a_master_that_was_restarted_is_found(
    pair: Pair,
) -> None:
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("orders", b"1")
        await pair.same()
        await pair.cluster.stop("slave")
        for _ in range(50):
            await producer.send("orders", b"2")
        await pair.start_slave()
        await pair.same()
        await pair.cluster.stop("broker-a")
        await pair.start_master()
        await producer.send("orders", b"3")
        await pair.same()


async def test_a_slave_keeps_its_topics_when_its_master_has_lost_its_disk(pair: Pair) -> None:
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("orders", b"1")
    await pair.same()
    await until(lambda: "orders" in pair.slave.state.topics)
    store, replica = pair.master.store.paths.root, pair.slave.state.replica
    assert replica is not None
    await pair.cluster.stop("broker-a")
    shutil.rmtree(store)
    await pair.start_master()
    await until(lambda: replica.state.differs)
    await asyncio.sleep(10 * QUICK.table_copy_seconds)  # tables would have been copied meanwhile
    assert "orders" in pair.slave.state.topics
    assert pair.slave.store.queues.get("orders", 0) is not None


async def test_a_slave_that_starts_before_its_master_finds_it(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        pair = Pair(cluster)
        pair.port = free_port()
        await pair.start_slave()
        replica = pair.slave.state.replica
        assert replica is not None
        await until(lambda: replica.state.problem is not None)
        await pair.start_master()
        # Sooner than the next of the registrations, of which there is one every 30 s.
        await until(lambda: replica.state.connected, seconds=20)


async def test_a_copy_of_a_running_masters_store_goes_on_as_a_slave(tmp_path: Path) -> None:
    async with Cluster(tmp_path, mappedFileSizeCommitLog=str(64 * 1024)) as cluster:
        pair = Pair(cluster)
        pair.port = free_port()
        await pair.start_master()
        done = asyncio.Event()

        async def load(producer: client.Producer[bytes]) -> None:
            number = 0
            while not done.is_set():
                await producer.send("orders", b"%d" % number * 100)
                number += 1

        async with client.Producer(cluster.nameserver) as producer, asyncio.TaskGroup() as tasks:
            tasks.create_task(load(producer))
            await until(lambda: pair.master.store.log.end > 4 * 64 * 1024)
            report = await asyncio.to_thread(copied, tmp_path / "broker-a", tmp_path / "slave")
            done.set()
        assert report.end > 4 * 64 * 1024
        await pair.start_slave()
        slaves = pair.master.state.slaves
        assert slaves is not None
        await pair.same()
        # Only what is not in the copy came over the network.
        assert [link.stream.request for link in slaves.links] == [report.end]
        for one, other in zip(pair.master.store.log.files, pair.slave.store.log.files, strict=True):
            assert bytes(one.view) == bytes(other.view)
        await until(lambda: "orders" in pair.slave.state.topics)
        for queue_id in range(4):
            number = pair.master.store.queries.max_offset("orders", queue_id)
            assert pair.slave.store.queries.max_offset("orders", queue_id) == number > 0


async def test_a_slave_started_as_master_goes_on_where_the_master_was(pair: Pair) -> None:
    address = pair.cluster.nameserver
    async with client.Producer(address) as producer:
        for number in range(20):
            await producer.send("orders", b"%d" % number)
        for topic, seconds in (("soon", 1), ("timer", 12)):
            await producer.send(topic, b"1", delay=seconds)
            await producer.send(topic, b"1", delay_level=1 if topic == "soon" else 3)
    queries = pair.master.store.queries
    await until(lambda: sum(queries.max_offset("soon", n) for n in range(8)) == 2)
    pair.master.state.offsets.commit("g", "orders", 0, 3)
    await until(lambda: pair.slave.state.offsets.query("g", "orders", 0) == 3)
    await until(lambda: pair.slave_delays().get(1) == 1)
    timers = pair.master.state.timers
    assert timers is not None
    # What is delivered of the present second is delivered again.
    read_ms = timers.read_ms
    await until(lambda: pair.slave_timers() > read_ms)
    await pair.same()
    await pair.cluster.stop("broker-a")
    await pair.cluster.stop("slave")
    master = await pair.cluster.start("slave", brokerName="broker-a")
    assert master.state.offsets.query("g", "orders", 0) == 3
    async with client.Producer(address) as producer:
        await producer.send("orders", b"20")
    queries = master.store.queries
    assert sum(queries.max_offset("orders", n) for n in range(8)) == 21
    # On a slow machine the first master delivered some, and the copied progress may be older.
    await until(lambda: sum(queries.max_offset("timer", n) for n in range(8)) >= 2, seconds=60)
    assert sum(queries.max_offset("soon", n) for n in range(8)) == 2, "delivered again"


async def test_both_ends_show_how_far_the_slave_is(pair: Pair) -> None:
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("orders", b"1")
    await pair.same()
    slaves, replica = pair.master.state.slaves, pair.slave.state.replica
    assert slaves is not None
    assert replica is not None
    await until(lambda: slaves.replicated == pair.master.store.log.end)
    status = Command.request(RequestCode.GET_BROKER_HA_STATUS)
    async with ConnectionPool() as pool:
        answers = [
            decode(HARuntimeInfo, (await pool.request(broker.address, status, timeout=30)).body)
            for broker in (pair.master, pair.slave)
        ]
    end = pair.master.store.log.end
    assert answers[0].master
    assert answers[0].in_sync_slave_nums == 1
    assert answers[0].ha_connection_info[0].slave_ack_offset == end
    assert not answers[1].master
    assert answers[1].ha_client_runtime_info.activated
    assert answers[1].ha_client_runtime_info.max_offset == end
    assert replica.lag_bytes == 0
    for broker, key, value in (
        (pair.master, "pocketmqSlaves", "1"),
        (pair.slave, "pocketmqReplicationLagBytes", "0"),
    ):
        request = Command.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        async with ConnectionPool() as pool:
            answer = await pool.request(broker.address, request, timeout=30)
        assert decode(KVTable, answer.body).table[key] == value


async def status(pair: Pair) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what ``cluster status`` shows of master and slave."""
    cli = CommandLine(pair.cluster.nameserver)
    shown = await asyncio.to_thread(lambda: cli.result("cluster", "status", "--json"))
    master, slave = sorted(json.loads(shown.stdout), key=lambda row: row["id"])
    assert shown.exit_code == int(slave["problem"] is not None)
    return master, slave


async def test_cluster_status_and_doctor_show_roles_and_what_a_slave_lacks(pair: Pair) -> None:
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("orders", b"1")
        await pair.same()
        slaves = pair.master.state.slaves
        assert slaves is not None
        await until(lambda: slaves.replicated == pair.master.store.log.end)
        master, slave = await status(pair)
        assert (master["role"], master["slaves"], master["lag_bytes"]) == ("ASYNC_MASTER", 1, None)
        assert (slave["role"], slave["slaves"], slave["problem"]) == ("SLAVE", None, None)
        assert (slave["lag_bytes"], slave["lag_seconds"]) == (0, 0.0)
        assert "no slave has, now 0 bytes" in await doctors_words(pair, "ok")

        await pair.cluster.stop("slave")
        assert "none is connected: there is one copy" in await doctors_words(pair, "warning")
        await asyncio.sleep(0.02)
        await producer.send("orders", b"2")
    nobody = f"127.0.0.1:{free_port()}"
    await pair.cluster.start("slave", limits=QUICK, **SLAVE, haMasterAddress=nobody)
    replica = pair.cluster.brokers["slave"].state.replica
    assert replica is not None
    await until(lambda: replica.state.problem is not None and replica.lag_bytes > 0)
    master, slave = await status(pair)
    assert master["slaves"] == 0
    assert slave["lag_bytes"] == replica.lag_bytes
    assert slave["lag_seconds"] == replica.lag_seconds
    assert slave["lag_seconds"] >= 0.02
    assert f"no connection to the master's replication port {nobody}" in slave["problem"]
    assert slave["problem"] in await doctors_words(pair, "failed")


async def doctors_words(pair: Pair, verdict: str) -> str:
    """Return what the doctor says about the replication, with this verdict."""
    cli = CommandLine(pair.cluster.nameserver)
    shown = await asyncio.to_thread(lambda: cli.result("doctor", "--json"))
    rows = json.loads(shown.stdout)["findings"]
    return " ".join(
        row["found"] for row in rows if (row["check"], row["verdict"]) == ("replication", verdict)
    )


class BrokenMaster:
    """Answers every request at a master's port with the next of some bodies."""

    def __init__(self, port: int, bodies: list[bytes]) -> None:
        self._bodies = bodies
        self.answers: Counter[int] = Counter()
        self.server = Server(self._answer, port=port)

    def _answer(self, command: Command, _: object) -> Command:
        body = self._bodies[self.answers[command.code] % len(self._bodies)]
        self.answers[command.code] += 1
        return command.reply(body=body)


async def test_a_table_that_can_not_be_decoded_changes_nothing(pair: Pair) -> None:
    async with (
        client.Producer(pair.cluster.nameserver) as producer,
        client.Admin(pair.cluster.nameserver) as admin,
    ):
        await admin.create_group("g")
        await producer.send("orders", b"1", delay_level=1)
    pair.master.state.offsets.commit("g", "orders", 0, 1)
    state = pair.slave.state
    await until(lambda: state.offsets.query("g", "orders", 0) == 1)
    await until(lambda: pair.slave_delays().get(1) == 1)
    await until(lambda: "orders" in state.topics and "g" in state.groups.table)

    def tables() -> list[object]:
        return [
            dict(state.topics.table),
            dict(state.groups.table),
            {key: dict(queues) for key, queues in state.offsets.table.items()},
            pair.slave_delays(),
        ]

    before = tables()
    whole = encode(TopicConfigSerializeWrapper(dict(state.topics.table)))
    await pair.cluster.stop("broker-a")
    bodies = [
        *(b"", b"{", b"null", b"[]", b"{}", b"\xff" * 100, whole[:-10]),
        *(b'{"topicConfigTable":{}}', b'{"topicConfigTable":{"orders":5}}'),
        *(b'{"subscriptionGroupTable":{}}', b'{"offsetTable":{}}', b'{"offsetTable":7}'),
    ]
    broken = BrokenMaster(pair.master.port, bodies)
    codes = [
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_TIMER_CHECK_POINT,
    ]
    async with broken.server:
        # Twice: a topic is deleted when the master has lacked it twice.
        await until(lambda: min(broken.answers[code] for code in codes) > 2 * len(bodies), 60)
        assert state.replica is not None
        await until(lambda: "does not tell" in (state.replica.state.problem or ""))
    assert tables() == before


async def test_deliveries_count_once_the_slave_has_them(pair: Pair) -> None:
    await pair.same()
    await pair.cluster.stop("broker-a")
    own = pair.slave.store.log.end
    told = {
        RequestCode.GET_ALL_DELAY_OFFSET: encode(DelayOffsetSerializeWrapper({1: 7})),
        RequestCode.GET_TIMER_CHECK_POINT: encode_check(TimerCheck(5000, 0, 7), 0, 0),
    }
    asked = Counter[int]()
    end = own + 1

    def answer(command: Command, _: object) -> Command:
        asked[command.code] += 1
        table = {"commitLogMinOffset": "0", "commitLogMaxOffset": str(end)}
        return command.reply(body=told.get(command.code) or encode(KVTable(table)))

    async with Server(answer, port=pair.master.port):
        await until(lambda: min(asked[code] for code in told) > 2, 60)
        assert pair.slave_delays() == {}
        assert pair.slave_timers() != 5000
        end = own
        await until(lambda: pair.slave_delays() == {1: 7} and pair.slave_timers() == 5000)


async def test_a_slave_without_its_master_says_so(pair: Pair) -> None:
    await until(lambda: bool(pair.slave.state.replica and pair.slave.state.replica.state.connected))
    await pair.cluster.stop("broker-a")
    await until(lambda: not pair.slave.state.replica.state.connected)
    answer = await ask(pair, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
    assert (
        "closed the connection" in decode(KVTable, answer.body).table["pocketmqReplicationProblem"]
    )


async def test_consumers_read_on_and_commit_at_the_slave_while_there_is_no_master(
    pair: Pair,
) -> None:
    address = pair.cluster.nameserver
    async with client.Producer(address) as producer:
        for number in range(40):
            await producer.send("orders", b"%d" % number)
    async with client.PullConsumer(address, group="g") as consumer:
        await consumer.subscribe("orders")
        first = {message.body for message in await consumer.get_many(10)}
        await consumer.commit()
    await pair.same()
    await until(lambda: pair.slave.state.offsets.table == pair.master.state.offsets.table)
    await pair.cluster.stop("broker-a")

    read = set(first)
    async with client.PullConsumer(address, group="g") as consumer:
        await consumer.subscribe("orders")
        async with asyncio.timeout(30):
            while len(read) < 40:
                read |= {message.body for message in await consumer.get_many(10, timeout=1)}
        await consumer.commit()
    committed = pair.slave.state.offsets.queues_of("g", "orders")
    assert sum(committed.values()) == 40

    await pair.start_master()
    await until(lambda: pair.master.state.offsets.queues_of("g", "orders") == committed)


async def test_consumers_wait_for_a_new_topic_that_the_slave_lacks(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        pair = Pair(cluster)
        pair.port = free_port()
        await pair.start_master()
        rarely = BrokerLimits(table_copy_seconds=3600)
        slave = await cluster.start("slave", limits=rarely, **SLAVE)
        await until(lambda: bool(slave.state.replica and slave.state.replica.state.connected))
        async with client.Admin(cluster.nameserver) as admin:
            await admin.create_topic("new", queues=1)
        await cluster.stop("broker-a")
        assert "new" not in slave.state.topics
        async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
            consumer.assign([MessageQueue("new", "broker-a", 0)])
            assert await consumer.get_many(1, timeout=0.5) == []
            await pair.start_master()
            async with client.Producer(cluster.nameserver) as producer:
                await producer.send("new", b"1")
            (message,) = await consumer.get_many(1, timeout=30)
    assert message.body == b"1"


def accounts(root: Path) -> dict[str, str]:
    """Write two accounts, and an administrator's keys; return the settings of a master."""
    rules = root / "plain_acl.yml"
    rules.write_text(
        "accounts:\n"
        "- {accessKey: administrator, secretKey: '12345678', admin: true}\n"
        "- {accessKey: ordinary, secretKey: '12345678', defaultTopicPerm: PUB|SUB}\n"
    )
    for name in ("administrator", "ordinary"):
        keys = root / f"{name}.yml"
        keys.write_text(f"accessKey: {name}\nsecretKey: '12345678'\n")
        keys.chmod(0o600)
    return {"aclEnable": "true", "pocketmqAclFile": str(rules)}


async def test_with_accounts_a_slave_needs_the_keys_of_an_administrator(tmp_path: Path) -> None:
    secure = accounts(tmp_path)
    async with Cluster(tmp_path) as cluster:
        pair = Pair(cluster)
        pair.master = await cluster.start("broker-a", haListenPort=str(free_port()), **secure)
        assert pair.master.store.put(message(b"secret")).message == ""
        replica = None
        for keys in ({}, {"pocketmqCredentials": str(tmp_path / "ordinary.yml")}):
            slave = await cluster.start("slave", limits=QUICK, **SLAVE, **keys)
            replica = slave.state.replica
            assert replica is not None
            await until(lambda replica=replica: replica.state.problem is not None)
            assert "answered code" in (replica.state.problem or "")
            assert slave.store.log.end == 0
            await cluster.stop("slave")
        keys = {"pocketmqCredentials": str(tmp_path / "administrator.yml")}
        pair.slave = await cluster.start("slave", limits=QUICK, **SLAVE, **keys)
        await pair.same()


@pytest.mark.parametrize("settings", [{"brokerName": "broker-a"}, SLAVE])
async def test_two_brokers_with_one_name_and_id_find_each_other(
    pair: Pair, settings: dict[str, str]
) -> None:
    first = pair.slave if settings is SLAVE else pair.master
    second = await pair.cluster.start("second", **settings)
    for one, other in ((first, second), (second, first)):
        assert one.registration is not None
        await one.registration.changed()
        async with ConnectionPool() as pool:
            request = Command.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            answer = await pool.request(one.address, request, timeout=30)
        assert decode(KVTable, answer.body).table["pocketmqIdTakenBy"] == other.address
    await pair.cluster.stop("second")
    assert first.registration is not None
    await first.registration.changed()
    await first.registration.changed()
    assert first.registration.taken_by is None


async def test_a_master_at_a_new_address_is_found_at_once(pair: Pair, tmp_path: Path) -> None:
    await pair.same()
    await pair.cluster.stop("broker-a")
    port = str(free_port())
    (tmp_path / "new").symlink_to(tmp_path / "broker-a")
    pair.master = await pair.cluster.start("new", brokerName="broker-a", haListenPort=port)
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("orders", b"1")
    # Much sooner than in the 30 s between two registrations.
    await until(lambda: pair.slave.store.log.end == pair.master.store.log.end, seconds=20)


async def test_push_consumers_go_on_without_the_master_and_return_to_it(pair: Pair) -> None:
    address = pair.cluster.nameserver
    async with client.Admin(address) as admin, client.Producer(address) as producer:
        await admin.create_topic("orders", queues=2)
        for group in ("early", "late", "ordered"):
            await admin.create_group(group)
        for number in range(20):
            await producer.send("orders", b"%d" % number)
        await pair.same()
        await until(lambda: "ordered" in pair.slave.state.groups.table)
        await until(lambda: "orders" in pair.slave.state.topics)

        got: dict[str, list[bytes]] = {"early": [], "late": [], "ordered": []}

        def consumer(group: str) -> client.PushConsumer[bytes]:
            async def handle(message: client.ReceivedMessage[bytes]) -> None:
                got[group].append(message.body)

            return client.PushConsumer(
                address,
                group=group,
                subscribe={"orders": "*"},
                handler=handle,
                order=client.Orderly() if group == "ordered" else None,
                suspend=1.0,
            )

        async with consumer("early"):
            await until(lambda: len(got["early"]) == 20)
            await pair.cluster.stop("broker-a")
            async with consumer("late"), consumer("ordered"):
                await until(lambda: len(got["late"]) == 20)
                # Only a master locks queues.
                assert got["ordered"] == []
                await pair.start_master()
                await producer.send("orders", b"20")
                await until(lambda: all(len(bodies) == 21 for bodies in got.values()))
        for bodies in got.values():
            assert sorted(bodies, key=int) == [b"%d" % number for number in range(21)]
        for group in got:
            committed = pair.master.state.offsets.queues_of(group, "orders")
            assert sum(committed.values()) == 21


async def test_administrators_read_at_the_slave_while_there_is_no_master(pair: Pair) -> None:
    address = pair.cluster.nameserver
    async with client.Admin(address) as admin, client.Producer(address) as producer:
        await admin.create_topic("orders", queues=1)
        await admin.create_group("g")
        receipts = [await producer.send("orders", b"%d" % n, keys=["k"]) for n in range(3)]
        queue = receipts[0].queue
        await admin.commit("g", {queue: 1})

        async def seen() -> list[object]:
            return [
                [message.body for message in await admin.find_messages("orders", "k")],
                (await admin.message(receipts[1].id, topic="orders")).body,
                (await admin.message(receipts[1].offset_id)).body,
                (await admin.lag("g")).total,
                (await admin.lag("g", topic="orders")).total,
                [await admin.min_offset(queue), await admin.max_offset(queue)],
                await admin.committed("g", "orders"),
                await admin.queues("orders"),
                (await admin.topic_stats("orders"))[queue].max_offset,
                (await admin.topic_config("orders")).keys(),
                await admin.groups(),
                await admin.members("g"),
            ]

        await pair.same()
        await until(lambda: pair.slave.state.offsets.query("g", "orders", 0) == 1)

        async def indexed() -> bool:
            return (await seen())[0] == [b"0", b"1", b"2"]

        await waiting.until(indexed)
        at_master = await seen()
        await pair.cluster.stop("broker-a")

        async def same() -> bool:
            return await seen() == at_master

        await waiting.until(same)
        with pytest.raises(client.NoRoute, match="no master broker is registered"):
            await admin.create_topic("more", queues=1)


async def test_consumers_far_behind_read_from_the_slave_and_come_back(tmp_path: Path) -> None:
    async with Cluster(tmp_path, slaveReadEnable="true") as cluster:
        pair = Pair(cluster)
        pair.port = free_port()
        await pair.start()
        async with (
            client.Producer(cluster.nameserver) as producer,
            client.Admin(cluster.nameserver) as admin,
        ):
            await admin.create_topic("orders", queues=1)
            for number in range(60):
                await producer.send("orders", b"%d" % number)
            await pair.same()
            await until(lambda: "orders" in pair.slave.state.topics)
            # From now on the master takes every message for an old one.
            ratio = {"accessMessageInMemoryMaxRatio": "0"}
            await admin.update_broker_config(pair.master.address, ratio)
            async with client.PullConsumer(
                cluster.nameserver, group="g", pull_messages=10
            ) as consumer:
                await consumer.subscribe("orders")
                bodies = []
                while len(bodies) < 60:
                    bodies += [message.body for message in await consumer.get_many(10)]
                assert bodies == [b"%d" % number for number in range(60)]
                # The slave sends it back, and the master to the slave again.
                assert pair.slave.state.counters.messages_pulled >= 10
                assert pair.master.state.counters.messages_pulled >= 10
                await producer.send("orders", b"60")
                assert [message.body for message in await consumer.get_many(1)] == [b"60"]


def pull_beyond(offset: int) -> Command:
    header = pull_header(MessageQueue("orders", "broker-a", 0), "g", offset, messages=1)
    return Command.request(RequestCode.PULL_MESSAGE, header)


async def test_a_slave_corrects_no_offset_that_its_master_may_have(pair: Pair) -> None:
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("orders", b"1")
    await pair.same()
    await until(lambda: "orders" in pair.slave.state.topics)
    for alive, code in (
        (True, ResponseCode.PULL_RETRY_IMMEDIATELY),
        (False, ResponseCode.PULL_NOT_FOUND),
    ):
        await until(lambda alive=alive: pair.slave.state.replica.state.connected is alive)
        for offset in (50, -2):
            reply = await ask(pair, pull_beyond(offset))
            assert reply.code == code
            assert reply.read(PullMessageResponseHeader).next_begin_offset == offset
        if alive:
            await pair.cluster.stop("broker-a")


async def test_a_sync_master_acknowledges_what_a_slave_has(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        pair = Pair(cluster)
        pair.port = free_port()
        role = {"brokerRole": "SYNC_MASTER", "haListenPort": str(pair.port)}
        pair.master = await cluster.start("broker-a", slaveTimeout="60000", **role)
        async with client.Producer(cluster.nameserver) as producer:
            receipt = await producer.send("orders", b"alone")
            assert receipt.status is client.SendStatus.SLAVE_NOT_AVAILABLE
            await pair.start_slave()
            slaves = pair.master.state.slaves
            assert slaves is not None
            await until(lambda: slaves.replicated == pair.master.store.log.end)
            # On the fast path, in batches, and on the slow path.
            for number in range(30):
                receipt = await producer.send("orders", b"%d" % number)
                assert receipt.status is client.SendStatus.OK
                assert pair.slave.store.log.end == pair.master.store.log.end
            await asyncio.gather(*(producer.send("orders", b"more") for _ in range(200)))
            assert pair.slave.store.log.end == pair.master.store.log.end
            await producer.send("orders", b"later", delay_level=1)
            assert pair.slave.store.log.end == pair.master.store.log.end
