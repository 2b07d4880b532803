"""Sending a stream of messages with a bounded number in flight, for ``send`` and ``import``."""

from __future__ import annotations

import asyncio
import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import click
import msgspec

import client
from pocketmq import output
from pocketmq.formats import SourceError
from pocketmq.server.background import BackgroundReader
from remoting.runtime.durable_file import replace
from remoting.runtime.tasks import wait_at_most

WINDOW: Final = 10_000
"""Messages sent and not yet acknowledged: enough for any network, little memory."""

ERRORS_SHOWN: Final = 5
"""Errors that are printed; further ones are only counted."""

PACE_STEP: Final = 0.02
"""Seconds: ``--rate`` lets messages get ahead of schedule by up to this time, and then waits."""

TRANSACTIONS_AT_ONCE: Final = 100
"""Transactions under way: each is two requests of its own, which hide each other's latency."""

MAX_UNSENT: Final = 1000
"""Failures after which an import with ``--progress`` ends: the file lists each of them."""

F = TypeVar("F", bound=Callable[..., Any])


def rate_option(function: F) -> F:
    """Add ``--rate``."""
    return click.option(
        "--rate", type=click.FloatRange(min=0, min_open=True), help="Messages per second."
    )(function)


def standard_input() -> IO[bytes]:
    """Return standard input as a separate file object.

    The interpreter closes ``sys.stdin`` at exit, and crashes if a thread is reading from it.
    """
    try:
        descriptor = sys.stdin.fileno()
    except OSError:
        return sys.stdin.buffer
    return io.BufferedReader(output.StandardStream(descriptor))


class SentMarks(msgspec.Struct):
    """Which messages of an input have been acknowledged; kept in a file.

    Attributes:
        source, topic: the input's path, and the topic it goes to.
        next: the number of messages, from the first one on, that were given to the producer.
        unsent: the numbers, from 0, of given messages that are not acknowledged.
    """

    source: str
    topic: str
    next: int = 0
    unsent: set[int] = msgspec.field(default_factory=set)

    @classmethod
    def load(cls, path: Path, source: str, topic: str) -> SentMarks:
        """Return the marks in a file, or new marks if there is no file.

        Raises:
            SourceError: the file is of another input or topic, or something else.
            OSError: it can't be read.
        """
        try:
            marks = msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return cls(source, topic)
        except msgspec.MsgspecError as error:
            raise SourceError(
                f"{path} is not a file that --progress wrote ({error}): give it another file"
            ) from error
        if (marks.source, marks.topic) != (source, topic):
            raise SourceError(
                f"{path} is about {marks.source} and topic {marks.topic}: give --progress another"
                " file"
            )
        return marks

    def copy(self) -> SentMarks:
        """Return a copy that doesn't change with this one."""
        return SentMarks(self.source, self.topic, self.next, set(self.unsent))

    def has(self, number: int) -> bool:
        """Return whether a message has been acknowledged."""
        return number < self.next and number not in self.unsent

    def start(self, number: int) -> None:
        """Mark a message as given to the producer."""
        self.next = max(self.next, number + 1)
        self.unsent.add(number)

    def save(self, path: Path) -> None:
        """Replace the file. Raises ``OSError``."""
        replace(path, msgspec.json.encode(self), backup=False)


class Sending:
    """Sends the messages of an input, with a bounded number in flight, and reports the result.

    Args:
        producer: an open producer.
        advance: is called with every acknowledgement.
        end: sends each message in a transaction and ends it so.
        marks: is kept up to date.

    Attributes:
        sent, failed, size: acknowledged messages, failed messages, and bytes of the acknowledged.
        last: receipt of the last acknowledged message.
    """

    def __init__(
        self,
        producer: client.Producer[bytes],
        advance: output.Advance,
        *,
        end: client.TransactionState | None = None,
        marks: SentMarks | None = None,
    ) -> None:
        self._producer = producer
        self._advance = advance
        self._end = end
        self._marks = marks
        self._window = WINDOW if end is None else TRANSACTIONS_AT_ONCE
        self._transactions: set[asyncio.Task[client.Receipt]] = set()
        self._in_flight = 0
        self._moved = asyncio.Event()
        self.sent = self.failed = self.size = 0
        self.last: client.Receipt | None = None
        self._errors: list[str] = []
        self._started = time.monotonic()
        self._seconds = 0.0

    async def send_all(
        self,
        messages: Iterator[tuple[int, client.Message[bytes]]],
        stop: asyncio.Event,
        rate: float | None,
    ) -> SourceError | None:
        """Send the numbered messages until the input ends or a stop signal arrives.

        With marks it also ends, and sets ``stop``, after ``MAX_UNSENT`` failures.

        Returns:
            What is wrong with the input; what precedes that place has been sent.
        """
        reader = BackgroundReader(messages, lambda numbered: len(numbered[1].body))
        problem = None
        try:
            await self._send_read(reader, stop, rate)
        except SourceError as error:
            problem = error
        finally:
            await self._wait_for_room(1)
        self._seconds = time.monotonic() - self._started
        return problem

    async def _send_read(
        self,
        reader: BackgroundReader[tuple[int, client.Message[bytes]]],
        stop: asyncio.Event,
        rate: float | None,
    ) -> None:
        pace = _Pace(rate, stop)
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                taking = asyncio.ensure_future(reader.take())
                await asyncio.wait([taking, stopped], return_when=asyncio.FIRST_COMPLETED)
                if not taking.done():
                    taking.cancel()
                    return
                if not (items := taking.result()):
                    return
                for number, message in items:
                    await pace.wait()
                    if self._marks is not None and self.failed >= MAX_UNSENT:
                        stop.set()
                    if stop.is_set():
                        return
                    await self._send(number, message)
        finally:
            stopped.cancel()

    async def _send(self, number: int, message: client.Message[bytes]) -> None:
        await self._wait_for_room(self._window)
        if self._marks is not None:
            self._marks.start(number)
        while True:
            try:
                future = self._start(message)
            except client.BufferFull:
                await self._wait_for_room(self._in_flight)
                continue
            except client.UsageError as error:
                self._count_failure(error)
                return
            break
        self._in_flight += 1
        size = len(message.body)
        future.add_done_callback(lambda done: self._acknowledged(done, number, size))

    def _start(self, message: client.Message[bytes]) -> asyncio.Future[client.Receipt]:
        if self._end is None:
            return self._producer.send_nowait(message)
        task = asyncio.create_task(self._transact(message, self._end))
        self._transactions.add(task)
        task.add_done_callback(self._transactions.discard)
        return task

    async def _transact(
        self, message: client.Message[bytes], end: client.TransactionState
    ) -> client.Receipt:
        transaction = self._producer.transaction(message)
        await transaction.start()
        assert transaction.receipt is not None
        if end is client.TransactionState.UNKNOWN:
            await transaction.defer()
        elif not await (
            transaction.commit()
            if end is client.TransactionState.COMMIT
            else transaction.rollback()
        ):
            raise client.PocketMQError(
                "the half message is stored, but the broker has not confirmed its end",
                topic=message.topic,
                hint="the broker asks the group's checkers later",
            )
        return transaction.receipt

    async def _wait_for_room(self, limit: int) -> None:
        """Wait until fewer than ``limit`` messages are in flight."""
        while self._in_flight >= max(limit, 1):
            self._moved.clear()
            await self._moved.wait()

    def _acknowledged(self, future: asyncio.Future[client.Receipt], number: int, size: int) -> None:
        self._in_flight -= 1
        self._moved.set()
        error = None if future.cancelled() else future.exception()
        if error is not None or future.cancelled():
            self._count_failure(error)
            return
        if self._marks is not None:
            self._marks.unsent.discard(number)
        self.sent += 1
        self.size += size
        self.last = future.result()
        self._advance(1)

    def _count_failure(self, error: BaseException | None) -> None:
        self.failed += 1
        if len(self._errors) < ERRORS_SHOWN:
            self._errors.append(str(error or "cancelled"))

    def summary(self, topic: str) -> str:
        """Return how much was acknowledged, and how long it took, as the end of a sentence."""
        return (
            f"{output.count(self.sent, 'message')}, {output.count(self.size, 'byte')},"
            f" to {topic} in {self._seconds:.2f} s"
        )

    def report(self, text: str, facts: Mapping[str, object], *, as_json: bool) -> None:
        """Print the first errors, and what was done: ``text``, or ``facts`` and the numbers."""
        for error in self._errors:
            click.echo(f"not sent: {error}", err=True)
        if self.failed:
            text += f"; {self.failed} not acknowledged"
        numbers = {
            "sent": self.sent,
            "failed": self.failed,
            "bytes": self.size,
            "seconds": round(self._seconds, 3),
        }
        output.done(text, {**facts, **numbers}, as_json=as_json)


class _Pace:
    """Limits the rate of messages; a stop signal ends the wait."""

    def __init__(self, rate: float | None, stop: asyncio.Event) -> None:
        self._rate = rate
        self._stop = stop
        self._count = 0
        self._started = time.monotonic()

    async def wait(self) -> None:
        """Wait until the next message is due."""
        if self._rate is None:
            return
        ahead = self._count / self._rate - (time.monotonic() - self._started)
        self._count += 1
        if ahead > 0 and (ahead >= PACE_STEP or self._rate < 1 / PACE_STEP):
            await wait_at_most(ahead, self._stop)
