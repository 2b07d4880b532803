"""The common code of the lanes: their arguments, time measurement, and the rate of deliveries.

A lane is a program, ``python -m benchmarks.clients.lanes.<name> PHASE WORK``, that runs one phase
with one client and prints its figures as one line of JSON. It runs in the environment of its
client, so this module uses only the standard library.

=========  ======================================================================================
phase      what is timed
=========  ======================================================================================
produce    from the first message sent to the last one acknowledged; the client is connected
consume    from the first message received to the last; body, topic and offset of each are read
deliver    each message, from just before it is sent until it is received
=========  ======================================================================================

The phase ``prepare`` creates the topic and measures nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

STAMP_BYTES = 20
PATIENCE = 30.0
"""Seconds without any message after which a phase fails."""

SETTLING = 250
"""The first deliveries, which open connections and fill caches, are not counted."""


@dataclass(frozen=True)
class Work:
    """The arguments of a phase.

    Attributes:
        address: the address of the server, or of the name server.
        topic: a name that is unique to the client and round.
        partitions: the number of partitions, queues or streams of the topic.
        messages: the number of messages to produce and consume.
        body_bytes: the size of each body.
        deliveries: the number of deliveries to measure.
        per_second: the rate of the deliveries.
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
        """The body of messages without a time stamp."""
        return b"x" * self.body_bytes

    def stamped(self) -> bytes:
        """Return a body that begins with the current time in nanoseconds."""
        return b"%020d" % time.perf_counter_ns() + b"x" * (self.body_bytes - STAMP_BYTES)


class Figures(NamedTuple):
    """The figures of one phase: wall-clock and CPU seconds of the process, latencies in seconds."""

    messages: int
    seconds: float
    cpu_seconds: float
    latencies: tuple[float, ...] = ()


class Stopwatch:
    """Measures wall-clock and CPU time since its creation, in all threads of the process."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, messages: int, latencies: list[float] | None = None) -> Figures:
        """Return the figures of a phase that ends now."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return Figures(messages, wall, cpu, tuple(latencies or ()))


class Reading:
    """Counts received messages; the time is measured from the first ones on."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._seen = self._first = 0
        self._watch: Stopwatch | None = None

    @property
    def left(self) -> int:
        """The number of messages not received yet."""
        return self._expected - self._seen

    def took(self, number: int) -> None:
        """Count received messages, before they are read.

        Raises:
            TimeoutError: ``number`` is 0, because the wait for messages timed out.
        """
        if not number:
            msg = f"nothing came after {self._seen} of {self._expected} messages"
            raise TimeoutError(msg)
        self._seen += number
        if self._watch is None:
            self._watch, self._first = Stopwatch(), number

    def figures(self) -> Figures:
        """Return the figures for the messages after the first ones."""
        assert self._watch is not None
        return self._watch.stop(self._seen - self._first)


class Deliveries:
    """Measures the latencies of messages with time stamps."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.expected = SETTLING + work.deliveries
        self._latencies: list[float] = []
        self._watch = Stopwatch()

    @property
    def complete(self) -> bool:
        """Whether every message has been received."""
        return len(self._latencies) >= self.expected

    def came(self, body: bytes) -> None:
        """Record the latency of a received message."""
        now = time.perf_counter_ns()
        self._latencies.append((now - int(body[:STAMP_BYTES])) / 1e9)

    def pauses(self) -> Pauses:
        """Return the seconds to sleep before each message, for a constant rate."""
        return Pauses(self.expected, self._work.per_second)

    def figures(self) -> Figures:
        """Return the latencies, without the first ``SETTLING`` messages."""
        return self._watch.stop(len(self._latencies), self._latencies[SETTLING:])


class Pauses:
    """An iterator over the seconds to sleep before each message, for a constant rate."""

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
    """Send messages and await their acknowledgements, with at most two windows in flight."""
    before: Sequence[Awaitable[object]] = ()
    for start in range(0, count, window):
        offered = await offer(min(window, count - start))
        for acknowledgement in before:
            await acknowledgement
        before = offered
    for acknowledgement in before:
        await acknowledgement


def run(work: Coroutine[Any, Any, Figures | None]) -> Figures | None:
    """Run a coroutine on uvloop, the fastest event loop for all clients here."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def main(*phases: Callable[[Work], Any]) -> None:
    """Run the phase that the command line names, and print its figures."""
    phase = {phase.__name__: phase for phase in phases}[sys.argv[1]]
    figures = phase(Work(**json.loads(sys.argv[2])))
    if asyncio.iscoroutine(figures):
        figures = run(figures)
    print(json.dumps(figures._asdict() if figures else None))


def command(lane: str, phase: str, work: Work) -> list[str]:
    """Return the arguments of Python that run a phase."""
    return ["-m", f"benchmarks.clients.lanes.{lane}", phase, json.dumps(asdict(work))]
