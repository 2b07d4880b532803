"""Our push consumer as an application would use it: the twin of JavaConsume.java.

    python -m benchmarks.push_lane concurrent|orderly NAMESERVER GROUP BATCH \
        WARM_TOPIC WARM_MESSAGES TOPIC MESSAGES
    python -m benchmarks.push_lane deliver NAMESERVER GROUP TOPIC SIZE RATE SECONDS RESIDENT_SECONDS

Prints one line of key=value. CPU time is this process's own, from the first handled message to the
last. Everything is at its default but the batch size, as in the twin.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from struct import Struct
from typing import Final

import client
from remoting.tasks import run

PATIENCE: Final = 120.0
EXTRA_WATCHED: Final = 0.2
"""Seconds in which a message that comes twice is noticed."""

_STAMP: Final = Struct(">qq")
"""When a message was sent, and its number."""


class Count:
    """Counts what is handled, and takes the time of the first message and of the last."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.handled = 0
        self.done = asyncio.Event()
        self.began = self.ended = (0.0, 0.0)

    async def one(self, _: client.ReceivedMessage[bytes]) -> None:
        """The empty handler."""
        if not self.handled:
            self.began = _now()
        self.handled += 1
        if self.handled == self.wanted:
            self._end()

    async def some(self, messages: list[client.ReceivedMessage[bytes]]) -> None:
        """The empty handler of batches."""
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
        """The line to print."""
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
    """Consume a topic from its beginning with a fresh group."""
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
    """Sends at a steady pace and notes how long each message takes to its handler."""

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
        """Note one."""
        now = time.perf_counter_ns()
        sent, number = _STAMP.unpack_from(message.body)
        self.latencies[number] = now - sent
        self.came += 1
        if self.came == len(self.latencies):
            self._all.set()

    async def send(self, producer: client.Producer[bytes], topic: str) -> None:
        """Send all, and wait for them."""
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
        """The line to print."""
        taken = sorted(self.latencies[self._warm :])
        number = self.counted
        return (
            f"n={number} p50_us={taken[number // 2] / 1e3:.1f} "
            f"p99_us={taken[number * 99 // 100] / 1e3:.1f} "
            f"cpu_us_per={self.cpu / number * 1e6:.4f} extra={self.came - len(self.latencies)}"
        )


async def deliver(words: Sequence[str]) -> str:
    """Producer and push consumer in one process, as in the twin."""
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
    """Do what the command line says; the line to print."""
    if words[0] == "deliver":
        return await deliver(words[1:])
    mode, nameserver, group, batch = *words[:3], int(words[3])
    await consume(mode, nameserver, f"{group}-warm", batch, words[4], int(words[5]))
    return (await consume(mode, nameserver, group, batch, words[6], int(words[7]))).figures()


if __name__ == "__main__":
    print(run(measure(sys.argv[1:])))
