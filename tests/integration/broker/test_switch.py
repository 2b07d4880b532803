"""A switch by hand: the slave is the master, the master its slave, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client.registry import CollectorRegistry

import client
from broker.app import Broker
from broker.limits import BrokerLimits
from broker.storetools.verify.findings import is_open
from pocketmq.server.metrics_page import MetricsPage
from pocketmq.server.process import LoopMonitor, RequestTimes
from remoting.access.accounts import dump
from remoting.errors import BindFailed
from remoting.pool import ConnectionPool
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.group import LockBatchRequestBody, LockBatchResponseBody
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.own_codes import OwnRequestCode
from remoting.protocol.queue import MessageQueue
from tests.harness.certificates import self_signed
from tests.harness.cluster import Cluster
from tests.integration.broker.client import Client
from tests.integration.pocketmq.conftest import CommandLine
from tests.support.ports import free_port, free_ports
from tests.support.relay import Relay

QUICK = BrokerLimits(table_copy_seconds=0.1, catch_up_seconds=1)
SWIFT_CHECKS = {"transactionTimeOut": "500", "transactionCheckInterval": "200"}


class Pair:
    """Two brokers of one name, ``first`` and ``second``; by their settings the first is master."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ports = {"first": str(free_port()), "second": str(free_port())}

    async def start(self, name: str, **settings: str) -> Broker:
        """Start a broker, or start it again."""
        role = {} if name == "first" else {"brokerRole": "SLAVE", "brokerId": "1"}
        own = {"brokerName": "broker-a", "haListenPort": self.ports[name], **role, **settings}
        return await self.cluster.start(name, limits=QUICK, **SWIFT_CHECKS, **own)

    @property
    def first(self) -> Broker:
        return self.cluster.brokers["first"]

    @property
    def second(self) -> Broker:
        return self.cluster.brokers["second"]

    async def roles(self, *, master: str, slave: str) -> None:
        """Wait until the brokers have these roles, and the slave has all that the master has."""
        one, other = self.cluster.brokers[master], self.cluster.brokers[slave]

        def are_so() -> bool:
            if not (one.serving and other.serving and other.config.is_slave):
                return False
            replica = other.state.replica
            is_equal = one.store.log.end == other.store.log.end
            return (
                not one.config.is_slave and is_equal and bool(replica and replica.state.connected)
            )

        await until(are_so)

    async def switch(self, *, to: str, by: str | None = None) -> None:
        """Switch as an administrator; ``by`` is the slave's address instead of its own."""
        brokers = self.cluster.brokers
        (master,) = [broker for broker in brokers.values() if not broker.config.is_slave]
        slave = brokers[to]
        async with client.Admin(self.cluster.nameserver) as admin:
            await admin.hand_over(
                master.address, by or slave.address, max(1, slave.config.broker_id)
            )

    def log_of(self, name: str) -> bytes:
        """Return the bytes of a broker's log."""
        log = self.cluster.brokers[name].store.log
        files = (log.file_at(start) for start in range(log.start, log.end, log.file_size))
        return b"".join(bytes(file.view) for file in files if file is not None)[: log.end]


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - stores and tables have no events
            await asyncio.sleep(0.01)


@pytest_asyncio.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Cluster(tmp_path) as cluster:
        pair = Pair(cluster)
        await pair.start("first")
        await pair.start("second")
        yield pair


class Traffic:
    """Producers and consumers of every kind; each message is a number of its topic."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self._begun: Counter[str] = Counter()
        self.acknowledged: dict[str, set[str]] = defaultdict(set)
        self.got: dict[str, list[str]] = defaultdict(list)

    async def run(self, stop: asyncio.Event) -> None:
        """Send until ``stop``, and return when everything acknowledged has been consumed."""
        async with (
            client.Producer(
                self._nameserver,
                group="traffic",
                transaction_checker=lambda _: client.TransactionState.COMMIT,
                heartbeat_period=1.0,
            ) as producer,
            client.PushConsumer(
                self._nameserver,
                group="concurrent",
                subscribe=dict.fromkeys(("plain", "late", "timed", "half"), "*"),
                handler=self._take,
                start_from=client.BEGIN,
            ),
            client.PushConsumer(
                self._nameserver,
                group="ordered",
                subscribe={"keyed": "*"},
                handler=self._take,
                order=client.Orderly(),
                start_from=client.BEGIN,
            ),
        ):
            await asyncio.gather(
                self._send(stop, producer, "plain"),
                self._send(stop, producer, "keyed", sharding_key="a"),
                self._send(stop, producer, "keyed", sharding_key="b"),
                self._send(stop, producer, "late", delay_level=1),
                self._send(stop, producer, "timed", delay=1.3),
                self._deal(stop, producer),
            )
            await until(lambda: all(self.acknowledged[t] <= set(self.got[t]) for t in self._begun))
            await asyncio.sleep(1)

    async def _send(
        self, stop: asyncio.Event, producer: client.Producer[bytes], topic: str, **how: object
    ) -> None:
        while not stop.is_set():
            self._begun[topic] += 1
            body = f"{how.get('sharding_key', '')}{self._begun[topic]}"
            try:
                await producer.send(topic, body.encode(), **how)  # type: ignore[arg-type]
            except client.PocketMQError:
                await asyncio.sleep(0.02)
                continue
            self.acknowledged[topic].add(body)
            await asyncio.sleep(0.003)

    async def _deal(self, stop: asyncio.Event, producer: client.Producer[bytes]) -> None:
        while not stop.is_set():
            self._begun["half"] += 1
            body = str(self._begun["half"])
            transaction = producer.transaction("half", body.encode(), timeout=1.0)
            try:
                await transaction.start()
            except client.SendError:
                await asyncio.sleep(0.02)
                continue
            self.acknowledged["half"].add(body)
            await (transaction.defer() if self._begun["half"] % 5 == 0 else transaction.commit())
            await asyncio.sleep(0.01)

    async def _take(self, message: client.ReceivedMessage[bytes]) -> None:
        self.got[message.topic].append(message.body.decode())


async def test_all_traffic_goes_on_over_a_switch_and_back(pair: Pair) -> None:
    address, stop = pair.cluster.nameserver, asyncio.Event()
    async with client.Admin(address) as admin:
        for topic in ("plain", "keyed", "late", "timed", "half"):
            await admin.create_topic(topic, queues=4)
    traffic = Traffic(address)
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        tasks.create_task(traffic.run(stop))
        for master, slave in (("second", "first"), ("first", "second"), ("second", "first")):
            more = {topic: len(traffic.got[topic]) + 50 for topic in ("plain", "keyed")}
            await until(lambda more=more: all(len(traffic.got[t]) > n for t, n in more.items()))
            await pair.switch(to=master)
            await pair.roles(master=master, slave=slave)
        stop.set()
    for topic, sent in traffic.acknowledged.items():
        assert sent, topic
        assert sent <= set(traffic.got[topic]), "lost"
        repeated = {body: n for body, n in Counter(traffic.got[topic]).items() if n > 1}
        assert not repeated, topic
    for key in "ab":
        numbers = [int(body[1:]) for body in traffic.got["keyed"] if body.startswith(key)]
        firsts = list(dict.fromkeys(numbers))
        assert firsts == sorted(firsts)
    assert pair.log_of("first") == pair.log_of("second")
    for group, topic in (("concurrent", "plain"), ("ordered", "keyed")):
        ends = {
            n: pair.second.store.queries.max_offset(topic, n)
            for n in pair.second.state.offsets.queues_of(group, topic)
        }
        await until(
            lambda ends=ends, of=(group, topic): pair.second.state.offsets.queues_of(*of) == ends
        )


async def test_what_was_committed_before_a_switch_is_not_read_again(pair: Pair) -> None:
    address = pair.cluster.nameserver
    async with client.Producer(address) as producer:
        for number in range(40):
            await producer.send("orders", b"%d" % number)
        await pair.roles(master="first", slave="second")
        async with client.PullConsumer(address, group="g") as consumer:
            await consumer.subscribe("orders")
            before = [message.body for message in await consumer.get_many(25)]
            await consumer.commit()
            # At once: the slave copies tables at other times, too, but not between these lines.
            await pair.switch(to="second")
        async with client.PullConsumer(address, group="g") as consumer:
            await consumer.subscribe("orders")
            after: list[bytes] = []
            async with asyncio.timeout(30):
                while len(after) + len(before) < 40:
                    after += [m.body for m in await consumer.get_many(40, timeout=1)]
    assert sorted(map(int, before + after)) == list(range(40))


async def test_roles_outlive_restarts_until_the_operator_changes_the_settings(pair: Pair) -> None:
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("orders", b"1")
        await pair.roles(master="first", slave="second")
        await pair.switch(to="second")
        await pair.roles(master="second", slave="first")
        for name in ("first", "second"):
            await pair.cluster.stop(name)
        for name in ("first", "second"):
            await pair.start(name)
        await producer.send("orders", b"2")
    await pair.roles(master="second", slave="first")
    assert pair.first.config.broker_id == 1
    # These settings are others than at the switch.
    await pair.cluster.stop("first")
    await pair.start("first", brokerRole="SLAVE", brokerId="2")
    assert pair.first.config.broker_id == 2
    await pair.cluster.stop("first")
    await pair.cluster.stop("second")
    await pair.start("second", brokerRole="ASYNC_MASTER", brokerId="0")
    # And these the former ones, but the saved role is gone.
    await pair.cluster.stop("second")
    await pair.start("second")
    assert pair.second.config.is_slave


async def test_metrics_and_requests_are_those_of_the_new_role(pair: Pair) -> None:
    times = RequestTimes()
    pair.second.measure(times.around, times.count)
    registry = CollectorRegistry()
    registry.register(MetricsPage([], [pair.second], times, LoopMonitor().stalls))
    assert registry.get_sample_value("pocketmq_replication_connected") is not None
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("orders", b"1")
        await pair.roles(master="first", slave="second")
        await pair.switch(to="second")
        await pair.roles(master="second", slave="first")
        times.families.clear()
        await producer.send("orders", b"2")
    assert registry.get_sample_value("pocketmq_replication_connected") is None
    assert registry.get_sample_value("pocketmq_slaves", {"role": "ASYNC_MASTER"}) == 1
    assert registry.get_sample_value("pocketmq_messages_in_total") == 1
    assert times.families["send"].total > 0


async def test_a_slave_that_does_not_catch_up_is_refused_and_sends_go_on(pair: Pair) -> None:
    await pair.cluster.stop("second")
    async with (
        Relay(f"127.0.0.1:{pair.ports['first']}") as relay,
        client.Producer(pair.cluster.nameserver) as producer,
    ):
        await pair.start("second", haMasterAddress=relay.address)
        await producer.send("orders", b"1")
        await pair.roles(master="first", slave="second")
        slaves = pair.first.state.slaves
        assert slaves is not None
        await until(lambda: slaves.replicated == pair.first.store.log.end)
        relay.hold()
        await producer.send("orders", b"2")
        with pytest.raises(
            client.RemoteError, match=r"lacks \d+ bytes after 1 s.*stays the master"
        ):
            await pair.switch(to="second")
        await producer.send("orders", b"3")
        relay.release()
        await pair.roles(master="first", slave="second")
        await pair.switch(to="second")


async def test_a_slave_without_a_port_for_its_successor_is_refused(pair: Pair) -> None:
    await pair.cluster.stop("second")
    await pair.cluster.start("second", limits=QUICK, brokerName="broker-a", brokerRole="SLAVE",
                             brokerId="1")  # fmt: skip
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("orders", b"1")
        await pair.roles(master="first", slave="second")
        with pytest.raises(client.RemoteError, match="it has no haListenPort"):
            await pair.switch(to="second")
        await producer.send("orders", b"2")


async def test_a_slave_whose_log_is_another_one_is_refused(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        pair = Pair(cluster)
        for name, body in (("second", b"other"), ("first", b"right")):
            await pair.start(name, brokerRole="ASYNC_MASTER", brokerId="0")
            async with client.Producer(cluster.nameserver) as producer:
                await producer.send("orders", body)
            await cluster.stop(name)
        await pair.start("first")
        await pair.start("second")
        await cluster.start("third", limits=QUICK, brokerName="broker-a", brokerRole="SLAVE",
                            brokerId="2")  # fmt: skip
        await pair.roles(master="first", slave="third")
        replica = pair.second.state.replica
        assert replica is not None
        await until(lambda: replica.state.differs)
        with pytest.raises(client.RemoteError, match="the stores differ"):
            await pair.switch(to="second")
        async with client.Producer(cluster.nameserver) as producer:
            await producer.send("orders", b"more")
        assert pair.second.config.is_slave


async def test_an_answer_that_is_lost_leaves_one_master(pair: Pair) -> None:
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("orders", b"1")
        await pair.roles(master="first", slave="second")
        async with Relay(pair.second.address, answers=1) as relay:
            switch = asyncio.create_task(pair.switch(to="second", by=relay.address))
            await until(lambda: pair.second.serving and not pair.second.config.is_slave)
            assert not pair.first.config.is_slave
            assert pair.first.state.sealed
            refused = pair.first.store.put
            assert refused is not None
            relay.release()
            await switch
            await pair.roles(master="second", slave="first")
        await producer.send("orders", b"2")
    await pair.roles(master="second", slave="first")


async def test_who_took_over_says_so_to_the_old_master_when_it_is_a_slave_again(
    pair: Pair,
) -> None:
    third = await pair.cluster.start(
        "third", limits=QUICK, brokerName="broker-a", brokerRole="SLAVE", brokerId="2",
        haListenPort=str(free_port()),
    )  # fmt: skip
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("orders", b"1")
        await pair.roles(master="first", slave="second")
        async with Relay(pair.second.address, answers=1) as relay:
            switch = asyncio.create_task(pair.switch(to="second", by=relay.address))
            await until(lambda: pair.second.serving and not pair.second.config.is_slave)
            await pair.cluster.stop("first")
            await asyncio.gather(switch, return_exceptions=True)
            await pair.roles(master="second", slave="third")
            await producer.send("orders", b"2")
            await pair.switch(to="third")
            await pair.roles(master="third", slave="second")
            # Over a restart, too.
            await pair.cluster.stop("second")
            await pair.start("second")
            relay.release()
            await pair.start("first")
            await until(lambda: not pair.first.state.sealed)
        await producer.send("orders", b"3")
        await pair.roles(master="third", slave="first")
        await pair.roles(master="third", slave="second")
    assert not third.config.is_slave


async def test_a_master_takes_nothing_until_it_knows_whether_its_slave_is_the_master(
    pair: Pair,
) -> None:
    async with client.Producer(pair.cluster.nameserver, retries=0) as producer:
        await producer.send("orders", b"1")
        await pair.roles(master="first", slave="second")
        async with Relay(pair.second.address, requests=1) as relay:
            switch = asyncio.create_task(pair.switch(to="second", by=relay.address))
            await relay.held.wait()
            with pytest.raises(client.SendError):
                await producer.send("orders", b"refused")
            # Over a restart, too.
            await pair.cluster.stop("first")
            await asyncio.gather(switch, return_exceptions=True)
            await pair.cluster.stop("second")
            await pair.start("first")
            assert pair.first.state.sealed
            with pytest.raises(client.PocketMQError):
                await producer.send("orders", b"refused")
            # The slave is back, and refuses: it could have no slave.
            await pair.cluster.start("second", brokerName="broker-a", brokerRole="SLAVE",
                                     brokerId="1")  # fmt: skip
            relay.release()
            await until(lambda: not pair.first.state.sealed)
            async with asyncio.timeout(30):
                await _sent(producer)
    assert not pair.first.config.is_slave
    assert pair.second.config.is_slave


async def _sent(producer: client.Producer[bytes]) -> None:
    """Send a message, however often it is refused before."""
    while True:
        try:
            await producer.send("orders", b"2")
        except client.PocketMQError:
            await asyncio.sleep(0.05)
        else:
            return


async def test_after_a_restart_of_both_brokers_the_old_master_goes_on(pair: Pair) -> None:
    async with client.Producer(pair.cluster.nameserver, retries=0) as producer:
        await producer.send("orders", b"1")
        await pair.roles(master="first", slave="second")
        async with Relay(pair.second.address, requests=1) as relay:
            switch = asyncio.create_task(pair.switch(to="second", by=relay.address))
            await relay.held.wait()
            for name in ("first", "second"):
                await pair.cluster.stop(name)
            await asyncio.gather(switch, return_exceptions=True)
            for name in ("first", "second"):
                await pair.start(name)
            assert pair.first.state.sealed
            relay.release()
            # The slave finds no master to copy from, and says so.
            await until(lambda: not pair.first.state.sealed)
            async with asyncio.timeout(30):
                await _sent(producer)
        await pair.roles(master="first", slave="second")
        await pair.switch(to="second")
        await pair.roles(master="second", slave="first")


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_operator_ends_a_hand_over_whose_slave_is_late(pair: Pair, restarts: bool) -> None:
    cli = CommandLine(pair.cluster.nameserver)
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("orders", b"1")
        await pair.roles(master="first", slave="second")
        async with Relay(pair.second.address, requests=1) as relay:
            switch = asyncio.create_task(pair.switch(to="second", by=relay.address))
            await relay.held.wait()
            if restarts:
                await pair.cluster.stop("first")
                await pair.start("first")
            promote = ("broker", "promote", "broker-a", "--address", pair.first.address)
            error = await asyncio.to_thread(cli.fails, *promote)
            known = "may be the master now" if restarts else "is not the master yet"
            assert f"which {known}" in error
            assert pair.first.state.sealed
            await asyncio.to_thread(cli, *promote, "--force")
            with pytest.raises(client.PocketMQError):
                await switch
            # What was sent to the slave before arrives now.
            relay.release()
            relay.hold()
            relay.held.clear()
            await relay.held.wait()
            relay.release()
            # Nor has it saved that it is the master.
            await pair.cluster.stop("second")
            await pair.start("second")
            assert pair.second.config.is_slave
            async with asyncio.timeout(30):
                await _sent(producer)
        await pair.roles(master="first", slave="second")


@pytest.mark.parametrize("moment", ["sealed", "slave ends", "master ends"])
async def test_a_stop_in_the_middle_of_a_switch_leaves_nothing_open(
    pair: Pair, moment: str
) -> None:
    """Nor does a stop that is cancelled, and called again, twice at once."""
    await pair.roles(master="first", slave="second")
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("orders", b"1")
    old, new = "first", "second"
    for steps in (0, 7, 30):
        await pair.roles(master=old, slave=new)
        switch = asyncio.create_task(pair.switch(to=new))
        one, other = pair.cluster.brokers[old], pair.cluster.brokers[new]
        is_reached = {
            "sealed": lambda one=one: one.state.sealed,
            "slave ends": lambda other=other: not other.serving,
            "master ends": lambda one=one: not one.serving,
        }[moment]
        await until(is_reached)
        for _ in range(steps):
            await asyncio.sleep(0)
        for broker in (other, one):
            stop = asyncio.create_task(broker.stop())
            await asyncio.sleep(0)
            stop.cancel()
            await asyncio.gather(stop, return_exceptions=True)
            await asyncio.gather(broker.stop(), broker.stop())
        await asyncio.gather(switch, return_exceptions=True)
        for name in (old, new):
            assert not is_open(pair.cluster.brokers[name].store.paths.root)
        names = " ".join(task.get_name() for task in asyncio.all_tasks())
        assert "role of the broker" not in names
        assert "broker:" not in names
        for name in (old, new):
            await pair.start(name)
        await until(lambda: pair.first.config.is_slave != pair.second.config.is_slave)
        if pair.cluster.brokers[old].config.is_slave:
            old, new = new, old
        async with client.Producer(pair.cluster.nameserver) as producer, asyncio.timeout(30):
            await _sent(producer)
    await pair.roles(master=old, slave=new)
    assert pair.log_of("first") == pair.log_of("second")


async def test_a_slave_whose_port_is_taken_does_not_become_the_master(pair: Pair) -> None:
    await pair.roles(master="first", slave="second")
    port = pair.ports["second"]
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", int(port)):
        with pytest.raises(client.RemoteError, match=f"can't listen on 127.0.0.1:{port}"):
            await pair.switch(to="second")
        await pair.roles(master="first", slave="second")
        await pair.cluster.stop("first")
        async with client.Admin(pair.cluster.nameserver) as admin:
            with pytest.raises(client.RemoteError, match=f"can't listen on 127.0.0.1:{port}"):
                await admin.promote("broker-a", pair.second.address, force=True)
        await pair.cluster.stop("second")
        with pytest.raises(BindFailed, match=port):
            await pair.start("second")
        await pair.cluster.stop("second")
    await pair.start("first")
    await pair.start("second")
    await pair.switch(to="second")
    await pair.roles(master="second", slave="first")


async def test_of_two_switches_at_once_one_is_done_and_every_slave_follows(pair: Pair) -> None:
    third = await pair.cluster.start(
        "third", limits=QUICK, brokerName="broker-a", brokerRole="SLAVE", brokerId="2",
        haListenPort=str(free_port()),
    )  # fmt: skip
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("orders", b"1")
        await pair.roles(master="first", slave="second")
        await pair.roles(master="first", slave="third")
        async with Relay(third.address, requests=1) as relay:
            switch = asyncio.create_task(pair.switch(to="third", by=relay.address))
            await relay.held.wait()
            with pytest.raises(client.RemoteError, match="is handing over already"):
                await pair.switch(to="second")
            relay.release()
            await switch
        await pair.roles(master="third", slave="first")
        await producer.send("orders", b"2")
        for slave in ("first", "second"):
            await pair.roles(master="third", slave=slave)
    assert (third.config.broker_id, pair.first.config.broker_id) == (0, 2)
    assert pair.second.config.broker_id == 1


async def test_a_switch_with_tls_and_the_vip_port(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    settings = {
        "useTLS": "true",
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(certificate.cert),
        "tls.server.keyPath": str(certificate.key),
        "tls.client.trustCertPath": str(certificate.cert),
    }
    tls = client.Tls(ca=certificate.cert)
    async with Cluster(tmp_path, **settings) as cluster:
        pair = Pair(cluster)
        for name in ("first", "second"):
            await pair.start(name, listenPort=str(free_ports(3)))
        async with (
            client.Producer(cluster.nameserver, tls=tls) as producer,
            ConnectionPool(tls=tls) as pool,
            client.Admin(cluster.nameserver, tls=tls) as admin,
        ):
            await producer.send("orders", b"1")
            await pair.roles(master="first", slave="second")
            await admin.hand_over(pair.first.address, pair.second.address, 1)
            await pair.roles(master="second", slave="first")
            await producer.send("orders", b"2")
            vip = Client()
            answers = []
            for broker in (pair.first, pair.second):
                vip.connection = await pool.get(f"127.0.0.1:{broker.port - 2}")
                answers.append((await vip.send("orders")).code)
            assert answers == [ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SUCCESS]


async def test_promotion_by_force(pair: Pair) -> None:
    address = pair.cluster.nameserver
    async with client.Producer(address) as producer, client.Admin(address) as admin:
        await producer.send("orders", b"1")
        await pair.roles(master="first", slave="second")
        slave = pair.second.address
        for force in (False, True):
            with pytest.raises(client.RemoteError, match="pocketmq broker switch broker-a"):
                await admin.promote("broker-a", slave, force=force)
        with pytest.raises(client.RemoteError, match="this broker is the master"):
            await admin.promote("broker-a", pair.first.address)
        with pytest.raises(client.RemoteError, match="this broker is broker-a, not other"):
            await admin.promote("other", slave)
        await pair.cluster.stop("first")
        with pytest.raises(client.RemoteError, match=r"heard \d+ s ago; .* had 0 bytes"):
            await admin.promote("broker-a", slave)
        assert pair.second.config.is_slave
        await admin.promote("broker-a", slave, force=True)
        await until(lambda: pair.second.serving and not pair.second.config.is_slave)
        await producer.send("orders", b"2")
    # Nobody knows who held the locks.
    queue = MessageQueue("orders", "broker-a", 0)
    assert await lock(pair.second, "one", [queue]) == []
    await pair.cluster.stop("second")
    await pair.start("second")
    assert not pair.second.config.is_slave
    assert await lock(pair.second, "one", [queue]) == []


async def lock(broker: Broker, client_id: str, queues: list[MessageQueue]) -> list[MessageQueue]:
    """Lock queues for a client of group g; return those that it has."""
    body = encode(LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=queues))
    async with ConnectionPool() as pool:
        request = Command.request(RequestCode.LOCK_BATCH_MQ, body=body)
        answer = await pool.request(broker.address, request, timeout=30)
    return list(decode(LockBatchResponseBody, answer.body).lock_ok_mq_set)


async def test_queue_locks_keep_their_owners(pair: Pair) -> None:
    queues = [MessageQueue("orders", "broker-a", number) for number in range(2)]
    async with client.Producer(pair.cluster.nameserver) as producer:
        await producer.send("orders", b"1")
    await pair.roles(master="first", slave="second")
    assert await lock(pair.first, "one", queues[:1]) == queues[:1]
    await pair.switch(to="second")
    await pair.roles(master="second", slave="first")
    assert await lock(pair.second, "other", queues) == queues[1:]
    assert await lock(pair.second, "one", queues) == queues[:1]


async def test_switches_are_refused_where_they_make_no_sense(pair: Pair) -> None:
    async with client.Admin(pair.cluster.nameserver) as admin:
        with pytest.raises(client.RemoteError, match="this broker is a slave: ask its master"):
            await admin.hand_over(pair.second.address, pair.first.address, 1)
        with pytest.raises(client.RemoteError, match="this broker can't be a slave"):
            await admin.hand_over(pair.first.address, pair.second.address, 0)
        with pytest.raises(client.RemoteError, match="the slave does not answer"):
            await admin.hand_over(pair.first.address, f"127.0.0.1:{free_port()}", 1)
        with pytest.raises(client.RemoteError, match="refuses: this broker is the master"):
            await admin.hand_over(pair.first.address, pair.first.address, 1)
        await pair.cluster.stop("second")
        await pair.start("second", haMasterAddress="127.0.0.1:1")
        with pytest.raises(client.RemoteError, match="no slave is connected after 2 s"):
            await admin.hand_over(pair.first.address, pair.second.address, 1)
    async with ConnectionPool() as pool:
        request = Command.request(OwnRequestCode.PROMOTE)
        answer = await pool.request(pair.first.address, request, timeout=30)
    assert "brokerName" in (answer.remark or "")


async def test_with_accounts_a_switch_needs_an_administrator(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yml"
    keys.write_text(dump({"accessKey": "operator", "secretKey": "secret-of-operator"}).decode())
    keys.chmod(0o600)
    accounts = tmp_path / "accounts.yml"
    accounts.write_bytes(
        dump(
            {
                "accounts": [
                    {"accessKey": "operator", "secretKey": "secret-of-operator", "admin": True},
                    {
                        "accessKey": "billing",
                        "secretKey": "secret-of-billing",
                        "topicPerms": ["orders=PUB|SUB"],
                    },
                ]
            }
        )
    )
    settings = {
        "aclEnable": "true",
        "pocketmqAclFile": str(accounts),
        "pocketmqCredentials": str(keys),
        "pocketmqSlaveAddresses": "127.0.0.1",
        "autoCreateTopicEnable": "true",
    }
    operator = client.Credentials("operator", "secret-of-operator")
    billing = client.Credentials("billing", "secret-of-billing")
    async with Cluster(tmp_path, **settings) as cluster:
        pair = Pair(cluster)
        await pair.start("first")
        await pair.start("second")
        address = cluster.nameserver
        async with client.Producer(address, credentials=billing) as producer:
            await producer.send("orders", b"1")
            await pair.roles(master="first", slave="second")
            async with client.Admin(address, credentials=billing) as admin:
                for ask in (
                    admin.hand_over(pair.first.address, pair.second.address, 1),
                    admin.promote("broker-a", pair.second.address, force=True),
                ):
                    with pytest.raises(client.AccessDenied):
                        await ask
            async with client.Admin(address, credentials=operator) as admin:
                await admin.hand_over(pair.first.address, pair.second.address, 1)
            await pair.roles(master="second", slave="first")
            await producer.send("orders", b"2")
            assert pair.second.guard is not None
    log = (tmp_path / "first" / "logs" / "audit.log").read_text()
    assert "HAND_OVER" in log
