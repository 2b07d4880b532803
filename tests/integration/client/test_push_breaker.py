"""A push consumer whose handler has a bug, at our broker."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import client
from client import blocking
from tests.integration.client.pushing import Bodies, consumer, fill, lag
from tests.support.waiting import until


async def dead_letters(cluster: Any) -> int:
    async with client.Admin(cluster.nameserver) as admin:
        return len(await admin.dead_letters("g", limit=1000))


@pytest.mark.parametrize(
    "options", [{"max_retries": 0}, {"order": client.Orderly(max_retries=0)}], ids=str
)
async def test_a_bug_pauses_consumption_and_loses_no_message(
    cluster: Any, producer: Any, options: dict[str, Any]
):
    await fill(producer, 200)
    events: list[Any] = []
    done: Bodies = []
    broken = True

    async def handle(message: Any) -> None:
        await asyncio.sleep(0)
        if broken:
            raise KeyError("amount")
        done.append(message.body)

    made = consumer(cluster, handle, on_event=events.append, **options)
    async with made:
        await until(lambda: made.paused)
        assert made.paused in events
        assert made.paused is not None
        assert made.paused.failures == 20
    assert await dead_letters(cluster) == 19
    assert await lag(cluster) >= 181

    # Offsets stay, so another run gets all that wasn't put aside.
    again = consumer(cluster, handle, **options)
    async with again:
        await until(lambda: again.paused)
        broken = False
        again.resume()
        assert again.paused is None
        await until(lambda: len(set(done)) == 200 - 2 * 19)
    assert await lag(cluster) == 0
    assert await dead_letters(cluster) == 38


async def test_without_a_breaker_consumption_continues(cluster: Any, producer: Any):
    await fill(producer, 50)
    events: list[Any] = []

    async def handle(_: Any) -> None:
        raise KeyError("amount")

    def dead() -> int:
        return sum(isinstance(event, client.MessageDeadLettered) for event in events)

    options: Any = {"max_retries": 0, "breaker": None}
    async with consumer(cluster, handle, on_event=events.append, **options) as made:
        await until(lambda: dead() == 50)
        assert made.paused is None


async def test_iteration_is_paused_and_resumed_too(cluster: Any, producer: Any):
    await fill(producer, 10)
    paused = asyncio.Event()
    done: Bodies = []

    def tell(event: client.Event) -> None:
        if isinstance(event, client.ConsumptionPaused):
            paused.set()

    async with consumer(cluster, breaker=3, on_event=tell) as made:

        async def iterate() -> None:
            async for message in made:
                async with message:
                    if not paused.is_set():
                        raise KeyError("amount")
                    done.append(message.body)
                if len(done) == 8:
                    return

        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(iterate())
            await paused.wait()
            assert not done
            made.resume()
    assert len(set(done)) == 8


async def test_the_blocking_consumer_has_the_reason_of_the_pause(cluster: Any, producer: Any):
    await fill(producer, 30)
    done: Bodies = []
    paused, mended, all_done = threading.Event(), threading.Event(), threading.Event()

    def handle(message: Any) -> None:
        if not mended.is_set():
            raise KeyError("amount")
        done.append(message.body)
        if len(done) == 30 - 19:
            all_done.set()

    def tell(event: client.Event) -> None:
        if isinstance(event, client.ConsumptionPaused):
            paused.set()

    def work() -> None:
        with blocking.PushConsumer(
            cluster.nameserver,
            group="g",
            subscribe={"T": "*"},
            handler=handle,
            start_from=client.FIRST,
            max_retries=0,
            on_event=tell,
        ) as made:
            assert paused.wait(10)
            assert made.paused is not None
            assert "KeyError at test_push_breaker.py" in made.paused.reason
            mended.set()
            made.resume()
            assert made.paused is None
            assert all_done.wait(10)

    await asyncio.to_thread(work)
    assert await lag(cluster) == 0
