"""How messages are passed to concurrent handlers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from client.consumer.options import Orderly
from client.events import LoopBlocked
from client.interceptors import Interceptor
from remoting.protocol.queue import MessageQueue
from tests.support.waiting import until
from tests.unit.client.consuming import Works, making, recorder

Make = Callable[..., Works]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with making() as works:
        yield works


async def test_a_handler_that_returns_at_once_costs_no_task(make: Make):
    tasks: set[Any] = set()
    got: list[int] = []

    async def handle(message: Any) -> None:
        tasks.add(asyncio.current_task())
        got.append(message.offset)

    works = make(handle)
    held = works.gain()
    works.put(held, *range(200))
    await until(lambda: held.process_queue.messages == 0)
    assert got == list(range(200))
    assert len(tasks) == 1
    assert held.process_queue.commit_point == 200


async def test_as_many_handlers_wait_as_concurrency_allows(make: Make):
    running, most, release = 0, 0, asyncio.Event()

    async def handle(_: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1

    works = make(handle, concurrency=7)
    held = works.gain()
    works.put(held, *range(20))
    await until(lambda: running == 7)
    release.set()
    await until(lambda: held.process_queue.messages == 0)
    assert most == 7


async def test_the_commit_point_waits_for_the_slowest(make: Make):
    release = asyncio.Event()

    async def handle(message: Any) -> None:
        if message.offset == 3:
            await release.wait()

    works = make(handle)
    held = works.gain()
    works.put(held, *range(10))
    await until(lambda: held.process_queue.messages == 1)
    assert held.process_queue.commit_point == 3
    release.set()
    await until(lambda: held.process_queue.commit_point == 10)


async def test_timeouts_and_task_groups_work_within_a_handler(make: Make):
    seen: list[str] = []

    async def handle(message: Any) -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            seen.append("timed out")
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        seen.append("grouped")

    works = make(handle)
    held = works.gain()
    works.put(held, 0)
    await until(lambda: held.process_queue.messages == 0)
    assert seen == ["timed out", "grouped"]


async def test_a_batch_handler_gets_lists_of_one_queue(make: Make):
    batches: list[list[int]] = []

    async def handle(messages: list[Any]) -> None:
        batches.append([message.offset for message in messages])

    works = make(handle, batch_size=32)
    held = works.gain()
    works.put(held, *range(70))
    await until(lambda: held.process_queue.messages == 0)
    assert [len(batch) for batch in batches] == [32, 32, 6]


async def test_changing_the_list_changes_nothing(make: Make):
    async def handle(messages: list[Any]) -> None:
        messages.clear()

    works = make(handle, batch_size=3)
    held = works.gain()
    works.put(held, 0, 1, 2)
    await until(lambda: held.process_queue.commit_point == 3)


async def test_a_plain_function_runs_in_a_thread(make: Make):
    threads: set[int] = set()

    def handle(message: Any) -> None:
        threads.add(threading.get_ident())
        if message.offset == 1:
            raise ValueError
        if message.offset == 2:
            message.dead_letter("no")

    works = make(handle, concurrency=3)
    held = works.gain()
    works.put(held, *range(10))
    await until(lambda: held.process_queue.messages == 0)
    assert threading.get_ident() not in threads
    assert len(threads) <= 3
    assert sorted(works.returned()) == [1, 2]


async def test_an_awaitable_returned_by_a_plain_function_is_awaited(make: Make):
    got: list[int] = []
    handle = recorder(got)

    def give(message: Any) -> object:
        return handle(message)

    works = make(give)
    held = works.gain()
    works.put(held, 0, 1)
    await until(lambda: held.process_queue.messages == 0)
    assert sorted(got) == [0, 1]


async def test_a_handler_that_blocks_the_loop_is_reported(
    make: Make, caplog: pytest.LogCaptureFixture
):
    got: list[int] = []
    works = make(recorder(got), blocked_loop=0.0)
    held = works.gain()
    works.put(held, 0)
    await until(lambda: held.process_queue.messages == 0)
    assert isinstance(works.events[0], LoopBlocked)
    assert "make it a plain def" in caplog.text


async def test_queues_take_turns(make: Make):
    got: list[str] = []

    async def handle(message: Any) -> None:
        got.append(message.topic)

    works = make(handle)
    helds = [works.gain(MessageQueue(name, "a", 0)) for name in ("A", "B")]
    for held in helds:
        works.put(held, *range(64))
    await until(lambda: len(got) == 128)
    assert set(got[:64]) == {"A", "B"}


async def test_handlers_that_never_wait_let_other_tasks_run(make: Make):
    stop, beats = False, 0
    works: Works

    async def handle(message: Any) -> None:
        if message.offset % 500 == 499 and not stop:
            works.put(held, *range(message.offset + 1, message.offset + 501))

    works = make(handle)
    held = works.gain()
    works.put(held, *range(500))
    for beats in range(5):  # noqa: B007 - how often it came to the turn is what counts
        await asyncio.sleep(0)
    stop = True
    await until(lambda: held.process_queue.messages == 0)
    assert beats == 4


async def test_freed_capacity_wakes_the_fetcher(make: Make):
    release, started = asyncio.Event(), asyncio.Event()

    async def handle(_: Any) -> None:
        started.set()
        await release.wait()

    works = make(handle, prefetch_messages=2)
    held = works.gain()
    works.put(held, 0, 1)
    await started.wait()
    assert works.alone.asked == 0
    release.set()
    await until(lambda: works.alone.asked == 1)


async def test_a_lost_queue_lets_its_handler_finish(make: Make):
    release, started = asyncio.Event(), asyncio.Event()

    async def handle(_: Any) -> None:
        started.set()
        await release.wait()

    works = make(handle, concurrency=1)
    held = works.gain()
    works.put(held, 0, 1, 2)
    await started.wait()
    held.drain()
    loop = asyncio.get_running_loop()
    waiting = asyncio.create_task(held.until(lambda: not held.handling, loop.time() + 10))
    release.set()
    assert await waiting
    assert held.process_queue.commit_point == 1


async def test_a_handler_that_outlives_its_queue_no_longer_counts(make: Make):
    started = asyncio.Event()

    async def handle(message: Any) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            message.ack()

    works = make(handle, concurrency=1)
    held = works.gain()
    works.put(held, 0)
    await started.wait()
    await works.dispatcher.lost(held.queue, deadline=asyncio.get_running_loop().time())
    await asyncio.sleep(0)
    assert not held.handling
    assert not works.shelf.returned
    other = works.gain()
    works.put(other, 0)


async def test_a_suspended_consumer_starts_no_handler_until_resumed(make: Make):
    got: list[int] = []
    works = make(recorder(got))
    held = works.gain()
    works.queues.suspend()
    works.put(held, 0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert got == []
    works.queues.resume()
    await until(lambda: got == [0])


@pytest.mark.parametrize("order", [None, Orderly()], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "waiting"])
async def test_a_handler_may_suspend_its_consumer(make: Make, waits: bool, order: Any):
    got: list[int] = []

    async def handle(message: Any) -> None:
        got.append(message.offset)
        if waits:
            await asyncio.sleep(0)
        if message.offset == 1:
            works.queues.suspend()

    works = make(handle, order=order, concurrency=1)
    held = works.gain()
    works.put(held, *range(4))
    await until(lambda: held.process_queue.commit_point == 2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert got == [0, 1]
    works.queues.resume()
    await until(lambda: held.process_queue.commit_point == 4)
    assert got == [0, 1, 2, 3]


async def test_interceptors_wrap_the_handler_the_first_outermost(make: Make):
    seen: list[Any] = []

    class Around(Interceptor):
        def __init__(self, name: str) -> None:
            self.name = name

        async def handle(self, messages: Any, proceed: Any) -> None:
            seen.append((self.name, [message.offset for message in messages]))
            try:
                await proceed()
            except ValueError:
                seen.append((self.name, "failed"))
                raise

    async def handle(message: Any) -> None:
        seen.append("handler")
        if message.offset == 1:
            raise ValueError

    works = make(handle, interceptors=[Around("a"), Around("b")])
    held = works.gain()
    works.put(held, 0)
    await until(lambda: held.process_queue.messages == 0)
    assert seen == [("a", [0]), ("b", [0]), "handler"]
    seen.clear()
    works.put(held, 1)
    await until(lambda: held.process_queue.messages == 0)
    assert seen[3:] == [("b", "failed"), ("a", "failed")]
    assert works.returned() == [1]


async def test_an_interceptor_may_skip_the_handler(make: Make):
    class Skip(Interceptor):
        async def handle(self, messages: Any, proceed: Any) -> None:
            pass

    got: list[int] = []
    works = make(recorder(got), interceptors=[Skip()])
    held = works.gain()
    works.put(held, 0)
    await until(lambda: held.process_queue.commit_point == 1)
    assert got == []
