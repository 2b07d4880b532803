"""A year of flights with Spark: from a topic to delays per day, airport and carrier.

    python -m examples.demo.spark --limit 20000 --plot delays.html

A broker of its own gets the flights; a Spark session in this process's own JVM reads them in
batches, and its figures go to Parquet files and to a topic. Both are compared with what plain
Python counts, and the group's lag has to be 0. The broker, the files and the session are gone
afterwards; what stays is a page with a plot.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from client.blocking import Admin
from examples.demo import plot
from examples.demo.plain_delays import Figures, Place, counted
from examples.demo.stage import Stage, stage
from examples.spark import send_flights as departures
from pocketmq import output, testing
from pocketmq.cli.demo import DemoFailed
from remoting import tasks as loop

TOPIC: Final = "flights"
RESULTS: Final = "delays"
NEEDED: Final = ("pyspark", "pyarrow", "numpy")
LOOK_PERIOD: Final = 0.2
"""Seconds between looks at the query."""

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # It is over before better code would pay.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkResult:
    """What the pipeline did. Times in seconds.

    Attributes:
        flights: in the topic.
        batches: of the streaming query.
        figures: rows that it wrote, to files and to the topic.
        send_seconds: to get the flights to the broker.
        query_seconds: of the query, its start included.
        plot: the page.
        table: per airport and carrier, the largest mean delay first.
    """

    flights: int
    batches: int
    figures: int
    send_seconds: float
    query_seconds: float
    plot: str
    table: list[dict[str, object]]


def run(limit: int | None, page: Path, *, silent: bool = False) -> SparkResult:
    """Run it.

    Args:
        limit: only so many flights.
        page: where the plot goes.
        silent: show nothing meanwhile.

    Raises:
        DemoFailed: Spark or Java isn't there, or something came out differently.
        NoFlights: the data are not installed.
        ServerError: the broker did not start.
    """
    _check_needs()
    flights = list(departures.records(limit))
    with (
        testing.broker() as server,
        tempfile.TemporaryDirectory(prefix="pocketmq-spark-") as directory,
        stage(silent=silent) as shown,
        Admin(server.nameserver) as admin,
    ):
        began = time.perf_counter()
        loop.run(departures.send(server.nameserver, TOPIC, flights))
        send_seconds = time.perf_counter() - began
        shown.tell(f"{len(flights):,} flights are in the topic {TOPIC}; Spark starts")
        admin.create_topic(RESULTS, queues=3)
        spark = _session()
        try:
            demo = _Pipeline(spark, server.nameserver, directory, shown)
            batches, query_seconds = demo.run()
            figures = demo.check(flights, admin)
            table = demo.show(page)
        finally:
            spark.stop()
    return SparkResult(
        flights=len(flights),
        batches=batches,
        figures=figures,
        send_seconds=send_seconds,
        query_seconds=query_seconds,
        plot=str(page),
        table=table,
    )


def _check_needs() -> None:
    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if lacking:
        raise DemoFailed(f"{', '.join(lacking)} can't be found: pip install 'pocketmq[spark,demo]'")
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise DemoFailed("Spark needs Java 17 or later: put java on the PATH or set JAVA_HOME")


def _session() -> Any:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only this half of the demo needs it

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("pocketmq-demo")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class _Pipeline:
    """The query, the proof and the plot."""

    def __init__(self, spark: Any, nameserver: str, directory: str, shown: Stage) -> None:
        from examples.spark import delays  # noqa: PLC0415 - see above

        self._delays = delays
        self._spark = spark
        self._nameserver = nameserver
        self._directory = directory
        self._shown = shown

    def run(self) -> tuple[int, float]:
        """Run the query to its end: how many batches there were, and the seconds it took."""
        began = time.perf_counter()
        query = self._delays.start(
            self._spark,
            self._nameserver,
            topic=TOPIC,
            result_topic=RESULTS,
            directory=self._directory,
        )
        told, ended = -1, False
        while not ended:
            ended = query.awaitTermination(LOOK_PERIOD)
            for progress in query.recentProgress:
                if progress.batchId > told and progress.numInputRows:
                    told = progress.batchId
                    seconds = progress.batchDuration / 1000
                    self._shown.tell(
                        f"batch {told}: {progress.numInputRows:,} flights in {seconds:.1f} s"
                    )
        return told + 1, time.perf_counter() - began

    def check(self, flights: list[departures.Record], admin: Admin) -> int:
        """Compare files and topic with what plain Python counts; how many figures there are.

        Raises:
            DemoFailed: they differ, or the group has not come to the end of its topic.
        """
        expected = counted(flights)
        found = {
            "the files": self._delays.in_files(self._spark, self._directory),
            "the topic": self._delays.in_topic(self._spark, self._nameserver, RESULTS),
        }
        for place, rows in found.items():
            figures = {Place(*row[:3]): Figures(*row[3:]) for row in rows}
            if figures != expected or len(rows) != len(expected):
                raise DemoFailed(f"the figures in {place} are not those that plain Python counts")
        lag = admin.lag(self._delays.GROUP, topic=TOPIC).total
        if lag:
            raise DemoFailed(f"the group {self._delays.GROUP} has a lag of {lag} in the end, not 0")
        return len(expected)

    def show(self, page: Path) -> list[dict[str, object]]:
        """Write the plot; the rows of the table."""
        rows = self._delays.by_airport(self._spark, self._directory)
        table: list[dict[str, object]] = [row.asDict() for row in rows]
        lines: dict[str, list[tuple[date, float]]] = defaultdict(list)
        for row in self._delays.by_day(self._spark, self._directory):
            lines[row.origin].append((row.day, row.mean_delay))
        text = plot.page("Departures from New York", "min late", lines, table)
        page.write_text(text, encoding="utf-8")
        return table


def main() -> None:
    """Run it and print what it found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--limit", type=int, help="only so many flights")
    parser.add_argument("--plot", type=Path, default=Path("pocketmq-delays.html"))
    given = parser.parse_args()
    result = run(given.limit, given.plot)
    output.show_rows(result.table, list(result.table[0]) if result.table else [], as_json=False)
    speed = f"{result.flights / result.query_seconds:,.0f} messages/s"
    facts: dict[str, object] = {
        "streamed": f"{result.query_seconds:.2f} s, {speed}, {result.batches} batches",
        "figures": f"{result.figures:,} of days, airports and carriers, in files and in a topic",
        "checked": "each figure, in both places, against plain Python; the group's lag is 0",
        "plot": result.plot,
    }
    output.show_facts(facts, as_json=False)


if __name__ == "__main__":
    main()
