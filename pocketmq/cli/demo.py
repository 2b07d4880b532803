"""``pocketmq demo``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from client.errors import PocketMQError
from pocketmq import output
from pocketmq.cli.running import json_option, quiet
from pocketmq.demo import CONSUMERS, DemoFailed, GroupResult, Result, run
from pocketmq.flights import COUNT, NoFlights
from pocketmq.testing import ServerError


@click.command(epilog="Example: pocketmq demo --limit 10000")
@click.option("--limit", type=click.IntRange(1, COUNT), help="Only so many flights.")
@click.option("--spark", is_flag=True, help="Let Spark work on the flights instead.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default=Path("pocketmq-delays.html"),
    show_default=True,
    help="With --spark: the page with its plot.",
)
@json_option
def demo(limit: int | None, spark: bool, plot: Path, as_json: bool) -> None:
    """Send every flight that left New York in 2013 to a broker of its own, and read them back.

    Then a consumer group handles them while members join and one is killed, and another one in
    order, with a flight that can't be handled. Count, order per destination and every byte are
    checked. The broker is a process of its own with a temporary store; both are gone afterwards.

    With --spark the flights are a stream that Spark reads: their delays per day, airport and
    carrier go to Parquet files and to a topic, and are checked too. It needs Java, and
    pocketmq[spark].
    """
    quiet()
    try:
        if spark:
            _show_spark(limit, plot, as_json=as_json)
            return
        result, group = run(limit, silent=as_json)
    except (DemoFailed, NoFlights, PocketMQError, ServerError) as problem:
        raise click.ClickException(str(problem)) from problem
    if as_json:
        output.show_json(asdict(result) | {"group": asdict(group), "checked": True})
    else:
        output.show_facts(_table(result, group), as_json=False)


def _show_spark(limit: int | None, plot: Path, *, as_json: bool) -> None:
    from pocketmq.demo import spark  # noqa: PLC0415 - only this half of the demo needs it

    result = spark.run(limit, plot, silent=as_json)
    if as_json:
        output.show_json(asdict(result) | {"checked": True})
        return
    output.show_rows(result.table, list(result.table[0]) if result.table else [], as_json=False)
    facts: dict[str, object] = {
        "flights": f"{result.flights:,}",
        "sent": _speed(result.flights, result.send_seconds),
        "streamed": f"{_speed(result.flights, result.query_seconds)}, {result.batches} batches",
        "figures": f"{result.figures:,} of days, airports and carriers, in files and in a topic",
        "checked": "each figure, in both places, against plain Python; the group's lag is 0",
        "plot": result.plot,
    }
    output.show_facts(facts, as_json=False)


def _table(result: Result, group: GroupResult) -> dict[str, object]:
    facts: dict[str, object] = {
        "messages": f"{result.messages:,} to {result.destinations} destinations",
        "megabytes": f"{result.megabytes:.1f} MB",
        "sent": _speed(result.messages, result.send_seconds),
        f"read by {CONSUMERS} consumers": _speed(result.messages, result.read_seconds),
        "latency of one send": _latency(result.single_p50, result.single_p99),
        "latency in the stream": _latency(result.batch_p50, result.batch_p99),
        "broker's memory": f"{result.broker_megabytes:.1f} MiB private"
        if result.broker_megabytes
        else "not known here",
        "checked": "count, order per destination, every byte, tags and keys",
        "the group": f"every flight was handled, {group.duplicates:,} of them twice; a queue whose "
        f"member was killed was taken over in {group.takeover_seconds:.1f} s",
        "the group in order": f"order kept for {group.destinations} destinations, "
        f"{group.duplicates_in_order:,} flights handled twice, {group.dead_letters} dead letter",
    }
    return facts


def _speed(messages: int, seconds: float) -> str:
    return f"{seconds:.2f} s, {messages / seconds:,.0f} messages/s"


def _latency(p50: float, p99: float) -> str:
    return f"p50 {p50 * 1000:.2f} ms, p99 {p99 * 1000:.2f} ms"
