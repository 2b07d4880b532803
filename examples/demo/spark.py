"""The Spark demo: compute delays per day, airport and carrier from a topic with a year of flights.

    python -m examples.demo.spark --limit 20000 --plot delays.html

It starts a temporary broker, sends the flights, and reads them in a local Spark session in batches.
The results are written to Parquet files and to a topic. Both are compared with those of plain
Python, and the lag of the group has to be 0. At the end the broker, its files and the session are
removed; the output is an HTML page with a plot.
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
from examples.demo.flights import DemoFailed
from examples.demo.plain_delays import Figures, Place, counted
from examples.demo.stage import Stage, stage
from examples.spark import send_flights as departures
from pocketmq import output, testing
from remoting.runtime import tasks as loop

TOPIC: Final = "flights"
RESULTS: Final = "delays"
NEEDED: Final = ("pyspark", "pyarrow", "numpy")
LOOK_PERIOD: Final = 0.2
"""Seconds between checks of the query's progress."""

PLOT: Final = Path(tempfile.gettempdir()) / "pocketmq-delays.html"
"""Where the plot goes by default: not to the current directory, which is a clone."""

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The run is too short for the optimising compiler to pay off.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkResult:
    """The results of the demo; times in seconds.

    Attributes:
        flights: the number of flights in the topic.
        batches: the number of batches of the streaming query.
        figures: the number of result rows, each in the files and in the topic.
        send_seconds: the time to send the flights.
        query_seconds: the time of the query, including its start.
        plot: the path of the page.
        table: a row per airport and carrier, the largest mean delay first.
    """

    flights: int
    batches: int
    figures: int
    send_seconds: float
    query_seconds: float
    plot: str
    table: list[dict[str, object]]


def run(limit: int | None, page: Path, *, silent: bool = False) -> SparkResult:
    """Run the demo.

    Args:
        limit: the number of flights, or None for all.
        page: the path of the HTML page to write.
        silent: whether to show no progress.

    Raises:
        DemoFailed: Spark or Java is missing, or a result is wrong.
        NoFlights: the data is not installed.
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
    """Runs the query, checks its results and writes the plot."""

    def __init__(self, spark: Any, nameserver: str, directory: str, shown: Stage) -> None:
        from examples.spark import delays  # noqa: PLC0415 - see above

        self._delays = delays
        self._spark = spark
        self._nameserver = nameserver
        self._directory = directory
        self._shown = shown

    def run(self) -> tuple[int, float]:
        """Run the query to its end; return the number of batches and the seconds it took."""
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
        """Compare files and topic with the results of plain Python; return the number of results.

        Raises:
            DemoFailed: they differ, or the group has a lag.
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
        """Write the page with the plot; return the rows of its table."""
        rows = self._delays.by_airport(self._spark, self._directory)
        table: list[dict[str, object]] = [row.asDict() for row in rows]
        lines: dict[str, list[tuple[date, float]]] = defaultdict(list)
        for row in self._delays.by_day(self._spark, self._directory):
            lines[row.origin].append((row.day, row.mean_delay))
        text = plot.page("Departures from New York", "min late", lines, table)
        page.write_text(text, encoding="utf-8")
        return table


def main() -> None:
    """Run the demo and print its results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--limit", type=int, help="only so many flights")
    parser.add_argument("--plot", type=Path, default=PLOT)
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
