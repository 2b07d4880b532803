"""Measure the Python client: sending, reading and delivery.

    python -m benchmarks.client_lane                      # starts a broker
    python -m benchmarks.client_lane --nameserver 10.0.0.5:9876
    python -m benchmarks.client_lane --apache 127.0.0.1:9876   # alternates with another cluster

Every round runs each scenario once, so that slow phases of the machine affect all of them. Rates
depend on other users of the cores; CPU per message is that of this process (``process_time``).

==========  ====================================================================================
scenario    what is measured
==========  ====================================================================================
nowait      ``send_nowait``, the futures of a window awaited together at its end
many        ``send_many`` of a window
tasks       256 tasks, each awaiting its ``send``; p50 and p99 of one send
consume     ``get_many``; body, topic and offset of every message are read
push        a push consumer whose handler does nothing; ``orderly`` and ``batch`` the same
deliver     500 messages a second; p50 and p99 from ``send_nowait`` to ``get_many``
==========  ====================================================================================
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import client
from pocketmq import testing
from remoting.tasks import run

TASKS = 256
DELIVERIES_PER_SECOND = 500
READ_AT_ONCE = 1024
PATIENCE = 30.0
"""Seconds without any message after which a run fails."""


class Figures(NamedTuple):
    """The figures of one run: times in seconds, and sorted latencies, if measured."""

    messages: int
    seconds: float
    cpu: float
    latencies: list[float]


class Load(NamedTuple):
    """The settings of one run."""

    nameserver: str
    topic: str
    messages: int
    window: int
    body: bytes


class Stopwatch:
    """Measures wall-clock and CPU time since its creation."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, messages: int, latencies: list[float] | None = None) -> Figures:
        """Return the figures of a run that ends now."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return Figures(messages, wall, cpu, sorted(latencies or []))


async def nowait(load: Load) -> Figures:
    """Send windows of futures."""
    async with client.Producer(load.nameserver, max_in_flight=load.window + 1) as producer:
        await producer.send(load.topic, load.body)
        watch = Stopwatch()
        send, topic, body = producer.send_nowait, load.topic, load.body
        for _ in range(load.messages // load.window):
            window = [send(topic, body) for _ in range(load.window)]
            for future in window:
                await future
        return watch.stop(load.messages // load.window * load.window)


async def many(load: Load) -> Figures:
    """Send windows of messages."""
    async with client.Producer(load.nameserver) as producer:
        await producer.send(load.topic, load.body)
        watch = Stopwatch()
        for _ in range(load.messages // load.window):
            for result in await producer.send_many(
                [client.Message(load.topic, load.body) for _ in range(load.window)]
            ):
                assert isinstance(result, client.Receipt), result
        return watch.stop(load.messages // load.window * load.window)


async def tasks(load: Load) -> Figures:
    """Send from many tasks, each of which awaits each receipt."""
    latencies: list[float] = []
    async with client.Producer(load.nameserver) as producer:
        await producer.send(load.topic, load.body)

        async def one() -> None:
            for _ in range(load.messages // TASKS):
                began = time.perf_counter()
                await producer.send(load.topic, load.body)
                latencies.append(time.perf_counter() - began)

        watch = Stopwatch()
        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(one())
        return watch.stop(len(latencies), latencies)


async def consume(load: Load) -> Figures:
    """Read the messages of the send scenarios, from the start of the queues."""
    wanted = load.messages - max(load.window, TASKS)
    async with client.PullConsumer(load.nameserver, group="lane") as consumer:
        consumer.assign(await consumer.queues(load.topic))
        number = size = 0
        watch = Stopwatch()
        while number < wanted:
            messages = await consumer.get_many(READ_AT_ONCE, timeout=PATIENCE)
            assert messages, f"nothing came after {number} messages"
            for message in messages:
                size += len(message.body) + len(message.topic) + (message.offset >= 0)
            number += len(messages)
        return watch.stop(number)


def pushing(**options: Any) -> Callable[[Load], Coroutine[Any, Any, Figures]]:
    """Return a scenario with a push consumer, from its start until all messages are handled."""

    async def handled(load: Load) -> Figures:
        wanted = load.messages - max(load.window, TASKS)
        number, done = 0, asyncio.Event()

        async def one(_: Any) -> None:
            nonlocal number
            number += 1
            if number == wanted:
                done.set()

        async def several(messages: list[Any]) -> None:
            nonlocal number
            number += len(messages)
            if number >= wanted:
                done.set()

        watch = Stopwatch()
        async with client.PushConsumer(
            load.nameserver,
            group=f"lane-{load.topic}-{len(options)}-{options.get('batch_size', 1)}",
            subscribe={load.topic: "*"},
            handler=several if "batch_size" in options else one,
            start_from=client.FIRST,
            **options,
        ):
            async with asyncio.timeout(PATIENCE):
                await done.wait()
            return watch.stop(number)

    return handled


async def deliver(load: Load) -> Figures:
    """Send at a constant rate to a waiting consumer."""
    topic, number = f"{load.topic}-deliver", min(load.messages, 4 * DELIVERIES_PER_SECOND)
    latencies: list[float] = []
    async with (
        client.Producer(load.nameserver) as producer,
        client.PullConsumer(load.nameserver, group="lane", start_from=client.END) as consumer,
    ):
        await producer.send(topic, b"first")
        queues = await consumer.queues(topic)
        consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, client.END)
        await asyncio.sleep(0.2)

        async def receive() -> None:
            while len(latencies) < number:
                messages = await consumer.get_many(READ_AT_ONCE, timeout=PATIENCE)
                assert messages, f"nothing came after {len(latencies)} messages"
                now = time.perf_counter_ns()
                latencies.extend((now - int(message.body[:20])) / 1e9 for message in messages)

        receiver = asyncio.create_task(receive())
        watch = Stopwatch()
        begin = time.perf_counter()
        for sent in range(number):
            await asyncio.sleep(
                max(0.0, begin + sent / DELIVERIES_PER_SECOND - time.perf_counter())
            )
            stamp = b"%020d" % time.perf_counter_ns()
            producer.send_nowait(topic, stamp + load.body[20:])
        await receiver
        return watch.stop(number, latencies)


SCENARIOS: dict[str, Callable[[Load], Coroutine[Any, Any, Figures]]] = {
    "nowait": nowait,
    "many": many,
    "tasks": tasks,
    "consume": consume,
    "push": pushing(),
    "orderly": pushing(order=client.Orderly()),
    "batch": pushing(batch_size=32),
    "deliver": deliver,
}

READING = {"consume", "push", "orderly", "batch"}
"""Scenarios that read messages sent by other scenarios."""


def percentile(ordered: list[float], share: float) -> float:
    """Return a percentile of sorted values; ``share`` is between 0 and 1."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def report(name: str, runs: list[Figures]) -> str:
    """Return a line with the medians of all runs of a scenario, and the range of its rate."""
    rates = sorted(run.messages / run.seconds for run in runs)
    cpu = sorted(run.cpu / run.messages * 1e6 for run in runs)
    line = (
        f"{name:18} {statistics.median(rates):>9,.0f} messages/s ({rates[0]:,.0f} to "
        f"{rates[-1]:,.0f})  {statistics.median(cpu):5.2f} us CPU each (least {cpu[0]:.2f})"
    )
    if runs[0].latencies:
        p50 = statistics.median(percentile(run.latencies, 0.5) for run in runs)
        p99 = statistics.median(percentile(run.latencies, 0.99) for run in runs)
        line += f"  p50 {p50 * 1e6:,.0f} us  p99 {p99 * 1e6:,.0f} us"
    return line


@contextmanager
def clusters(arguments: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Yield the name servers to measure, by label; starts a broker if none is given."""
    theirs = {"Apache": arguments.apache} if arguments.apache else {}
    if arguments.nameserver:
        yield {"": arguments.nameserver, **theirs}
        return
    with testing.broker() as server:
        yield {"": server.nameserver, **theirs}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=", ".join(SCENARIOS))
    parser.add_argument("--nameserver", help="measure there instead of at a broker of our own")
    parser.add_argument("--apache", metavar="HOST:PORT", help="another name server, in turns")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--window", type=int, default=3_000, help="in flight together")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body, from 20")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    unknown = set(arguments.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"there is no scenario {min(unknown)}; there are {', '.join(SCENARIOS)}")
    wanted = arguments.scenarios or list(SCENARIOS)
    runs: dict[str, list[Figures]] = {}
    stamp = int(time.time())
    with clusters(arguments) as addresses:
        for number in range(arguments.rounds):
            for label, address in addresses.items():
                load = Load(
                    address,
                    f"lane-{stamp}-{number}",
                    arguments.messages,
                    arguments.window,
                    b"x" * arguments.size,
                )
                if "consume" in wanted and not {"nowait", "many", "tasks"} & set(wanted):
                    run(nowait(load))
                for name in wanted:
                    runs.setdefault(f"{label} {name}".strip(), []).append(
                        run(SCENARIOS[name](load))
                    )
    for name, figures in runs.items():
        print(report(name, figures))


if __name__ == "__main__":
    main()
