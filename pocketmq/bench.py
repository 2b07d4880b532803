"""Load tests of a cluster: producing, consuming, and end-to-end latency.

Messages sent during the warm-up are not counted. With a rate, a message's latency starts when it
was due, not when it was sent, so that a cluster that can't keep up shows a high latency.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import client
from remoting.runtime.tasks import wait_at_most

GROUP: Final = "pocketmq-bench"
GET_AT_ONCE: Final = 1024
GET_TIMEOUT: Final = 0.2
STAMP_BYTES: Final = 8
"""A body of the latency test starts with the nanosecond at which it was sent, big-endian."""

_STEP_BITS: Final = 7


class BenchError(Exception):
    """Nothing could be measured; the text says why and what to do."""


@dataclass(slots=True)
class Latencies:
    """A histogram with buckets less than 1 % wide, whose size doesn't depend on the run time."""

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0

    def add(self, ns: int) -> None:
        """Add a latency in nanoseconds."""
        shift = max(ns.bit_length() - _STEP_BITS - 1, 0)
        bucket = (shift << (_STEP_BITS + 1)) + (ns >> shift)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.total += 1

    def quantile_ms(self, share: float) -> float | None:
        """Return the latency that this share of the messages doesn't exceed, or None if empty."""
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= share * self.total:
                shift, step = divmod(bucket, 1 << (_STEP_BITS + 1))
                return (step << shift) / 1e6
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The parameters of a load test. Times are in seconds.

    Attributes:
        concurrency: sends in flight, or number of consumers.
        rate: messages per second; None: as many as possible.
    """

    nameserver: str
    topic: str
    queues: int = 8
    size: int = 1024
    concurrency: int = 64
    duration: float = 10.0
    warm_up: float = 1.0
    rate: float | None = None


@dataclass(slots=True)
class BenchResult:
    """The result of one measurement.

    Attributes:
        what: produce, consume, acknowledge or deliver.
        seconds: measured time, without the warm-up.
        failed: sends that were not acknowledged.
        why: the first such error.
    """

    what: str
    messages: int = 0
    size: int = 0
    seconds: float = 0.0
    failed: int = 0
    why: str = ""
    latencies: Latencies = field(default_factory=Latencies)

    def row(self) -> dict[str, object]:
        """Return the result as a row of a table."""
        seconds = self.seconds or 1.0
        return {
            "what": self.what,
            "messages": self.messages,
            "seconds": round(self.seconds, 3),
            "per_s": round(self.messages / seconds, 1),
            "mb_per_s": round(self.size / 1e6 / seconds, 3),
            "p50_ms": _rounded(self.latencies.quantile_ms(0.5)),
            "p99_ms": _rounded(self.latencies.quantile_ms(0.99)),
            "p999_ms": _rounded(self.latencies.quantile_ms(0.999)),
            "failed": self.failed,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


COLUMNS: Final = tuple(BenchResult("").row())

Tick = Callable[[int], None]
"""Called with the number of messages done since the last call."""


class _Run:
    """The schedule of a run: warm-up, then the measured time, until its end or a stop signal."""

    def __init__(self, load: Load, stop: asyncio.Event) -> None:
        self.load = load
        self.stop = stop
        self.begins = time.perf_counter() + load.warm_up
        self.ends = self.begins + load.duration

    def is_over(self) -> bool:
        return self.stop.is_set() or time.perf_counter() >= self.ends

    def counts(self) -> bool:
        return time.perf_counter() >= self.begins

    def counted_seconds(self) -> float:
        return max(min(time.perf_counter(), self.ends) - self.begins, 0.0)


async def produce(load: Load, stop: asyncio.Event, tick: Tick) -> list[BenchResult]:
    """Send as fast as possible, or at a rate, with ``concurrency`` sends in flight."""
    await _create_topic(load)
    result = BenchResult("produce")
    async with client.Producer(load.nameserver, group=GROUP) as producer:
        run = _Run(load, stop)
        await _send_all(run, producer, result, tick, lambda _: b"x" * load.size)
        result.seconds = run.counted_seconds()
    return [_checked(result)]


async def consume(load: Load, stop: asyncio.Event, tick: Tick) -> list[BenchResult]:
    """Read all messages of the topic from the first one; commit nothing.

    The consumers divide the queues among themselves, and stop at the queues' ends as of the start.
    """
    result = BenchResult("consume")
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(client.Admin(load.nameserver))
        offsets = await admin.topic_stats(load.topic)
        full = sorted(queue for queue, at in offsets.items() if at.max_offset > at.min_offset)
        if not full:
            raise BenchError(f"{load.topic} holds nothing; fill it with: pocketmq bench produce")
        shares = [full[number :: load.concurrency] for number in range(load.concurrency)]
        consumers = [
            await stack.enter_async_context(
                client.PullConsumer(load.nameserver, group=GROUP, auto_commit=False)
            )
            for share in shares
            if share
        ]
        started = time.perf_counter()
        ends = {queue: offsets[queue].max_offset for queue in full}
        run = _Run(load, stop)
        await _gather(
            [
                _read_all(run, consumer, share, ends, result, tick)
                for consumer, share in zip(consumers, shares, strict=False)
            ]
        )
        result.seconds = time.perf_counter() - started
    return [result]


async def latency(load: Load, stop: asyncio.Event, tick: Tick) -> list[BenchResult]:
    """Send at a rate, and measure when a consumer in this process receives each message."""
    await _create_topic(load)
    acknowledge, deliver = BenchResult("acknowledge"), BenchResult("deliver")
    async with (
        client.PullConsumer(load.nameserver, group=GROUP, auto_commit=False) as consumer,
        client.Producer(load.nameserver, group=GROUP) as producer,
    ):
        queues = await consumer.queues(load.topic)
        consumer.assign(queues)
        await asyncio.gather(*(consumer.seek(queue, client.END) for queue in queues))
        run = _Run(load, stop)
        delivering = asyncio.create_task(_deliver(run, consumer, deliver, tick))
        padding = b"x" * max(load.size - STAMP_BYTES, 0)

        def body(due: float) -> bytes:
            return int(due * 1e9).to_bytes(STAMP_BYTES, "big") + padding

        try:
            await _send_all(run, producer, acknowledge, lambda _: None, body)
        finally:
            await delivering
        acknowledge.seconds = deliver.seconds = run.counted_seconds()
    return [_checked(acknowledge), deliver]


async def _create_topic(load: Load) -> None:
    async with client.Admin(load.nameserver) as admin:
        if load.topic not in await admin.topics():
            await admin.create_topic(load.topic, queues=load.queues)


async def _send_all(
    run: _Run,
    producer: client.Producer[bytes],
    result: BenchResult,
    tick: Tick,
    make_body: Callable[[float], bytes],
) -> None:
    numbers = itertools.count()
    started = time.perf_counter()
    topic, rate = run.load.topic, run.load.rate

    async def sender() -> None:
        while not run.is_over():
            due = time.perf_counter()
            if rate is not None:
                due = started + next(numbers) / rate
                wait = min(due, run.ends) - time.perf_counter()
                if wait > 0:
                    await wait_at_most(wait, run.stop)
                if due >= run.ends or run.is_over():
                    return
            body = make_body(due)
            try:
                await producer.send(topic, body)
            except client.SendError as problem:
                result.failed += 1
                result.why = result.why or str(problem)
                continue
            if run.counts():
                result.messages += 1
                result.size += len(body)
                result.latencies.add(int((time.perf_counter() - due) * 1e9))
            tick(1)

    await _gather([sender() for _ in range(run.load.concurrency)])


async def _read_all(
    run: _Run,
    consumer: client.PullConsumer[bytes],
    queues: Sequence[client.MessageQueue],
    ends: dict[client.MessageQueue, int],
    result: BenchResult,
    tick: Tick,
) -> None:
    consumer.assign(queues)
    await asyncio.gather(*(consumer.seek(queue, client.BEGIN) for queue in queues))
    unread = set(queues)
    while unread and not run.is_over():
        messages = await consumer.get_many(GET_AT_ONCE, timeout=GET_TIMEOUT)
        for message in messages:
            result.size += len(message.body)
            if message.offset + 1 >= ends[message.queue]:
                unread.discard(message.queue)
        result.messages += len(messages)
        tick(len(messages))


async def _deliver(
    run: _Run, consumer: client.PullConsumer[bytes], result: BenchResult, tick: Tick
) -> None:
    """Record when messages arrive, and wait briefly for those in flight at the end."""
    while True:
        messages = await consumer.get_many(GET_AT_ONCE, timeout=GET_TIMEOUT)
        now = time.perf_counter_ns()
        for message in messages:
            sent = int.from_bytes(message.body[:STAMP_BYTES], "big")
            if sent >= run.begins * 1e9:
                result.messages += 1
                result.size += len(message.body)
                result.latencies.add(now - sent)
        tick(len(messages))
        if not messages and run.is_over():
            return


async def _gather(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all; the first failure cancels the others and is raised unchanged."""
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _checked(result: BenchResult) -> BenchResult:
    if not result.messages and result.failed:
        raise BenchError(f"none of {result.failed} messages was acknowledged: {result.why}")
    return result
