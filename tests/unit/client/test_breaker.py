"""The circuit breaker: a handler that keeps failing the same way is paused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from client.consumer.options import Orderly, PushOptions
from client.consumer.outcome import COMMIT, OutcomeKind
from client.errors import DeadLetter, RetryLater, UsageError
from client.events import ConsumptionPaused
from client.limits import BREAKER_FAILURES
from tests.support.waiting import until
from tests.unit.client.consuming import QUEUE, Works, making

Make = Callable[..., Works]

LIMIT = BREAKER_FAILURES
AT_ONCE: Any = Orderly(max_retries=0)


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with making() as works:
        yield works


class Handler:
    """Fails for every message until the test repairs it."""

    def __init__(self, waits: bool = False) -> None:
        self.waits = waits
        self.broken = True
        self.called: list[int] = []
        self.done: list[int] = []

    async def handle(self, message: Any) -> None:
        if self.waits:
            await asyncio.sleep(0)
        self.one(message)

    async def handle_list(self, messages: list[Any]) -> None:
        self.one(messages[0])
        self.done += [message.offset for message in messages[1:]]

    def one(self, message: Any) -> None:
        self.called.append(message.offset)
        if self.broken:
            raise KeyError("amount")
        self.done.append(message.offset)


async def settled(works: Works) -> None:
    """Wait until no handler runs."""
    await until(lambda: not any(held.handling for held in works.queues))


def paused(works: Works) -> list[ConsumptionPaused]:
    return [event for event in works.events if isinstance(event, ConsumptionPaused)]


@pytest.mark.parametrize("concurrency", [1, 20])
@pytest.mark.parametrize("kind", ["at once", "waiting", "thread", "orderly", "orderly waiting"])
async def test_a_handler_that_always_fails_consumes_no_queue(
    make: Make, kind: str, concurrency: int
):
    handler = Handler(waits="waiting" in kind)
    works = make(
        handler.one if kind == "thread" else handler.handle,
        concurrency=concurrency,
        order=AT_ONCE if "orderly" in kind else None,
    )
    held = works.gain()
    works.put(held, *range(100))
    await until(lambda: paused(works))
    await settled(works)
    [event] = paused(works)
    assert works.dispatcher.pool.breaker.paused is event
    assert (event.group, event.failures, type(event.error)) == ("g", LIMIT, KeyError)
    assert event.reason.startswith(f"the handler failed for {LIMIT} messages in a row with KeyErr")
    assert "test_breaker.py:" in event.reason
    # Of those in flight at the trip none was sent back; all that stay wait here in order.
    sent_back = sorted(works.returned())
    assert len(sent_back) == LIMIT - 1
    assert held.process_queue.messages == 100 - len(sent_back)
    assert held.process_queue.commit_point == min(set(range(100)) - set(sent_back))
    calls = len(handler.called)

    handler.broken = False
    works.put(held, 100)
    await asyncio.sleep(0)
    assert len(handler.called) == calls
    works.dispatcher.resume()
    assert works.dispatcher.pool.breaker.paused is None
    await until(lambda: held.process_queue.messages == 0)
    assert sorted([*handler.done, *sent_back]) == list(range(101))
    if "orderly" in kind:
        assert handler.done == list(range(LIMIT - 1, 101))
    assert len(paused(works)) == 1
    assert held.process_queue.commit_point == 101


async def test_a_message_that_stayed_counts_no_retry(make: Make):
    retries: list[int] = []

    async def handle(message: Any) -> None:
        retries.append(message.retries)
        if len(retries) == 1:
            raise ValueError

    works = make(handle, breaker=1)
    held = works.gain()
    works.put(held, 0)
    await until(lambda: paused(works))
    await settled(works)
    works.dispatcher.resume()
    await until(lambda: held.process_queue.messages == 0)
    assert retries == [0, 0]
    assert not works.returned()


@pytest.mark.parametrize("order", [None, AT_ONCE], ids=["concurrent", "orderly"])
async def test_a_failing_batch_counts_once(make: Make, order: Any):
    handler = Handler()
    works = make(handler.handle_list, batch_size=4, breaker=3, concurrency=1, order=order)
    held = works.gain()
    works.put(held, *range(40))
    await until(lambda: paused(works))
    await settled(works)
    assert handler.called == [0, 4, 8]
    assert works.returned() == list(range(8))
    assert held.process_queue.commit_point == 8
    handler.broken = False
    works.dispatcher.resume()
    await until(lambda: held.process_queue.messages == 0)
    assert sorted(handler.done) == list(range(8, 40))


async def test_a_handler_with_manual_commits_is_paused_too(make: Make):
    broken = True
    done: list[int] = []

    async def handle(message: Any) -> Any:
        if broken:
            raise ValueError
        done.append(message.offset)
        return COMMIT

    order = Orderly(max_retries=0, auto_commit=False)
    works = make(handle, order=order, breaker=2)
    held = works.gain()
    works.put(held, *range(4))
    await until(lambda: paused(works))
    await settled(works)
    assert works.returned() == [0]
    broken = False
    works.dispatcher.resume()
    await until(lambda: held.process_queue.messages == 0)
    assert done == [1, 2, 3]


@pytest.mark.parametrize("order", [None, AT_ONCE], ids=["concurrent", "orderly"])
async def test_iteration_pauses_too(make: Make, order: Any):
    works = make(None, order=order, breaker=3)
    held = works.gain()
    works.put(held, *range(10))
    for _ in range(3):
        message = works.dispatcher.next_message()
        assert message is not None
        async with message:
            raise ValueError("a bug")
        await settled(works)
    assert len(paused(works)) == 1
    assert works.dispatcher.next_message() is None
    assert works.returned() == [0, 1]
    works.dispatcher.resume()
    await asyncio.sleep(0)
    again = []
    while (message := works.dispatcher.next_message()) is not None:
        again.append(message.offset)
        message.ack()
    assert again == list(range(2, 10))
    assert held.process_queue.commit_point == 10


def other_line() -> None:
    raise KeyError


@pytest.mark.parametrize(
    "between",
    ["success", "other type", "other line", "retry later", "dead letter", "ack", "time over"],
)
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "waiting"])
@pytest.mark.parametrize("order", [None, AT_ONCE], ids=["concurrent", "orderly"])
async def test_only_equal_consecutive_failures_count(
    make: Make, between: str, waits: bool, order: Any
):
    async def handle(message: Any) -> None:
        if waits:
            await asyncio.sleep(0)
        if message.offset != 3:
            raise KeyError
        match between:
            case "success":
                return
            case "other type":
                raise ValueError
            case "other line":
                other_line()
            case "retry later":
                raise RetryLater(0)
            case "dead letter":
                raise DeadLetter
            case "ack":
                message.ack()
                raise KeyError
            case "time over":
                await asyncio.Event().wait()

    # Three fail, one is different, three fail: with the last the limit is reached if that one
    # doesn't break the row.
    works = make(handle, breaker=6, concurrency=1, order=order, consume_timeout=0.2)
    held = works.gain()
    works.put(held, *range(7))
    if between == "time over":
        if order is not None:
            return  # it is retried before later messages, without end
        await until(lambda: paused(works))
        await until(lambda: sorted(works.returned()) == [0, 1, 2, 3, 4, 5])
        return
    expected = 6 if between in {"success", "ack"} else 7
    await until(lambda: len(works.returned()) == expected)
    assert not paused(works)


async def test_a_success_in_between_resets_the_count(make: Make):
    async def handle(message: Any) -> None:
        if message.offset % 3:
            raise KeyError

    works = make(handle, breaker=3, concurrency=1)
    held = works.gain()
    works.put(held, *range(30))
    await until(lambda: held.process_queue.messages == 0)
    assert not paused(works)


async def test_one_message_that_fails_again_and_again_is_counted_once(make: Make):
    handler = Handler()
    works = make(handler.handle, breaker=3, order=Orderly(max_retries=None, suspend=0.0))
    held = works.gain()
    works.put(held, 0)
    await until(lambda: len(handler.called) > 10)
    assert not paused(works)
    others = [works.gain(replace(QUEUE, queue_id=number)) for number in (1, 2)]
    for number, other in enumerate(others, 1):
        works.put(other, number)
    await until(lambda: paused(works))


async def test_outcomes_that_a_handler_decided_apply_while_paused(make: Make):
    release = asyncio.Event()

    async def handle(message: Any) -> None:
        if message.offset < 4:
            await release.wait()
        if message.offset == 0:
            raise DeadLetter
        if message.offset == 1:
            return
        raise KeyError(message.offset)

    works = make(handle, breaker=2)
    held = works.gain()
    works.put(held, *range(10))
    await until(lambda: paused(works))
    release.set()
    await settled(works)
    await until(lambda: len(works.returned()) == 2)
    verdicts = {offset: outcome.verdict for offset, outcome in works.shelf.returned}
    assert verdicts == {0: OutcomeKind.DEAD_LETTER, 4: OutcomeKind.RETRY}
    assert held.process_queue.commit_point == 2
    assert held.process_queue.messages == 7


async def test_the_breaker_can_be_turned_off(make: Make):
    handler = Handler()
    works = make(handler.handle, breaker=None)
    held = works.gain()
    works.put(held, *range(100))
    await until(lambda: held.process_queue.messages == 0)
    assert len(works.returned()) == 100
    assert not works.events


async def test_threads_that_fail_after_the_trip_keep_their_messages(make: Make):
    release = threading.Event()

    def handle(message: Any) -> None:
        if message.offset < 4:
            release.wait(10)
        raise KeyError(message.offset)

    works = make(handle, breaker=2, concurrency=6)
    held = works.gain()
    works.put(held, *range(20))
    await until(lambda: paused(works))
    release.set()
    await settled(works)
    assert len(works.returned()) == 1
    assert held.process_queue.commit_point == 0
    assert held.process_queue.messages == 19


def test_the_limit_comes_from_arguments_and_the_environment():
    assert PushOptions.gather({}, env={}).breaker == LIMIT == 20
    assert PushOptions.gather({"breaker": None}, env={}).breaker is None
    for text, limit in (("none", None), ("7", 7)):
        assert PushOptions.gather({}, env={"POCKETMQ_PUSH_CONSUMER_BREAKER": text}).breaker == limit
    for wrong in (0, -1, True, 1.5, "x"):
        with pytest.raises(UsageError, match="breaker"):
            PushOptions.gather({"breaker": wrong}, env={})
