"""RocketMQ 5's broker and tool: resets that members learn by a pull, and searches by time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import client
from pocketmq import testing
from remoting.connection import Connection
from remoting.pool import ConnectionPool
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import OffsetResponseHeader, SearchOffsetRequestHeader
from tests.interop.apache import Apache, mqadmin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

VERSION = "5.3.3"


@pytest.fixture(scope="module")
def there(shared_apache: Callable[[str], Apache]) -> Apache:
    """A broker of 5.3.3."""
    return shared_apache(VERSION)


async def send(nameserver: str, topic: str, bodies: list[bytes]) -> client.MessageQueue:
    """Send to the only queue of a topic, which is created. Returns the queue."""
    async with client.Admin(nameserver) as admin:
        await admin.create_topic(topic, queues=1)
        (queue,) = await admin.queues(topic)
    async with client.Producer(nameserver) as producer:
        await producer.send_many([client.Message(topic, body, queue=queue) for body in bodies])
    return queue


def reset(there: Apache, home: Path, group: str, topic: str, *options: str) -> str:
    """Reset with the tool of 5.3.3; return what it prints."""
    words = ("resetOffsetByTime", "-g", group, "-t", topic, *options)
    return mqadmin(VERSION, home, there.nameserver, *words)


async def test_a_running_group_drops_what_it_holds(there: Apache, tmp_path: Path) -> None:
    topic, group = "skipped", "skipping"
    queue = await send(there.nameserver, topic, [b"%d" % number for number in range(40)])
    bodies: list[bytes] = []
    begun, gate, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(message: client.ReceivedMessage[bytes]) -> None:
        bodies.append(message.body)
        begun.set()
        if message.body == b"last":
            ended.set()
        await gate.wait()

    def told(event: client.Event) -> None:
        if isinstance(event, client.QueueLost) and begun.is_set():
            gate.set()

    async with client.PushConsumer(
        there.nameserver,
        group=group,
        subscribe={topic: "*"},
        handler=handle,
        start_from=client.FIRST,
        concurrency=1,
        handover_timeout=0.1,
        on_event=told,
    ):
        await asyncio.wait_for(begun.wait(), 30)
        printed = await asyncio.to_thread(reset, there, tmp_path, group, topic, "-s", "now")
        await send(there.nameserver, topic, [b"last"])
        await asyncio.wait_for(ended.wait(), 60)
        assert bodies == [b"0", b"last"], printed
    async with client.Admin(there.nameserver) as admin:
        assert (await admin.committed(group, topic))[queue] == 41


async def test_ours_replaces_a_reset_that_no_member_has_noticed(
    there: Apache, tmp_path: Path
) -> None:
    topic, group = "twice", "reset-twice"
    queue = await send(there.nameserver, topic, [b"%d" % number for number in range(5)])
    async with client.Admin(there.nameserver) as admin:
        await admin.create_group(group)
        await admin.commit(group, {queue: 1})
        await asyncio.to_thread(reset, there, tmp_path, group, topic, "-s", "now")
        plan = await admin.reset(group, topic, to=3)
        assert [step.after for step in plan.steps] == [3]
        assert (await admin.committed(group, topic))[queue] == 3
    async with client.PullConsumer(there.nameserver, group=group) as consumer:
        consumer.assign([queue])
        found = await consumer.get_many(2, timeout=60)
    assert found[0].body == b"3"


async def searched(nameserver: str, queue: client.MessageQueue, ms: int, boundary: str) -> int:
    """Ask the queue's broker for the offset at a time."""
    async with client.Admin(nameserver) as admin:
        (broker,) = await admin.brokers()
    header = SearchOffsetRequestHeader(
        topic=queue.topic, queue_id=queue.queue_id, timestamp=ms, boundary_type=boundary
    )
    async with ConnectionPool() as pool:
        connection: Connection = await pool.get(broker.address)
        answer = await connection.request(
            Command.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header), timeout=10
        )
    return answer.read(OffsetResponseHeader).offset


async def search(nameserver: str) -> None:
    """Compare the answers to searches with what the messages' times make of them."""
    topic = "searched"
    for bodies in ([b"0"], [b"1", b"2", b"3"], [b"4"]):
        queue = await send(nameserver, topic, bodies)
        await asyncio.sleep(0.05)  # so that their times differ
    async with client.PullConsumer(
        nameserver, group="searching", start_from=client.FIRST
    ) as consumer:
        consumer.assign([queue])
        found: list[client.ReceivedMessage[bytes]] = []
        while len(found) < 5:
            found += await consumer.get_many(5, timeout=30)
    times = [message.store_timestamp_ms for message in found]
    for ms in {time + step for time in times for step in (-1000, -1, 0, 1, 1000)}:
        first_not_before = sum(time < ms for time in times)
        last_not_after = max(sum(time <= ms for time in times) - 1, 0)
        assert await searched(nameserver, queue, ms, "LOWER") == first_not_before
        assert await searched(nameserver, queue, ms, "UPPER") == last_not_after


async def test_a_search_by_time_has_the_boundary_that_is_asked_for(there: Apache) -> None:
    await search(there.nameserver)
    with testing.broker() as server:
        await search(server.nameserver)
