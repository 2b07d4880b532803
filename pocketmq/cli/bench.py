"""``pocketmq bench``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

import click

from pocketmq import output
from pocketmq.bench import COLUMNS, BenchError, BenchResult, Load, Tick, consume, latency, produce
from pocketmq.cli.completion import topic_names
from pocketmq.cli.running import Call, call_options, run
from remoting.protocol.limits import MAX_MESSAGE_BYTES
from remoting.runtime.tasks import stop_signal

F = TypeVar("F", bound=Callable[..., Any])

TOPIC: Final = "pocketmq-bench"

PORTION: Final = 1000
"""Messages per update of the progress display."""


def common_options(function: F) -> F:
    """Add the options of every kind of load; option names are the fields of ``Load``."""
    options: list[Callable[[Any], Any]] = [
        click.option(
            "--topic",
            shell_complete=topic_names,
            default=TOPIC,
            show_default=True,
            help="It is not deleted afterwards.",
        ),
        click.option(
            "--duration",
            type=click.FloatRange(min=0, min_open=True),
            default=10.0,
            show_default=True,
            help="Maximum time in seconds.",
        ),
        call_options,
    ]
    for option in reversed(options):
        function = option(function)
    return function


queues_option = click.option(
    "--queues",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Queues per broker, if the topic is created.",
)
size_option = click.option(
    "--size",
    type=click.IntRange(1, MAX_MESSAGE_BYTES),
    default=1024,
    show_default=True,
    help="Size of a body in bytes.",
)
warm_up_option = click.option(
    "--warm-up",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Seconds before the measurement.",
)


@click.group(epilog="Example: pocketmq bench produce --size 256 --concurrency 128 --duration 30")
def bench() -> None:
    """Measure throughput and latency of a cluster, PocketMQ's or Apache's."""


@bench.command(name="produce", epilog="Example: pocketmq bench produce --rate 5000 --duration 60")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 100_000),
    default=64,
    show_default=True,
    help="Sends in flight.",
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages a second.")
@size_option
@queues_option
@warm_up_option
@common_options
def produce_(call: Call, **load: Any) -> None:
    """Send messages. With --rate a latency begins when the message was due."""
    _measure(call, produce, load)


@bench.command(name="consume", epilog="Example: pocketmq bench consume --concurrency 4")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Consumers, which share the queues.",
)
@common_options
def consume_(call: Call, **load: Any) -> None:
    """Read all messages of the topic; no offset is committed."""
    _measure(call, consume, {**load, "warm_up": 0.0})


@bench.command(name="latency", epilog="Example: pocketmq bench latency --rate 1000 --size 128")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=500.0,
    show_default=True,
    help="Messages a second.",
)
@size_option
@queues_option
@warm_up_option
@common_options
def latency_(call: Call, **load: Any) -> None:
    """Send at a rate, and measure when messages are acknowledged and delivered."""
    _measure(call, latency, load)


def _measure(
    call: Call,
    kind: Callable[[Load, Any, Tick], Coroutine[Any, Any, list[BenchResult]]],
    options: Mapping[str, Any],
) -> None:
    load = Load(nameserver=call.nameserver, **options)

    async def measure() -> list[BenchResult]:
        with output.progress("messages", None) as advance:
            return await kind(load, stop_signal(), _in_portions(advance))

    try:
        results = run(measure())
    except BenchError as problem:
        raise click.ClickException(str(problem)) from problem
    for result in results:
        if result.failed:
            click.echo(
                f"{output.count(result.failed, 'message')} failed; the first: {result.why}",
                err=True,
            )
    call.show_rows([result.row() for result in results], COLUMNS)


def _in_portions(advance: Tick) -> Tick:
    """Return a tick that calls ``advance`` once per portion: updating the display is slow."""
    waiting = 0

    def tick(count: int) -> None:
        nonlocal waiting
        waiting += count
        if waiting >= PORTION:
            advance(waiting)
            waiting = 0

    return tick
