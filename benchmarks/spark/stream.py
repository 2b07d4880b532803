"""Measure the overhead of a streaming query with empty micro-batches, and of an idle one.

*An empty micro-batch*: a query with a consumer group reads one message from each of four queues per
micro-batch, limited by ``maxOffsetsPerTrigger``, and its ``filterTags`` matches none of them. So
every batch sends requests to the broker, is planned, starts four tasks that pull, and is committed,
but has no row. The connector's share is the time Spark spent in the source, on the driver and in
all tasks, summed as if tasks had run one after another. The time of the whole batch is Spark's
``triggerExecution``. The first batches, before the workers are warm, are not counted.

*An idle query*: at the end of its topic, with the default trigger. Counted are all frames that the
broker and the name server received, from their metrics, including the registration of the broker.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from benchmarks.figures import spread
from benchmarks.spark.results import Plan, Result, session
from benchmarks.tools import say
from pocketmq.testing import ServerProcess
from spark_connector.source.data_source import RocketMQDataSource
from spark_connector.source.stream import RocketMQStreamReader
from tests.integration.spark_connector.filling import Filler

QUEUES: Final = 4
WARM_BATCHES: Final = 5
EMPTY_BAR_MS: Final = 30.0
IDLE_BAR: Final = 2.0
"""The most requests per second of an idle query."""

SETTLE: Final = 3.0
"""Seconds after which a query that has read everything is considered idle."""

TOPIC: Final = "SparkStream"
NOTES: Final = "BENCH_SPARK_NOTES"
"""The environment variable with the file to which the timed source appends its times."""

_FRAMES = re.compile(r"^pocketmq_frames_received_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)


@contextmanager
def noted(what: str) -> Iterator[None]:
    """Append the start and the duration of a block to the file, in seconds."""
    begun = time.monotonic()
    try:
        yield
    finally:
        taken = time.monotonic() - begun
        # With one short write and O_APPEND lines of several processes don't mix.
        descriptor = os.open(os.environ[NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{begun} {what} {taken}\n".encode())
        os.close(descriptor)


class TimedReader(RocketMQStreamReader):
    """The source's reader, which records the time of its calls."""

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """See RocketMQStreamReader."""
        with noted("latestOffset"):
            return super().latestOffset(start, limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """See RocketMQStreamReader."""
        with noted("reportLatestOffset"):
            return super().reportLatestOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """See RocketMQStreamReader."""
        with noted("partitions"):
            return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """See RocketMQStreamReader. Spark takes no time in between, as there are no rows."""
        with noted("read"):
            yield from super().read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """See RocketMQStreamReader."""
        with noted("commit"):
            super().commit(end)


class TimedSource(RocketMQDataSource):
    """The source, which records the time of its calls."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq_timed"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader that records times."""
        options, columns = self._prepare(schema)
        return TimedReader(options, columns)


@contextmanager
def server() -> Iterator[ServerProcess]:
    """Run a name server and a broker with metrics."""
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as store:
        running = ServerProcess(
            [
                *("standalone", f"--store={store}", "--nameserver-port=0", "--broker-port=0"),
                "--metrics-port=0",
            ]
        )
        try:
            running.start()
            yield running
        finally:
            running.kill()


def frames(running: ServerProcess) -> float:
    """Return the number of frames that name server and broker have received."""
    url = f"http://{running.addresses['metrics']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as page:
        return sum(map(float, _FRAMES.findall(page.read().decode())))


def stream(spark: Any, running: ServerProcess, source: str, **options: Any) -> Any:
    """Return the writer of a query to the ``noop`` sink, not started."""
    reader = spark.readStream.format(source).option("nameServer", running.addresses["nameserver"])
    given = {"topic": TOPIC, "startingOffsets": "earliest", **options}
    for name, value in given.items():
        reader = reader.option(name, value)
    return reader.load().writeStream.format("noop")


def batches(notes: Path) -> list[dict[str, float]]:
    """Return the ms in each call, by micro-batch; each one begins with ``latestOffset``."""
    lines = sorted(
        (float(begun), what, float(taken))
        for begun, what, taken in map(str.split, notes.read_text().splitlines())
    )
    calls: list[dict[str, float]] = []
    for _, what, taken in lines:
        if what == "latestOffset":
            calls.append(defaultdict(float))
        if calls:
            calls[-1][what] += taken * 1000
    return [batch for batch in calls if "read" in batch]


def empty_round(spark: Any, running: ServerProcess, notes: Path, number: int) -> tuple[float, ...]:
    """Return median ms per batch: the connector on the driver, in tasks, and the whole batch."""
    notes.unlink(missing_ok=True)
    query = (
        stream(
            spark,
            running,
            TimedSource.name(),
            maxOffsetsPerTrigger=QUEUES,
            filterTags="Nothing",
            consumerGroup=f"bench-{number}",
        )
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    whole = [
        progress["durationMs"]["triggerExecution"]
        for progress in query.recentProgress
        if "addBatch" in progress["durationMs"]
    ]
    inside = batches(notes)[WARM_BATCHES:]
    tasks = [batch["read"] for batch in inside]
    driver = [sum(batch.values()) - batch["read"] for batch in inside]
    return (
        statistics.median(driver),
        statistics.median(tasks),
        statistics.median(whole[WARM_BATCHES:]),
    )


def idle_rate(spark: Any, running: ServerProcess, seconds: float) -> float:
    """Return the requests per second of an idle query."""
    query = stream(spark, running, "rocketmq", consumerGroup="bench-idle").start()
    try:
        query.processAllAvailable()
        time.sleep(SETTLE)
        before, begun = frames(running), time.monotonic()
        time.sleep(seconds)
        return (frames(running) - before) / (time.monotonic() - begun)
    finally:
        query.stop()


def measure(plan: Plan) -> list[Result]:
    """Measure empty micro-batches and an idle query; the first batches are not counted."""
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as directory, server() as running:
        notes = Path(directory) / "notes"
        os.environ[NOTES] = str(notes)
        filler = Filler(running.addresses["broker"])
        filler.create(TOPIC, queues=QUEUES)
        for queue_id in range(QUEUES):
            filler.send(TOPIC, [b"x" * 100] * plan.batches, queue_id=queue_id, tags=("Tag",))
        filler.close()
        spark = session()
        try:
            spark.dataSource.register(TimedSource)
            medians = []
            for number in range(plan.rounds):
                medians.append(empty_round(spark, running, notes, number))
                driver, tasks, whole = medians[-1]
                say(f"  empty batch: {driver:.1f} + {tasks:.1f} ms of {whole:.0f} ms")
            rate = idle_rate(spark, running, plan.idle)
        finally:
            spark.stop()
    return _results(medians, rate)


def _results(medians: Sequence[tuple[float, ...]], rate: float) -> list[Result]:
    driver, tasks, whole = (list(column) for column in zip(*medians, strict=True))
    share = [one + other for one, other in zip(driver, tasks, strict=True)]
    name = "empty micro-batch, 4 queues"
    return [
        Result(f"{name}: connector", "ms", spread(share), EMPTY_BAR_MS, at_most=True),
        Result(f"{name}: of it on the driver", "ms", spread(driver)),
        Result(f"{name}: of it in all tasks", "ms", spread(tasks)),
        Result(f"{name}: Spark in all", "ms", spread(whole)),
        Result("idle query", "requests/s", spread([rate]), IDLE_BAR, at_most=True),
    ]
