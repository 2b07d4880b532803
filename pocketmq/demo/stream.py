"""The demo's first half: every flight of a year into a broker, out again, and checked.

Sending takes the client's fast lane: messages are accepted without waiting, leave in batches, and a
window of portions is in flight. Flights to one destination share a sharding key, so they are in one
queue and in order. Three consumers share the queues among them and read at the same time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import client
from pocketmq import output, testing
from pocketmq.checks import Sum, differences
from pocketmq.demo.errors import DemoFailed
from pocketmq.flights import COUNT, Flight, flight_of, flights
from pocketmq.process import private_megabytes

TOPIC: Final = "flights"
QUEUES: Final = 12
CONSUMERS: Final = 3

PORTION: Final = 500
"""Messages that are accepted in one go."""

PORTIONS_IN_FLIGHT: Final = 6
"""Enough to keep the broker busy; with more each one only waits longer."""

SINGLE_SENDS: Final = 1000
"""Messages sent one after the other, for the latency of a send that nothing else disturbs."""

PATIENCE: Final = 10.0
"""Seconds without a message, after which one is missing for good."""

READ_PORTION: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the demo measured. Times in seconds.

    Attributes:
        messages, megabytes: of bodies.
        send_seconds, read_seconds: for all of them.
        batch_p50, batch_p99: until a portion was acknowledged, with others in flight.
        single_p50, single_p99: until a single message was, with nothing else going on.
        broker_megabytes: memory that the broker's process has for itself afterwards; 0: unknown.
    """

    messages: int
    megabytes: float
    destinations: int
    send_seconds: float
    read_seconds: float
    batch_p50: float
    batch_p99: float
    single_p50: float
    single_p99: float
    broker_megabytes: float


class Stream:
    """One run against a broker that is there.

    Args:
        limit: only so many flights.
    """

    def __init__(self, server: testing.StandaloneServer, limit: int | None) -> None:
        self._server = server
        self._limit = limit
        self._total = COUNT if limit is None else min(limit, COUNT)
        self._sent = Sum()
        self._received = Sum()
        self._delays: list[float] = []

    async def run(self) -> Result:
        """Send, read and check.

        Raises:
            DemoFailed: something came out differently.
            NoFlights: the data are not installed.
        """
        async with client.Admin(self._server.nameserver) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        async with client.Producer(self._server.nameserver, group="demo") as producer:
            send_seconds = await self._send(producer)
            read_seconds = await self._read()
            if found := differences(self._sent, self._received):
                raise DemoFailed("; ".join(found))
            singles = await self._send_singly(producer)
        return Result(
            messages=self._received.count,
            megabytes=self._received.size / 1e6,
            destinations=len(self._received.chains),
            send_seconds=send_seconds,
            read_seconds=read_seconds,
            batch_p50=quantile(self._delays, 0.50),
            batch_p99=quantile(self._delays, 0.99),
            single_p50=quantile(singles, 0.50),
            single_p99=quantile(singles, 0.99),
            broker_megabytes=private_megabytes(self._server.pid),
        )

    async def _send(self, producer: client.Producer[bytes]) -> float:
        started = time.perf_counter()
        in_flight: deque[_Portion] = deque()
        with output.progress("sending", self._total) as bar:
            for portion in portions(flights(self._limit), PORTION):
                if len(in_flight) >= PORTIONS_IN_FLIGHT:
                    bar.advance(await self._acknowledged(in_flight.popleft()))
                in_flight.append(self._accept(producer, portion))
                # The loop turns, so that what was accepted leaves while the next is prepared.
                await asyncio.sleep(0)
            while in_flight:
                bar.advance(await self._acknowledged(in_flight.popleft()))
        return time.perf_counter() - started

    def _accept(self, producer: client.Producer[bytes], portion: Sequence[Flight]) -> _Portion:
        started = time.perf_counter()
        futures = []
        for flight in portion:
            self._sent.add(flight.destination, flight.line)
            futures.append(
                producer.send_nowait(
                    TOPIC,
                    flight.line,
                    tag=flight.carrier,
                    keys=(flight.tail_number,) if flight.tail_number is not None else (),
                    sharding_key=flight.destination,
                )
            )
        return _Portion(started, futures)

    async def _acknowledged(self, portion: _Portion) -> int:
        for future in portion.futures:
            await future
        self._delays.append(time.perf_counter() - portion.started)
        return len(portion.futures)

    async def _read(self) -> float:
        started = time.perf_counter()
        async with client.Instance(self._server.nameserver) as instance:
            consumers = [instance.pull_consumer(group="demo") for _ in range(CONSUMERS)]
            queues = await consumers[0].queues(TOPIC)
            with output.progress("reading", self._total) as bar:
                await asyncio.gather(
                    *(
                        self._consume(consumer, queues[number::CONSUMERS], bar)
                        for number, consumer in enumerate(consumers)
                    )
                )
        return time.perf_counter() - started

    async def _consume(
        self,
        consumer: client.PullConsumer[bytes],
        queues: Sequence[client.MessageQueue],
        bar: output.Progress,
    ) -> None:
        consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, client.BEGIN)
        quiet_since = time.perf_counter()
        while self._received.count < self._sent.count:
            messages = await consumer.get_many(READ_PORTION, timeout=0.1)
            if messages:
                for message in messages:
                    self._check(message)
                bar.advance(len(messages))
                quiet_since = time.perf_counter()
            elif time.perf_counter() - quiet_since > PATIENCE:
                return

    def _check(self, message: client.ReceivedMessage[bytes]) -> None:
        flight = flight_of(message.body)
        self._received.add(flight.destination, flight.line)
        keys = [] if flight.tail_number is None else [flight.tail_number]
        if message.tag != flight.carrier or message.keys != keys:
            raise DemoFailed(
                f"{message!r} has tag {message.tag} and keys {message.keys}; "
                f"sent were {flight.carrier} and {keys}"
            )

    async def _send_singly(self, producer: client.Producer[bytes]) -> list[float]:
        delays = []
        for flight in flights(min(SINGLE_SENDS, self._total)):
            started = time.perf_counter()
            await producer.send(TOPIC, flight.line, tag=flight.carrier)
            delays.append(time.perf_counter() - started)
        return delays


@dataclass(frozen=True, slots=True)
class _Portion:
    """Messages that were accepted together."""

    started: float
    futures: list[asyncio.Future[client.Receipt]]


def portions(items: Iterable[Flight], size: int) -> Iterator[list[Flight]]:
    """All items, so many at a time."""
    rest = iter(items)
    while portion := list(islice(rest, size)):
        yield portion


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of ``values`` that is not below ``share`` of them; 0 for none."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else 0.0
