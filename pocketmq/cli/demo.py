"""``pocketmq demo``: send every flight of a year through a temporary broker and check each."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Final, NamedTuple

import click

import client
from client.errors import PocketMQError
from pocketmq import output, testing
from pocketmq.cli.running import json_option, quiet
from pocketmq.flights import COUNT, Flight, NoFlights, Sum, differences, flight_of, flights
from pocketmq.server.process import private_megabytes
from pocketmq.testing import ServerError
from remoting.runtime import tasks as loop

TOPIC: Final = "flights"
QUEUES: Final = 12
CONSUMERS: Final = 3

PORTION: Final = 500
"""Messages passed to the producer between two awaits."""
PORTIONS_IN_FLIGHT: Final = 6
"""Portions not yet acknowledged: enough to keep the broker busy; more only raises latency."""

SINGLE_SENDS: Final = 1000
"""Messages sent one after another, for the latency of a send without other load."""
MESSAGE_TIMEOUT: Final = 10.0
"""Seconds without a message after which missing messages count as lost."""
READ_PORTION: Final = 1024


class DemoFailed(Exception):
    """The result is not as expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The measurements of the demo. Times in seconds; ``broker_megabytes`` is 0 if unknown.

    ``batch_*`` is the time until a portion was acknowledged while others were in flight,
    ``single_*`` that of one message without other load.
    """

    messages: int
    megabytes: float
    destinations: int
    send_seconds: float
    read_seconds: float
    group_seconds: float
    batch_p50: float
    batch_p99: float
    single_p50: float
    single_p99: float
    broker_megabytes: float


@click.command(epilog="Example: pocketmq demo --limit 10000")
@click.option("--limit", type=click.IntRange(1, COUNT), help="Number of flights.  [default: all]")
@json_option
def demo(limit: int | None, as_json: bool) -> None:
    """Send every flight that left New York in 2013 to a temporary broker, and read them back.

    Three consumers read the flights from their queues, and a consumer group of three members
    handles them, each queue in order. Count, order per destination and every byte are checked. The
    broker runs in a separate process with a temporary store, which is deleted afterwards.
    """
    quiet()
    try:
        next(flights(1))  # Fail before a broker is started if the data are missing.
        with testing.broker() as server:
            result = loop.run(Demo(server, limit).run())
    except (DemoFailed, NoFlights, PocketMQError, ServerError) as problem:
        raise click.ClickException(str(problem)) from problem
    if as_json:
        output.show_json(asdict(result) | {"checked": True})
        return
    memory = f"{result.broker_megabytes:.1f} MiB private" if result.broker_megabytes else "unknown"
    facts: dict[str, object] = {
        "messages": f"{result.messages:,} to {result.destinations} destinations",
        "megabytes": f"{result.megabytes:.1f} MB",
        "sent": _speed(result.messages, result.send_seconds),
        f"read by {CONSUMERS} consumers": _speed(result.messages, result.read_seconds),
        "handled by a group, in order": _speed(result.messages, result.group_seconds),
        "latency of one send": _latency(result.single_p50, result.single_p99),
        "latency in the stream": _latency(result.batch_p50, result.batch_p99),
        "broker's memory": memory,
        "checked": "count, order per destination, every byte, tags and keys; the group's lag is 0",
    }
    output.show_facts(facts, as_json=False)


class Demo:
    """One run of the demo against a running broker.

    Args:
        limit: the number of flights; None for all.
    """

    def __init__(self, server: testing.StandaloneServer, limit: int | None) -> None:
        self._server = server
        self._limit = limit
        self._total = COUNT if limit is None else min(limit, COUNT)
        self._sent = Sum()
        self._delays: list[float] = []

    async def run(self) -> DemoResult:
        """Send, read, handle and check.

        Raises:
            DemoFailed: a check failed.
        """
        nameserver = self._server.nameserver
        async with (
            client.Admin(nameserver) as admin,
            client.Producer(nameserver, group="demo") as producer,
        ):
            # Create the topic now: the first send would create it with the broker's default number
            # of queues.
            await admin.create_topic(TOPIC, queues=QUEUES)
            send_seconds = await self._send(producer)
            received, handled = Sum(), Sum()
            read_seconds = await self._read(received)
            group_seconds = await self._handle(handled)
            found = differences(self._sent, received) + differences(self._sent, handled)
            if behind := (await admin.lag("demo-group", topic=TOPIC)).total:
                found.append(f"the group is {behind} messages behind after all have left cleanly")
            if found:
                raise DemoFailed("; ".join(found))
            delays = []
            for flight in flights(min(SINGLE_SENDS, self._total)):
                started = time.perf_counter()
                await producer.send(TOPIC, flight.line, tag=flight.carrier)
                delays.append(time.perf_counter() - started)
            singles = delays
        return DemoResult(
            messages=received.count,
            megabytes=received.size / 1e6,
            destinations=len(received.chains),
            send_seconds=send_seconds,
            read_seconds=read_seconds,
            group_seconds=group_seconds,
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
                # Let the loop send this portion while the next one is prepared.
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
                    # Flights to the same destination go to the same queue, so they stay in order.
                    sharding_key=flight.destination,
                )
            )
        return _Portion(started, futures)

    async def _acknowledged(self, portion: _Portion) -> int:
        for future in portion.futures:
            await future
        self._delays.append(time.perf_counter() - portion.started)
        return len(portion.futures)

    async def _read(self, received: Sum) -> float:
        """Read all flights with three pull consumers that divide the queues among themselves."""
        started = time.perf_counter()
        async with client.Instance(self._server.nameserver) as instance:
            consumers = [instance.pull_consumer(group="demo") for _ in range(CONSUMERS)]
            queues = await consumers[0].queues(TOPIC)
            with output.progress("reading", self._total) as bar:
                await asyncio.gather(
                    *(
                        self._consume(consumer, queues[number::CONSUMERS], received, bar)
                        for number, consumer in enumerate(consumers)
                    )
                )
        return time.perf_counter() - started

    async def _consume(
        self,
        consumer: client.PullConsumer[bytes],
        queues: Sequence[client.MessageQueue],
        received: Sum,
        bar: output.Progress,
    ) -> None:
        consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, client.BEGIN)
        quiet_since = time.perf_counter()
        while received.count < self._sent.count:
            messages = await consumer.get_many(READ_PORTION, timeout=0.1)
            if messages:
                for message in messages:
                    _check(message, received)
                bar.advance(len(messages))
                quiet_since = time.perf_counter()
            elif time.perf_counter() - quiet_since > MESSAGE_TIMEOUT:
                return

    async def _handle(self, handled: Sum) -> float:
        """Handle all flights in a group of three members, each queue in order."""
        started = time.perf_counter()
        done = asyncio.Event()

        async def handle(messages: list[client.ReceivedMessage[bytes]]) -> None:
            for message in messages:
                _check(message, handled)
            if handled.count >= self._sent.count:
                done.set()

        members = [
            client.PushConsumer(
                self._server.nameserver,
                group="demo-group",
                subscribe={TOPIC: "*"},
                handler=handle,
                order=client.Orderly(),
                batch_size=READ_PORTION,
                start_from=client.FIRST,
            )
            for _ in range(CONSUMERS)
        ]
        async with members[0], members[1], members[2]:
            # After a timeout, the comparison with the sent flights reports the missing ones.
            with suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), 6 * MESSAGE_TIMEOUT)
        return time.perf_counter() - started


class _Portion(NamedTuple):
    """Messages that were passed to the producer together."""

    started: float
    futures: list[asyncio.Future[client.Receipt]]


def _check(message: client.ReceivedMessage[bytes], seen: Sum) -> None:
    flight = flight_of(message.body)
    seen.add(flight.destination, flight.line)
    keys = [] if flight.tail_number is None else [flight.tail_number]
    if message.tag != flight.carrier or message.keys != keys:
        raise DemoFailed(
            f"{message!r} has tag {message.tag} and keys {message.keys}; "
            f"sent were {flight.carrier} and {keys}"
        )


def portions(items: Iterable[Flight], size: int) -> Iterator[list[Flight]]:
    """Yield the items in lists of at most ``size``."""
    rest = iter(items)
    while portion := list(islice(rest, size)):
        yield portion


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of the values don't exceed; 0 if empty."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else 0.0


def _speed(messages: int, seconds: float) -> str:
    return f"{seconds:.2f} s, {messages / seconds:,.0f} messages/s"


def _latency(p50: float, p99: float) -> str:
    return f"p50 {p50 * 1000:.2f} ms, p99 {p99 * 1000:.2f} ms"
