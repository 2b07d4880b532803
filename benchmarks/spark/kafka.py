"""Runs the rounds of Kafka's source and ours, and computes rates and ratios."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.clients.servers import kafka as kafka_server
from benchmarks.figures import spread
from benchmarks.spark.kafka_process import Lane, lane
from benchmarks.spark.results import SIZES, Plan, Result, session
from benchmarks.spark.tcp import fill, through_spark, topic_of
from benchmarks.tools import say
from pocketmq import testing
from pocketmq.testing import StandaloneServer

BAR: Final = 1.5
"""The least ratio of our rate to that of Kafka's source, with properties and headers."""

WARM_ROUNDS: Final = 2
"""Warm-up rounds: Kafka's JVM has been warmed up by filling its topics, ours has not."""

FULL: Final = "all columns"
BODY: Final = "body only"
KINDS: Final[dict[str, str | None]] = {FULL: None, BODY: "body binary"}
"""The comparisons, and the schema for our source; None for all columns."""

Rates = dict[tuple[int, str, str], list[float]]
"""Rows per second of every round, by size, kind and source."""


def measure(plan: Plan) -> list[Result]:
    """Measure the rates of both sources and their ratios.

    Raises:
        Unavailable: Kafka or its Spark can't be installed.
    """
    counts = plan.counts(4)
    with (
        tempfile.TemporaryDirectory(prefix="bench-spark-") as home,
        kafka_server(Path(home)) as address,
        lane(address) as theirs,
        testing.broker(settings={"mappedFileSizeCommitLog": str(1 << 30)}) as server,
    ):
        for size in SIZES:
            _fill(server, theirs, size, counts[size])
        spark = session()
        try:
            return _results(_rounds(spark, server, theirs, counts, plan.rounds))
        finally:
            spark.stop()


def _fill(server: StandaloneServer, theirs: Lane, size: int, count: int) -> None:
    fill(server, size, count)
    stored = theirs.ask("fill", topic=topic_of(size), size=size, count=count)["count"]
    if stored != count:
        raise SystemExit(f"Kafka has {stored} messages of {size} B instead of {count}")


def _rounds(
    spark: Any,
    server: StandaloneServer,
    theirs: Lane,
    counts: dict[int, int],
    rounds: int,
) -> Rates:
    rates: Rates = {}
    for number in range(-WARM_ROUNDS, rounds):
        for size, count in counts.items():
            for kind, columns in KINDS.items():
                took = {}
                order = ("kafka", "ours") if number % 2 == 0 else ("ours", "kafka")
                for whose in order:
                    took[whose] = (
                        through_spark(spark, server, size, columns)
                        if whose == "ours"
                        else theirs.ask(
                            "read", topic=topic_of(size), body_only=columns is not None
                        )["seconds"]
                    )
                ratio = took["kafka"] / took["ours"]
                say(f"  {size} B, {kind}, round {number + 1}: {ratio:.2f} times Kafka's")
                for whose, seconds in took.items() if number >= 0 else ():
                    rates.setdefault((size, kind, whose), []).append(count / seconds)
    return rates


def _results(rates: Rates) -> list[Result]:
    results = []
    for size in SIZES:
        for kind in KINDS:
            ours, kafka = rates[size, kind, "ours"], rates[size, kind, "kafka"]
            name = f"kafka, {size} B, {kind}"
            results += [
                Result(f"{name}: ours", "rows/s", spread(ours)),
                Result(f"{name}: Kafka's", "rows/s", spread(kafka)),
                Result(
                    f"{name}: ratio",
                    "times",
                    spread([one / other for one, other in zip(ours, kafka, strict=True)]),
                    BAR if kind == FULL else None,
                ),
            ]
    return results
