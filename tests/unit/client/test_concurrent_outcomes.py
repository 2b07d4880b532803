"""The outcome of a message for each result of its handler."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from client import serde
from client.consumer.outcome import OutcomeKind
from client.consumer.received import messages_of
from client.errors import AlreadySettled, DeadLetter, RetryLater, UnreadableMessage
from client.events import HandlerTimedOut
from remoting.protocol.message.record import COMPRESSED
from tests.support.waiting import until
from tests.unit.client.consuming import QUEUE, Works, making, record

Make = Callable[..., Works]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with making() as works:
        yield works


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after waiting"])
@pytest.mark.parametrize(
    ("error", "verdict", "level"),
    [
        (ValueError("no"), OutcomeKind.RETRY, 0),
        (RetryLater(), OutcomeKind.RETRY, 0),
        (RetryLater(30), OutcomeKind.RETRY, 4),
        (RetryLater(31), OutcomeKind.RETRY, 5),
        (RetryLater(10**6), OutcomeKind.RETRY, 18),
        (DeadLetter("bad"), OutcomeKind.DEAD_LETTER, -1),
        (asyncio.CancelledError(), OutcomeKind.RETRY, 0),
    ],
    ids=repr,
)
async def test_raising_sends_back_only_that_message(
    make: Make, error: BaseException, verdict: OutcomeKind, level: int, waits: bool
):
    got: list[int] = []

    async def handle(message: Any) -> None:
        if waits:
            await asyncio.sleep(0)
        if message.offset == 2:
            raise error
        got.append(message.offset)

    works = make(handle)
    held = works.gain()
    works.put(held, *range(5))
    await until(lambda: held.process_queue.messages == 0)
    assert sorted(got) == [0, 1, 3, 4]
    [(offset, outcome)] = works.shelf.returned
    assert (offset, outcome.verdict, outcome.delay_level) == (2, verdict, level)


async def test_a_message_that_cannot_be_sent_back_is_handled_again(make: Make):
    got: list[tuple[int, int]] = []

    async def handle(message: Any) -> None:
        got.append((message.offset, message.retries))
        if message.offset == 1 and len(got) < 6:
            raise ValueError

    works = make(handle)
    works.shelf.works = False
    held = works.gain()
    works.put(held, 0, 1, 2)
    await until(lambda: held.process_queue.messages == 0)
    assert got[:3] == [(0, 0), (1, 0), (2, 0)]
    assert got[3:] == [(1, 1), (1, 2), (1, 3)]
    assert held.process_queue.commit_point == 3


async def test_settling_within_the_handler_counts(make: Make):
    async def handle(message: Any) -> None:
        if message.offset == 0:
            message.ack()
            raise ValueError
        if message.offset == 1:
            message.retry_later(5)
        if message.offset == 2:
            message.dead_letter("why")
        if message.offset == 3:
            message.ack()

    works = make(handle)
    held = works.gain()
    works.put(held, 0, 1, 2, 3, 4)
    await until(lambda: held.process_queue.messages == 0)
    levels = {offset: outcome.delay_level for offset, outcome in works.shelf.returned}
    assert levels == {1: 2, 2: -1}
    assert not held.process_queue.outcomes


async def test_settling_twice_raises(make: Make):
    late: list[Any] = []

    async def handle(message: Any) -> None:
        for earlier in late:
            with pytest.raises(AlreadySettled):
                earlier.ack()
        message.ack()
        assert message.settled
        with pytest.raises(AlreadySettled, match=r"has an outcome already \(queue T/a/0, group g"):
            message.retry_later()
        late.append(message)

    works = make(handle)
    held = works.gain()
    works.put(held, 0, 1)
    await until(lambda: held.process_queue.messages == 0)
    assert not works.shelf.returned
    with pytest.raises(AlreadySettled):
        late[0].ack()


async def test_a_message_that_does_not_inflate_is_retried_as_any_other_failure(make: Make):
    async def handle(message: Any) -> None:
        assert message.body

    works = make(handle)
    held = works.gain()
    body = record(0, QUEUE, sys_flag=COMPRESSED)
    held.process_queue.put(messages_of(body, QUEUE, serde.raw, held), len(body), 1)
    held.fetched(held.process_queue, 0.0)
    await until(lambda: held.process_queue.messages == 0)
    [(_, outcome)] = works.shelf.returned
    assert isinstance(outcome.error, UnreadableMessage)


async def test_what_a_batch_handler_does_not_settle_shares_its_outcome(make: Make):
    async def handle(messages: list[Any]) -> None:
        await asyncio.sleep(0)
        messages[0].ack()
        messages[1].dead_letter()
        raise ValueError

    works = make(handle, batch_size=4)
    held = works.gain()
    works.put(held, 0, 1, 2, 3)
    await until(lambda: held.process_queue.messages == 0)
    verdicts = {offset: outcome.verdict for offset, outcome in works.shelf.returned}
    assert verdicts == {1: OutcomeKind.DEAD_LETTER, 2: OutcomeKind.RETRY, 3: OutcomeKind.RETRY}


async def test_of_a_batch_only_what_cannot_be_sent_back_is_handled_again(make: Make):
    batches: list[list[int]] = []

    async def handle(messages: list[Any]) -> None:
        batches.append([message.offset for message in messages])
        if len(batches) == 1:
            messages[0].ack()
            raise ValueError

    works = make(handle, batch_size=3)
    works.shelf.works = False
    held = works.gain()
    works.put(held, 0, 1, 2)
    await until(lambda: held.process_queue.messages == 0)
    assert batches == [[0, 1, 2], [1], [2]]


async def test_another_return_value_counts_as_done_and_is_logged_once(
    make: Make, caplog: pytest.LogCaptureFixture
):
    async def handle(_: Any) -> str:
        return "RECONSUME_LATER"

    works = make(handle)
    held = works.gain()
    works.put(held, *range(5))
    await until(lambda: held.process_queue.messages == 0)
    assert not works.shelf.returned
    assert caplog.text.count("the handler's return value is ignored") == 1


async def test_a_handler_that_never_returns_is_cancelled_and_its_message_retried(make: Make):
    cancelled: list[int] = []
    got: list[int] = []

    async def handle(message: Any) -> None:
        if message.offset == 0:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message.offset)
                raise
        got.append(message.offset)

    works = make(handle, concurrency=1, consume_timeout=0.02)
    held = works.gain()
    works.put(held, 0, 1)
    await until(lambda: held.process_queue.messages == 0)
    assert (cancelled, got, works.returned()) == ([0], [1], [0])
    assert works.shelf.returned[0][1].delay_level == 3
    [event] = works.events
    assert isinstance(event, HandlerTimedOut)
    assert (event.queue, event.offset, event.messages) == (held.queue, 0, 1)


async def test_a_thread_that_never_returns_keeps_its_slot_but_not_its_message(make: Make):
    release = threading.Event()
    got: list[int] = []

    def handle(message: Any) -> None:
        if message.offset == 0:
            release.wait(10)
            message.ack()
        got.append(message.offset)

    works = make(handle, concurrency=2, consume_timeout=0.5)
    held = works.gain()
    works.put(held, 0, 1)
    try:
        await until(lambda: held.process_queue.messages == 0)
        assert (got, works.returned()) == ([1], [0])
    finally:
        release.set()
