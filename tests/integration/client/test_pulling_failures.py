"""A pull consumer when something fails, is refused or ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import client
from client.events import QueueResumed, QueueWaiting
from remoting.connection import Connection
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from tests.integration.client.conftest import lose_offsets
from tests.integration.client.pulling import FaultyStrategy, fill, queue, take
from tests.support.waiting import until


async def test_reading_continues_when_the_broker_is_back(cluster: Any, producer: Any):
    await fill(producer, 10)
    events: list[client.Event] = []
    async with client.PullConsumer(
        cluster.nameserver, group="g", on_event=events.append
    ) as consumer:
        queues = await consumer.queues("T")
        consumer.assign(queues)
        await take(consumer, 10)
        await consumer.commit()
        await cluster.stop()
        assert await consumer.get_many(1, timeout=0.5) == []
        await cluster.start()
        async with client.Producer(cluster.nameserver) as again:
            await again.send("T", b"back")
        assert await take(consumer, 1) == [b"back"]
        await until(lambda: sum(isinstance(e, QueueResumed) for e in events) == len(queues))
        assert {e.queue for e in events if isinstance(e, QueueWaiting)} == set(queues)
        await consumer.commit()


async def test_an_offset_that_a_killed_broker_has_lost_is_committed_again(
    cluster: Any, producer: Any, tmp_path: Path
):
    await fill(producer, 10)
    async with client.PullConsumer(
        cluster.nameserver, group="g", auto_commit=True, auto_commit_period=0.1
    ) as consumer:
        queues = await consumer.queues("T")
        consumer.assign(queues)
        await take(consumer, 10)
        assert await consumer.get_many(1, timeout=0.1) == []

        async def is_committed() -> bool:
            committed = await consumer.committed()
            return sum(offset or 0 for offset in committed.values()) == 10

        await until(is_committed)
        await cluster.stop()
        lose_offsets(tmp_path)
        await cluster.start()
        await until(is_committed)


async def test_reading_continues_after_the_name_server_restarts(cluster: Any, producer: Any):
    async with client.PullConsumer(
        cluster.nameserver, group="g", route_refresh_period=0.05
    ) as consumer:
        consumer.assign(await consumer.queues("T"))
        await cluster.restart_name_server()
        async with client.Admin(cluster.nameserver) as admin:

            async def is_registered() -> bool:
                return "T" in await admin.topics()

            await until(is_registered)
        await producer.send("T", b"x")
        assert await take(consumer, 1) == [b"x"]


async def test_an_unknown_topic_is_not_found(cluster: Any):
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        with pytest.raises(client.TopicNotFound):
            await consumer.queues("Nowhere")
        with pytest.raises(client.UsageError):
            await consumer.queues("no/topic")


async def test_a_refusal_is_raised_and_reading_continues_when_it_is_lifted(
    cluster: Any, producer: Any
):
    await fill(producer, 4)
    async with client.Admin(cluster.nameserver) as admin:
        await admin.create_group("g", consume=False)
        async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
            consumer.assign(await consumer.queues("T"))
            with pytest.raises(client.NoPermission, match="no permission"):
                await consumer.get_many(10, timeout=5)
            await admin.create_group("g", consume=True)
            got: list[bytes] = []
            async with asyncio.timeout(10):
                while len(got) < 4:
                    try:
                        got += [m.body for m in await consumer.get_many(10)]
                    except client.NoPermission:
                        continue


async def test_the_failure_of_a_background_task_is_raised_by_every_method(
    cluster: Any, producer: Any
):
    await producer.send("T", b"x")

    async def read() -> None:
        strategy = FaultyStrategy()
        async with client.PullConsumer(
            cluster.nameserver, group="g", strategy=strategy
        ) as consumer:
            await consumer.subscribe("T")
            strategy.broken = True
            await consumer.subscribe("T", "paid")
            with pytest.raises(client.ConsumerStopped, match="a fault of the application"):
                await consumer.get_many(1, timeout=5)
            with pytest.raises(client.ConsumerStopped):
                await anext(consumer)

    with pytest.raises(client.ConsumerStopped) as caught:
        await read()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_waiting_reads_fail_when_the_consumer_closes(cluster: Any):
    consumer = client.PullConsumer(cluster.nameserver, group="g")
    await consumer.start()
    consumer.assign([queue(0)])
    waiting = asyncio.create_task(consumer.get_many(1))
    await asyncio.sleep(0.05)
    await consumer.close()
    with pytest.raises(client.ConsumerStopped, match="closed"):
        await waiting
    with pytest.raises(client.ConsumerStopped):
        await consumer.get_many(1)
    with pytest.raises(client.UsageError):
        consumer.assign([queue(0)])
    await consumer.close()


async def test_a_fault_in_on_event_does_not_stop_the_reading(cluster: Any, producer: Any):
    def faulty(event: client.Event) -> None:
        raise ZeroDivisionError

    async with client.PullConsumer(cluster.nameserver, group="g", on_event=faulty) as consumer:
        consumer.assign([queue(0)])
        await consumer.seek(queue(0), 500)
        await producer.send("T", b"x", queue=queue(0))
        await consumer.seek(queue(0), client.BEGIN)
        assert await take(consumer, 1) == [b"x"]


@pytest.mark.parametrize("moves", [(0, 0), (7, 0)], ids=["same offset", "to and fro"])
async def test_a_broker_that_moves_the_offset_for_ever_is_asked_more_and_more_rarely(
    fakes: Any, moves: tuple[int, int]
):
    [fake] = await fakes(queues=1)

    def move(command: Command, _: Connection) -> Command:
        wanted = command.read(PullMessageRequestHeader).queue_offset
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0,
            next_begin_offset=moves[wanted > 0],
            min_offset=0,
            max_offset=9,
        )
        return command.reply(ResponseCode.PULL_OFFSET_MOVED, "moved", header=header)

    fake.on(RequestCode.PULL_MESSAGE, answer=move)
    loop = asyncio.get_running_loop()
    async with client.PullConsumer(fake.address, group="g") as consumer:
        [queue] = await consumer.queues("T")
        consumer.assign([queue])
        await consumer.seek(queue, 0)
        await until(lambda: fake.count(RequestCode.PULL_MESSAGE) > 0)
        began = loop.time()
        await until(lambda: fake.count(RequestCode.PULL_MESSAGE) > 6)
    # The shortest pauses between the second and the sixth pull are 50, 100, 200 and 250 ms.
    assert loop.time() - began > 0.5
