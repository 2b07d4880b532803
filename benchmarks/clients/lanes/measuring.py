"""What the lanes share: the work they get, the clocks, and the pace of the deliveries.

A lane is a program, ``python -m benchmarks.clients.lanes.<name> PHASE WORK``, that does one phase
with one client and prints its figures as one line of JSON. It runs in the environment that has its
client, so this module needs nothing but the standard library.

=========  ======================================================================================
phase      what is timed
=========  ======================================================================================
produce    from the first message offered to the last one acknowledged; the client is connected
consume    from the first message in hand to the last; body, topic and offset of each are read
deliver    each message from just before it is offered until its receiver has it in hand
=========  ======================================================================================

The phase ``prepare`` makes the topic and times nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

STAMP_BYTES = 20
PATIENCE = 30.0
"""Seconds without any message after which a phase is given up."""

SETTLING = 250
"""The first deliveries open connections and fill caches; they don't count."""


@dataclass(frozen=True)
class Work:
    """What to do, and where.

    Attributes:
        address: Of the server, or of the name server.
        topic: A name no other turn has.
        partitions: Partitions, queues or streams of the topic.
        messages: To produce and consume.
        body_bytes: Of each.
        deliveries: To measure, at ``per_second``.
    """

    address: str
    topic: str
    partitions: int
    messages: int
    body_bytes: int
    deliveries: int
    per_second: int

    @property
    def body(self) -> bytes:
        """The body of every message that carries no time stamp."""
        return b"x" * self.body_bytes

    def stamped(self) -> bytes:
        """A body that says when it was made."""
        return b"%020d" % time.perf_counter_ns() + b"x" * (self.body_bytes - STAMP_BYTES)


class Figures(NamedTuple):
    """One phase: wall-clock and CPU seconds of the process; latencies in seconds."""

    messages: int
    seconds: float
    cpu_seconds: float
    latencies: tuple[float, ...] = ()


class Stopwatch:
    """Wall-clock and CPU time since it was made; all threads of the process count."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, messages: int, latencies: list[float] | None = None) -> Figures:
        """The figures of a phase."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return Figures(messages, wall, cpu, tuple(latencies or ()))


class Reading:
    """Counts what a consumer hands out; the clock starts with its first messages."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._seen = self._first = 0
        self._watch: Stopwatch | None = None

    @property
    def left(self) -> int:
        """Messages not handed out yet."""
        return self._expected - self._seen

    def took(self, number: int) -> None:
        """So many messages are in hand and will now be read.

        Raises:
            TimeoutError: There are none: the wait for them was in vain.
        """
        if not number:
            msg = f"nothing came after {self._seen} of {self._expected} messages"
            raise TimeoutError(msg)
        self._seen += number
        if self._watch is None:
            self._watch, self._first = Stopwatch(), number

    def figures(self) -> Figures:
        """What was read after the first hand-out, and how long it took."""
        assert self._watch is not None
        return self._watch.stop(self._seen - self._first)


class Deliveries:
    """The latencies of stamped messages, as their receiver finds them."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.expected = SETTLING + work.deliveries
        self._latencies: list[float] = []
        self._watch = Stopwatch()

    @property
    def complete(self) -> bool:
        """Whether every message has come."""
        return len(self._latencies) >= self.expected

    def came(self, body: bytes) -> None:
        """A message is in hand."""
        now = time.perf_counter_ns()
        self._latencies.append((now - int(body[:STAMP_BYTES])) / 1e9)

    def pauses(self) -> Pauses:
        """How long to sleep before each message, to keep the pace."""
        return Pauses(self.expected, self._work.per_second)

    def figures(self) -> Figures:
        """The latencies of those that count."""
        return self._watch.stop(len(self._latencies), self._latencies[SETTLING:])


class Pauses:
    """An iterator over the seconds to sleep before each message of a steady pace."""

    def __init__(self, count: int, per_second: int) -> None:
        self._count, self._per_second = count, per_second
        self._number = 0
        self._begin = time.perf_counter()

    def __iter__(self) -> Pauses:
        return self

    def __next__(self) -> float:
        if self._number >= self._count:
            raise StopIteration
        due = self._begin + self._number / self._per_second
        self._number += 1
        return max(0.0, due - time.perf_counter())


async def in_windows(
    count: int, window: int, offer: Callable[[int], Awaitable[Sequence[Awaitable[object]]]]
) -> None:
    """Offer messages and await their acknowledgements, at most two windows in flight."""
    before: Sequence[Awaitable[object]] = ()
    for start in range(0, count, window):
        offered = await offer(min(window, count - start))
        for acknowledgement in before:
            await acknowledgement
        before = offered
    for acknowledgement in before:
        await acknowledgement


Phase = Callable[[Work], Figures | None]


def asynchronous(phase: Callable[[Work], Coroutine[Any, Any, Figures | None]]) -> Phase:
    """A coroutine function as a phase; on uvloop, which is for every client here the fastest."""

    def run(work: Work) -> Figures | None:
        try:
            import uvloop
        except ImportError:
            return asyncio.run(phase(work))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(phase(work))

    return run


def main(phases: Mapping[str, Phase]) -> None:
    """Do the phase of the command line and print its figures."""
    figures = phases[sys.argv[1]](Work(**json.loads(sys.argv[2])))
    print(json.dumps(figures._asdict() if figures else None))


def command(lane: str, phase: str, work: Work) -> list[str]:
    """The arguments of Python that do a phase."""
    return ["-m", f"benchmarks.clients.lanes.{lane}", phase, json.dumps(asdict(work))]
