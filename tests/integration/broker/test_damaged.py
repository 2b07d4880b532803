"""Damaged messages are never delivered; our clients get all others once and in order."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

import client
from broker.app import Broker
from broker.delivery.deliverer import RETRY_MS
from pocketmq.doctor import Case, examine
from pocketmq.server.metrics_page import MetricsPage
from pocketmq.server.process import LoopMonitor, RequestTimes
from remoting.protocol.codes import RequestCode, ResponseCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.disk.files import ENTRY
from remoting.protocol.headers.query import QueryMessageRequestHeader, ViewMessageRequestHeader
from remoting.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from remoting.protocol.message.record import HEAD_BYTES_V4
from remoting.protocol.message.view import RecordView, iter_records
from remoting.protocol.names import SCHEDULE_TOPIC
from tests.harness.cluster import Cluster
from tests.integration.broker.client import Client, bodies
from tests.integration.broker.test_cold_reads import HeldFiles, drop_from_page_cache
from tests.support.waiting import until
from tests.unit.broker.harness import pull_command
from tests.unit.broker.store.damage import flip_in
from tests.unit.broker.store.stores import NOTHING_HOT

QUEUES = 3
MESSAGES = 900
DAMAGED = {
    0: {0, 7, 8, 31, 32, 150, 299},
    1: set(range(100, 260)),
    2: set(range(MESSAGES // QUEUES)),
}
"""Of each queue, by number: some, more in a row than a pull takes, all."""

PARTS = (3, 5, 10, 14, 27, 35, HEAD_BYTES_V4 - 1, HEAD_BYTES_V4, HEAD_BYTES_V4 + 5)
"""Size, magic, CRC, queue, number, place, length of the body, body twice."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A name server, and a broker with the topic T."""
    async with Cluster(tmp_path) as made:
        await made.start(store_limits=NOTHING_HOT)
        async with client.Admin(made.nameserver) as admin:
            await admin.create_topic("T", queues=QUEUES)
        yield made


def body_of(queue_id: int, number: int) -> bytes:
    return b"%d-%03d " % (queue_id, number) * 20


async def fill(cluster: Cluster) -> None:
    async with client.Producer(cluster.nameserver) as producer:
        for number in range(MESSAGES // QUEUES):
            for queue_id in range(QUEUES):
                queue = client.MessageQueue("T", "broker-a", queue_id)
                await producer.send("T", body_of(queue_id, number), queue=queue)
        # A start that finds the last record damaged uses only the log, not the queues.
        await producer.send("Other", b"the last one")


def place_of(broker: Broker, queue_id: int, number: int, topic: str = "T") -> int:
    queue = broker.store.queues.get((topic, queue_id))
    assert queue is not None
    entry = queue.entry(number)
    assert entry is not None
    return entry[0]


def log_file(broker: Broker) -> Path:
    return broker.store.paths.commit_log / ("0" * 20)


def positions(broker: Broker) -> list[int]:
    """The position of the byte to flip in each message to damage."""
    return [
        place_of(broker, queue_id, number) + PARTS[number % len(PARTS)]
        for queue_id, numbers in DAMAGED.items()
        for number in sorted(numbers)
    ]


def expected() -> dict[int, list[bytes]]:
    return {
        queue_id: [
            body_of(queue_id, number)
            for number in range(MESSAGES // QUEUES)
            if number not in damaged
        ]
        for queue_id, damaged in DAMAGED.items()
    }


async def pull_all(cluster: Cluster, **options: Any) -> dict[int, list[bytes]]:
    """Return what a pull consumer reads until the lag is 0."""
    got: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(QUEUES)}
    async with client.PullConsumer(cluster.nameserver, group="pull", **options) as consumer:
        consumer.assign(await consumer.queues("T"))
        wanted = sum(map(len, expected().values()))
        while sum(map(len, got.values())) < wanted:
            batch = await consumer.get_many(77, timeout=10)
            assert batch
            for message in batch:
                got[message.queue.queue_id].append(message.body)
        assert await consumer.get_many(10, timeout=0.1) == []
    return got


async def push_all(cluster: Cluster, group: str = "push", new: int = 0) -> dict[int, list[bytes]]:
    """Return what an ordered push consumer handles until nothing is left."""
    got: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(QUEUES)}

    async def handle(message: Any) -> None:
        got[message.queue.queue_id].append(message.body)

    async with client.PushConsumer(
        cluster.nameserver,
        group=group,
        subscribe={"T": "*"},
        handler=handle,
        start_from=client.FIRST,
        order=client.Orderly(),
    ):
        wanted = sum(map(len, expected().values())) + new
        await until(lambda: sum(map(len, got.values())) >= wanted)
    # Its stop has handed out what was there, and committed.
    return got


@pytest.mark.parametrize("how", ["stopped", "killed", "running", "cold"])
async def test_consumers_get_everything_else_once_and_in_order(
    cluster: Cluster, tmp_path: Path, how: str
) -> None:
    await fill(cluster)
    broker = cluster.brokers["broker-a"]
    where = positions(broker)
    killed = tmp_path / "killed"
    broker.store.flush()
    shutil.copytree(broker.store.config.root, killed)
    file = log_file(broker)
    if how in {"stopped", "killed"}:
        await cluster.stop()
    if how == "killed":
        shutil.rmtree(broker.store.config.root)
        shutil.copytree(killed, broker.store.config.root)
    for position in where:
        flip_in(file, position)
    if how in {"stopped", "killed"}:
        broker = await cluster.start()
    if how == "cold":
        drop_all(broker)
    assert await pull_all(cluster) == expected()
    assert await push_all(cluster) == expected()
    assert broker.store.stats.damaged_messages == len(where)
    # What comes behind damaged ones comes.
    async with client.Producer(cluster.nameserver) as producer:
        await producer.send("T", b"new", queue=client.MessageQueue("T", "broker-a", 2))
    assert (await push_all(cluster, "another", 1))[2] == [b"new"]
    async with client.Admin(cluster.nameserver) as admin:
        assert (await admin.lag("another")).total == 0


def drop_all(broker: Broker) -> None:
    """Drop the log from the page cache."""
    drop_from_page_cache(broker, spare=0)


async def test_what_a_thread_reads_from_the_disk_is_checked(make_broker: Any, connect: Any) -> None:
    broker = make_broker()
    await broker.start()
    sender = await connect(broker)
    for number in range(50):
        await sender.send(body=b"%02d" % number * 500)
    place = place_of(broker, 0, 3)
    await broker.stop()
    flip_in(log_file(broker), place + HEAD_BYTES_V4)
    async with Broker(broker.config, files=HeldFiles()) as again:
        reply = await (await connect(again)).pull(max_msg_nums=10)
        assert bodies(reply) == [b"%02d" % number * 500 for number in range(10) if number != 3]
        assert reply.fields["nextBeginOffset"] == "10"
        assert again.store.stats.cold_gets == 1


async def test_neither_query_nor_view_nor_retry_finds_it(make_broker: Any, connect: Any) -> None:
    broker = make_broker()
    await broker.start()
    sender = await connect(broker)
    for number in range(4):
        await sender.send(body=b"body %d" % number, properties="KEYS\x01k")
    places = [place_of(broker, 0, number) for number in range(4)]
    await broker.stop()
    flip_in(log_file(broker), places[1] + HEAD_BYTES_V4)
    async with make_broker() as again:
        asker: Client = await connect(again)
        query = QueryMessageRequestHeader(
            topic="T", key="k", max_num=32, begin_timestamp=0, end_timestamp=2**62
        )
        found = await asker.ask(Command.request(RequestCode.QUERY_MESSAGE, query))
        assert bodies(found) == [b"body 0", b"body 2", b"body 3"]
        for number, place in enumerate(places):
            view = ViewMessageRequestHeader(offset=place)
            seen = await asker.ask(Command.request(RequestCode.VIEW_MESSAGE_BY_ID, view))
            retry = ConsumerSendMsgBackRequestHeader(offset=place, group="g", delay_level=1)
            sent = await asker.ask(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, retry))
            if number == 1:
                assert (seen.code, sent.code) == (1, 1)
                assert sent.remark == f"look message by offset failed, {place}"
            else:
                assert (seen.code, bodies(seen)) == (0, [b"body %d" % number])
                assert sent.code == 0
        assert again.store.stats.damaged_messages == 1


async def test_a_damaged_delayed_message_delays_no_other(make_broker: Any, connect: Any) -> None:
    broker = make_broker(message_delay_level="1s")
    await broker.start()
    sender = await connect(broker)
    for number in range(5):
        await sender.send(body=b"%d" % number, properties="DELAY\x011")
    place = place_of(broker, 0, 2, SCHEDULE_TOPIC)
    await broker.stop()
    flip_in(log_file(broker), place + HEAD_BYTES_V4)
    async with make_broker(message_delay_level="1s") as again:
        asker = await connect(again)
        got: list[bytes] = []
        async with asyncio.timeout(30 + 2 * RETRY_MS / 1000):
            while len(got) < 4:
                reply = await asker.pull(
                    queue_offset=len(got), sys_flag=6, suspend_timeout_millis=3000
                )
                got += bodies(reply) if reply.code == 0 else []
        assert got == [b"0", b"1", b"3", b"4"]
        assert again.store.queries.max_offset("T", 0) == 4


async def test_damaged_messages_are_logged_counted_and_reported_by_the_doctor(
    cluster: Cluster,
) -> None:
    await fill(cluster)
    broker = cluster.brokers["broker-a"]
    place = place_of(broker, 1, 5)
    await cluster.stop()
    flip_in(log_file(broker), place + HEAD_BYTES_V4)
    broker = await cluster.start()
    registry = CollectorRegistry()
    registry.register(MetricsPage([], [broker], RequestTimes(), LoopMonitor().stalls))
    assert b"pocketmq_damaged_messages_total 0.0" in generate_latest(registry)
    asker = Client()
    try:
        asker.connection = await asker.pool.get(f"127.0.0.1:{broker.port}")
        with capture_logs() as logs:
            for _ in range(3):
                assert len(bodies(await asker.pull(queue_id=1, max_msg_nums=10))) == 9
    finally:
        await asker.pool.close()
    (logged,) = [log for log in logs if log["log_level"] == "error"]
    assert (logged["topic"], logged["queue"], logged["offset"], logged["place"]) == (
        "T",
        1,
        5,
        place,
    )
    assert "has CRC" in logged["reason"]
    assert b"pocketmq_damaged_messages_total 1.0" in generate_latest(registry)
    case = Case(name_servers=[cluster.nameserver])
    findings = await asyncio.to_thread(lambda: list(examine(case)))
    (finding,) = [finding for finding in findings if finding.check == "damage"]
    assert "broker-a does not deliver damaged messages: 1" in finding.found
    assert f"pocketmq store verify {broker.store.config.root}" in finding.remedy


# --- damaged entries of consume queues


def damage_entries(broker: Broker, numbers: Sequence[int]) -> None:
    """Damage entries of T's first queue as a disk might."""
    (path,) = (broker.store.paths.consume_queues / "T" / "0").iterdir()
    damaged = (
        (0, 0, 0),
        (0, -1, 0),
        (1 << 40, 200, 0),
        (place_of(broker, 0, 0), 0, 0),
    )
    with path.open("r+b") as file:
        for at, number in enumerate(numbers):
            file.seek(number * ENTRY.size)
            file.write(ENTRY.pack(*damaged[at % len(damaged)]))


@pytest.mark.parametrize("serialize", [SerializeType.JSON, SerializeType.ROCKETMQ])
@pytest.mark.parametrize("subscription", ["*", "a || b"])
async def test_a_pull_gets_the_messages_of_damaged_entries(
    make_broker: Any, connect: Any, serialize: SerializeType, subscription: str
) -> None:
    async with make_broker() as broker:
        asker: Client = await connect(broker)
        for number in range(50):
            await asker.send(body=b"%d" % number, properties=f"TAGS\x01{'ab'[number % 2]}\x02")
        for damaged in ((3,), (3, 4, 9, 20, 21, 49), range(50)):
            damage_entries(broker, damaged)
            got: list[bytes] = []
            while len(got) < 50:
                command = pull_command("T", queue_offset=len(got), subscription=subscription)
                reply = await asker.ask(replace(command, serialize=serialize))
                got += bodies(reply)
                assert reply.fields["nextBeginOffset"] == str(len(got))
            assert got == [b"%d" % number for number in range(50)]
        assert broker.store.stats.damaged_messages == 0


async def test_a_parked_pull_does_not_search_the_log_on_the_loop(
    make_broker: Any, connect: Any
) -> None:
    async with make_broker() as broker:
        asker: Client = await connect(broker)
        sender: Client = await connect(broker)
        await sender.send(body=b"first")
        held = await asker.hold()
        arrived = broker.store.dispatcher.on_arrival

        def damage(*arrival: Any) -> None:
            arrived(*arrival)
            damage_entries(broker, [1])

        broker.store.dispatcher.on_arrival = damage
        await sender.send(body=b"second")
        reply = await held
        assert (reply.code, reply.fields["nextBeginOffset"]) == (
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            "1",
        )
        assert bodies(await asker.pull(queue_offset=1)) == [b"second"]


async def test_damaged_entries_are_logged_counted_and_reported_by_the_doctor(
    cluster: Cluster,
) -> None:
    await fill(cluster)
    broker = cluster.brokers["broker-a"]
    flip_in(log_file(broker), place_of(broker, 0, 8) + HEAD_BYTES_V4)
    damage_entries(broker, [4, 8])
    asker = Client()
    try:
        asker.connection = await asker.pool.get(f"127.0.0.1:{broker.port}")
        with capture_logs() as logs:
            for offset in (0, 9, 0):
                got = bodies(await asker.pull(queue_offset=offset, max_msg_nums=8))
                assert got == [body_of(0, offset + number) for number in range(8)]
                assert bodies(await asker.pull(queue_offset=8, max_msg_nums=1)) == [body_of(0, 9)]
    finally:
        await asker.pool.close()
    logged = [(log["log_level"], log["topic"], log["queue"], log["offset"]) for log in logs]
    assert logged == [("warning", "T", 0, 4), ("error", "T", 0, 8)]
    registry = CollectorRegistry()
    registry.register(MetricsPage([], [broker], RequestTimes(), LoopMonitor().stalls))
    page = generate_latest(registry)
    assert b"pocketmq_damaged_messages_total 1.0" in page
    assert b"pocketmq_restored_entries_total 1.0" in page
    case = Case(name_servers=[cluster.nameserver])
    findings = await asyncio.to_thread(lambda: list(examine(case)))
    found = [finding.found for finding in findings if finding.check == "damage"]
    assert found == [
        "broker-a has restored damaged entries of consume queues from the log: 1",
        "broker-a does not deliver damaged messages: 1",
    ]


async def test_delayed_messages_with_damaged_entries_are_delivered_when_due(
    make_broker: Any, connect: Any
) -> None:
    async with make_broker(message_delay_level="1s 2s") as broker:
        asker = await connect(broker)
        for number in range(5):
            await asker.send(body=b"%d" % number, properties="DELAY\x012")
        (path,) = (broker.store.paths.consume_queues / SCHEDULE_TOPIC / "1").iterdir()
        with path.open("r+b") as file:
            file.seek(ENTRY.size)
            file.write(bytes(3 * ENTRY.size))
        got: list[RecordView] = []
        async with asyncio.timeout(30):
            while len(got) < 5:
                reply = await asker.pull(
                    queue_offset=len(got), sys_flag=6, suspend_timeout_millis=3000
                )
                got += iter_records(reply.body) if reply.code == 0 else []
    assert [record.body for record in got] == [b"0", b"1", b"2", b"3", b"4"]
    assert all(r.store_timestamp_ms >= r.born_timestamp_ms + 2000 for r in got)
