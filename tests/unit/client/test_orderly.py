"""Messages of a queue are handled one by one and in order, whatever happens to one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from client.consumer.options import Orderly
from client.consumer.outcome import COMMIT, ROLLBACK, OutcomeKind
from client.errors import ConsumerStopped, DeadLetter, RetryLater
from client.events import HandlerTimedOut, QueueBlocked
from remoting.protocol.queue import MessageQueue
from tests.support.virtual_time import virtual
from tests.support.waiting import until
from tests.unit.client.consuming import QUEUE, Works, making, recorder

Make = Callable[..., Works]

SOON = {"suspend": 0.0, "max_suspend": 0.0}


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[Works] = []

    def works(handler: Any, order: Orderly, **options: Any) -> Works:
        made.append(Works(handler, order=order, **options))
        return made[-1]

    yield works
    for one in made:
        await one.close()


def failing(at: int, times: int, got: list[Any], *, waits: bool = False) -> Any:
    """Return a handler that fails a number of times at one offset."""
    left = [times]

    async def handle(message: Any) -> None:
        got.append((message.offset, message.retries))
        if waits:
            await asyncio.sleep(0)
        if message.offset == at and left[0] > 0:
            left[0] -= 1
            raise ValueError(f"not {at}")

    return handle


def blocked(works: Works) -> list[Any]:
    return works.dispatcher.blocked()


async def test_messages_of_a_queue_are_handled_one_by_one_and_queues_in_parallel(make: Make):
    running: dict[str, int] = {}
    together = 0
    got: dict[str, list[int]] = {"A": [], "B": []}

    async def handle(message: Any) -> None:
        nonlocal together
        topic = message.topic
        running[topic] = running.get(topic, 0) + 1
        assert running[topic] == 1
        together = max(together, sum(running.values()))
        await asyncio.sleep(0)
        got[topic].append(message.offset)
        running[topic] -= 1

    works = make(handle, Orderly())
    helds = [works.gain(MessageQueue(name, "a", 0)) for name in ("A", "B")]
    for held in helds:
        works.put(held, *range(50))
        works.put(held, *range(50, 100))
    await until(lambda: not any(held.process_queue.messages for held in helds))
    assert got == {"A": list(range(100)), "B": list(range(100))}
    assert together == 2


async def test_a_handler_that_returns_at_once_costs_no_task(make: Make):
    tasks: set[Any] = set()

    async def handle(_: Any) -> None:
        tasks.add(asyncio.current_task())

    works = make(handle, Orderly())
    held = works.gain()
    works.put(held, *range(200))
    await until(lambda: held.process_queue.commit_point == 200)
    assert len(tasks) == 1


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after waiting"])
async def test_a_failing_message_is_retried_before_later_ones(make: Make, waits: bool):
    got: list[Any] = []
    works = make(failing(1, 2, got, waits=waits), Orderly(**SOON))
    held = works.gain()
    works.put(held, 0, 1, 2)
    await until(lambda: held.process_queue.commit_point == 3)
    assert got == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert not works.shelf.returned
    assert not held.process_queue.failures


async def test_a_waiting_handler_ends_once_its_failed_message_succeeds(make: Make):
    got: list[Any] = []
    works = make(failing(2, 1, got, waits=True), Orderly(**SOON))
    held = works.gain()
    works.put(held, *range(4))
    await until(lambda: not held.process_queue.messages)
    assert not held.handling


async def test_after_max_retries_a_message_is_dead_lettered_and_the_queue_continues(make: Make):
    got: list[Any] = []
    works = make(failing(0, 99, got), Orderly(max_retries=2, **SOON))
    held = works.gain()
    works.put(held, 0, 1)
    await until(lambda: held.process_queue.commit_point == 2)
    assert got == [(0, 0), (0, 1), (0, 2), (1, 0)]
    [(offset, outcome)] = works.shelf.returned
    assert (offset, outcome.verdict) == (0, OutcomeKind.DEAD_LETTER)


async def test_a_dead_letter_that_cannot_be_stored_blocks_the_queue_until_it_can(make: Make):
    got: list[Any] = []
    works = make(failing(0, 99, got), Orderly(max_retries=0, **SOON))
    works.shelf.works = False
    held = works.gain()
    works.put(held, 0, 1)
    await until(lambda: len(works.shelf.returned) == 2)
    assert held.process_queue.commit_point == 0
    works.shelf.works = True
    await until(lambda: held.process_queue.commit_point == 2)
    assert got[-1] == (1, 0)


async def test_on_exhausted_stop_ends_the_consumer(make: Make):
    works = make(failing(0, 99, []), Orderly(max_retries=1, on_exhausted="stop", **SOON))
    held = works.gain()
    works.put(held, 0, 1)
    async with asyncio.timeout(10):
        error = await works.failure
    assert isinstance(error, ConsumerStopped)
    assert "failed 2 times: ValueError('not 0') (queue T/a/0, group g)" in str(error)
    assert isinstance(error.__cause__, ValueError)
    assert held.process_queue.commit_point == 0


@pytest.mark.parametrize(
    "order",
    [Orderly(max_retries=1, on_exhausted="block", **SOON), Orderly(max_retries=None, **SOON)],
    ids=["block", "endless"],
)
async def test_a_queue_may_be_blocked_for_as_long_as_it_fails(
    make: Make, order: Orderly, caplog: pytest.LogCaptureFixture
):
    got: list[Any] = []
    fail, looked = failing(0, 30, got), asyncio.Event()

    async def handle(message: Any) -> None:
        if len(got) > 5:
            await looked.wait()  # without pauses 30 failures could end before the test looks
        await fail(message)

    works = make(handle, order)
    held = works.gain()
    works.put(held, 0, 1)
    await until(lambda: len(got) > 5)
    [report] = blocked(works)
    looked.set()
    assert (report.topic, report.queue_id, report.offset, report.msg_id) == ("T", 0, 0, "0")
    assert (report.since_ms, report.error) == (42, "ValueError('not 0')")
    await until(lambda: held.process_queue.commit_point == 2)
    assert blocked(works) == []
    events = [event for event in works.events if isinstance(event, QueueBlocked)]
    assert [event.failures for event in events] == list(range(3, 31))
    assert works.events.count("blocked") == 1
    assert "queue is blocked by a failing message: group=g queue=T/a/0 offset=0" in caplog.text


def test_pauses_double_up_to_the_maximum():
    order = Orderly(suspend=1.0, max_suspend=30.0)
    assert [order.rest(n) for n in (1, 2, 3, 5, 6, 7, 10**6)] == [1, 2, 4, 16, 30, 30, 30]


@virtual
async def test_retry_later_sets_the_pause_of_the_queue():
    times: list[float] = []

    async def handle(message: Any) -> None:
        times.append(asyncio.get_running_loop().time())
        if message.retries == 0:
            raise RetryLater(7)

    async with making() as make:
        works = make(handle, order=Orderly())
        works.put(works.gain(), 0)
        await asyncio.sleep(60)
    assert times[1] - times[0] == pytest.approx(7.0)


async def test_a_dead_letter_is_sent_at_once(make: Make):
    async def handle(message: Any) -> None:
        if message.offset == 0:
            raise DeadLetter("bad")

    works = make(handle, Orderly())
    held = works.gain()
    works.put(held, 0, 1)
    await until(lambda: held.process_queue.commit_point == 2)
    assert [outcome.reason for _, outcome in works.shelf.returned] == ["bad"]


async def test_without_its_lock_no_handler_starts(make: Make):
    got: list[int] = []
    works = make(recorder(got), Orderly())
    held = works.gain()
    works.locks[QUEUE] = False
    works.put(held, 0, 1)
    await asyncio.sleep(0.01)
    assert got == []
    works.locks[QUEUE] = True
    await until(lambda: got == [0, 1])


async def test_a_lock_lost_during_a_handler_stops_the_next_message(make: Make):
    got: list[int] = []
    release, started = asyncio.Event(), asyncio.Event()

    async def handle(message: Any) -> None:
        got.append(message.offset)
        started.set()
        await release.wait()

    works = make(handle, Orderly())
    held = works.gain()
    works.put(held, 0, 1, 2)
    await started.wait()
    works.locks[QUEUE] = False
    held.lock_changed(False)
    release.set()
    await until(lambda: held.process_queue.commit_point == 1)
    await held.commit()
    assert works.shelf.offsets == {}, "who has no lock must not move the group's offset"
    assert got == [0]
    works.locks[QUEUE] = True
    held.lock_changed(True)
    await until(lambda: got == [0, 1, 2])
    await until(lambda: held.process_queue.commit_point == 3)
    await held.commit()
    assert works.shelf.offsets == {QUEUE: 3}


async def test_with_its_lock_back_it_continues_at_the_committed_offset(make: Make):
    got: list[int] = []
    works = make(recorder(got), Orderly())
    held = works.gain()
    works.locks[QUEUE] = False
    held.lock_changed(False)
    works.put(held, 0, 1, 2)
    works.shelf.offsets[QUEUE] = 2
    works.locks[QUEUE] = True
    held.lock_changed(True)
    await until(lambda: held.process_queue.next_pull == 2)
    works.put(held, 2, 3)
    await until(lambda: held.process_queue.commit_point == 4)
    assert got == [2, 3]


@virtual
async def test_an_iteration_forgets_its_message_when_another_member_went_further_meanwhile():
    async with making() as make:
        works = make(None, order=Orderly(), consume_timeout=10)
        held = works.gain()
        works.put(held, 0, 1)
        assert works.dispatcher.next_message()
        works.locks[QUEUE] = False
        held.lock_changed(False)
        works.shelf.offsets[QUEUE] = 2
        await asyncio.sleep(5)
        works.locks[QUEUE] = True
        held.lock_changed(True)
        await asyncio.sleep(1)
        works.put(held, 2, 3)
        message = works.dispatcher.next_message()
        assert message is not None
        assert message.offset == 2
        await asyncio.sleep(5)
        assert any(isinstance(event, HandlerTimedOut) for event in works.events)
        assert works.dispatcher.next_message() is None, "the late first one doesn't free the queue"
        message.ack()
        assert held.process_queue.commit_point == 3
        assert not held.handling


@virtual
async def test_a_handler_that_never_returns_is_cancelled_and_its_message_retried_in_order():
    got: list[tuple[int, int]] = []

    async def handle(message: Any) -> None:
        got.append((message.offset, message.retries))
        if message.offset == 0 and message.retries == 0:
            await asyncio.Event().wait()

    async with making() as make:
        works = make(handle, order=Orderly(**SOON), consume_timeout=0.02)
        held = works.gain()
        works.put(held, 0, 1)
        await asyncio.sleep(60)
        assert held.process_queue.commit_point == 2
    assert got == [(0, 0), (0, 1), (1, 0)]
    assert any(isinstance(event, HandlerTimedOut) for event in works.events)


async def test_a_failed_batch_is_retried_without_its_settled_messages(make: Make):
    batches: list[list[int]] = []

    async def handle(messages: list[Any]) -> None:
        batches.append([message.offset for message in messages])
        if len(batches) == 1:
            messages[0].ack()
            raise ValueError

    works = make(handle, Orderly(**SOON), batch_size=3)
    held = works.gain()
    works.put(held, 0, 1, 2, 3)
    await until(lambda: held.process_queue.commit_point == 4)
    assert batches == [[0, 1, 2], [1], [2], [3]]


async def test_a_handler_may_commit_and_roll_back_manually(make: Make):
    got: list[int] = []
    points: list[int | None] = []
    rolled_back = False

    async def handle(message: Any) -> Any:
        nonlocal rolled_back
        got.append(message.offset)
        points.append(held.process_queue.commit_point)
        if message.offset == 1:
            return COMMIT
        if message.offset == 4 and not rolled_back:
            rolled_back = True
            return ROLLBACK
        return COMMIT if message.offset == 5 else None

    works = make(handle, Orderly(auto_commit=False, **SOON))
    held = works.gain()
    works.put(held, *range(6))
    await until(lambda: held.process_queue.commit_point == 6)
    assert got == [0, 1, 2, 3, 4, 2, 3, 4, 5]
    assert points == [0, 0, 2, 2, 2, 2, 2, 2, 2]


async def test_a_handler_that_never_commits_is_reported_when_the_queue_is_full(
    make: Make, caplog: pytest.LogCaptureFixture
):
    works = make(recorder([]), Orderly(auto_commit=False), prefetch_messages=3)
    held = works.gain()
    works.put(held, 0, 1, 2)
    await until(lambda: "queue waits for a commit" in caplog.text)
    assert held.process_queue.commit_point == 0


async def test_a_lost_queue_returns_messages_that_were_not_handled(make: Make):
    release, started = asyncio.Event(), asyncio.Event()
    got: list[int] = []

    async def handle(message: Any) -> None:
        got.append(message.offset)
        started.set()
        await release.wait()

    works = make(handle, Orderly())
    held = works.gain()
    works.put(held, 0, 1, 2)
    await started.wait()
    held.drain()
    release.set()
    loop = asyncio.get_running_loop()
    assert await held.until(lambda: not held.handling, loop.time() + 10)
    assert (held.process_queue.commit_point, got) == (1, [0])


async def test_waiting_is_not_blocking(make: Make):
    async def handle(_: Any) -> None:
        await asyncio.sleep(0.2)

    works = make(handle, Orderly(), blocked_loop=0.4)
    held = works.gain()
    works.put(held, *range(4))
    await until(lambda: held.process_queue.commit_point == 4)
    assert works.events == []
