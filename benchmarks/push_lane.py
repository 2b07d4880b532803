"""A load program with our push consumer; ``JavaConsume.java`` is the same for Java.

    python -m benchmarks.push_lane concurrent|orderly NAMESERVER GROUP BATCH \
        WARM_TOPIC WARM_MESSAGES TOPIC MESSAGES
    python -m benchmarks.push_lane deliver NAMESERVER GROUP TOPIC SIZE RATE SECONDS RESIDENT_SECONDS

Prints one line of key=value. CPU time is that of this process, from the first handled message to
the last. All settings except the batch size are the defaults, as in ``JavaConsume.java``.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from struct import Struct
from typing import Final

import client
from remoting.runtime.tasks import run

PATIENCE: Final = 120.0
EXTRA_WATCHED: Final = 0.2
"""Seconds after the last message in which duplicates are counted."""

_STAMP: Final = Struct(">qq")
"""The start of a body: the time of sending in nanoseconds, and the message's number."""


class Count:
    """Counts handled messages, and records the times of the first and the last one."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.handled = 0
        self.done = asyncio.Event()
        self.began = self.ended = (0.0, 0.0)

    async def one(self, _: client.ReceivedMessage[bytes]) -> None:
        """Handle one message: only count it."""
        if not self.handled:
            self.began = _now()
        self.handled += 1
        if self.handled == self.wanted:
            self._end()

    async def some(self, messages: list[client.ReceivedMessage[bytes]]) -> None:
        """Handle a batch: only count its messages."""
        before = self.handled
        if not before:
            self.began = _now()
        self.handled = before + len(messages)
        if before < self.wanted <= self.handled:
            self._end()

    def _end(self) -> None:
        self.ended = _now()
        self.done.set()

    def figures(self) -> str:
        """Return the line to print."""
        wall, cpu = (end - begin for begin, end in zip(self.began, self.ended, strict=True))
        return (
            f"n={self.wanted} secs={wall:.4f} per_s={self.wanted / wall:.1f} "
            f"cpu_us_per={cpu / self.wanted * 1e6:.4f} extra={self.handled - self.wanted}"
        )


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


async def consume(
    mode: str, nameserver: str, group: str, batch: int, topic: str, messages: int
) -> Count:
    """Consume a topic from its start with a new group."""
    count = Count(messages)
    async with client.PushConsumer(
        nameserver,
        group=group,
        subscribe={topic: "*"},
        handler=count.some if batch > 1 else count.one,
        batch_size=batch,
        order=client.Orderly() if mode == "orderly" else None,
        start_from=client.FIRST,
    ):
        async with asyncio.timeout(PATIENCE):
            await count.done.wait()
        await asyncio.sleep(EXTRA_WATCHED)
    return count


class Delivery:
    """Sends at a constant rate and records the latency of each message to its handler."""

    def __init__(self, size: int, rate: float, warm: int, counted: int) -> None:
        self._filler = b"x" * (size - _STAMP.size)
        self._rate = rate
        self._warm = warm
        self.counted = counted
        self.came = 0
        self.latencies = [0] * (warm + counted)
        self.cpu = 0.0
        self._all = asyncio.Event()

    async def handle(self, message: client.ReceivedMessage[bytes]) -> None:
        """Record the latency of a message."""
        now = time.perf_counter_ns()
        sent, number = _STAMP.unpack_from(message.body)
        self.latencies[number] = now - sent
        self.came += 1
        if self.came == len(self.latencies):
            self._all.set()

    async def send(self, producer: client.Producer[bytes], topic: str) -> None:
        """Send all messages, and wait until they are handled."""
        due = time.perf_counter()
        for number in range(len(self.latencies)):
            if number == self._warm:
                self.cpu = time.process_time()
            due += 1 / self._rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            stamp = _STAMP.pack(time.perf_counter_ns(), number)
            await producer.send(topic, stamp + self._filler)
        async with asyncio.timeout(PATIENCE):
            await self._all.wait()
        self.cpu = time.process_time() - self.cpu

    def figures(self) -> str:
        """Return the line to print."""
        taken = sorted(self.latencies[self._warm :])
        number = self.counted
        return (
            f"n={number} p50_us={taken[number // 2] / 1e3:.1f} "
            f"p99_us={taken[number * 99 // 100] / 1e3:.1f} "
            f"cpu_us_per={self.cpu / number * 1e6:.4f} extra={self.came - len(self.latencies)}"
        )


async def deliver(words: Sequence[str]) -> str:
    """Run producer and push consumer in this process, as ``JavaConsume.java`` does."""
    nameserver, group, topic, size = *words[:3], int(words[3])
    rate, seconds, warm = (float(word) for word in words[4:7])
    delivery = Delivery(size, rate, int(rate * warm), int(rate * seconds))
    async with (
        client.Producer(nameserver, group=f"{group}-producer") as producer,
        client.PushConsumer(
            nameserver,
            group=group,
            subscribe={topic: "*"},
            handler=delivery.handle,
            start_from=client.FIRST,
        ),
    ):
        await delivery.send(producer, topic)
    return delivery.figures()


async def measure(words: Sequence[str]) -> str:
    """Run the mode given on the command line; return the line to print."""
    if words[0] == "deliver":
        return await deliver(words[1:])
    mode, nameserver, group, batch = *words[:3], int(words[3])
    await consume(mode, nameserver, f"{group}-warm", batch, words[4], int(words[5]))
    return (await consume(mode, nameserver, group, batch, words[6], int(words[7]))).figures()


if __name__ == "__main__":
    print(run(measure(sys.argv[1:])))
