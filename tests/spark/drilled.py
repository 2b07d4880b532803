"""A query that archives a topic and can be killed at any message, for the exactly-once test.

``python -m tests.spark.drilled NAMESERVER TOPIC DIRECTORY`` reads the topic into Parquet files in
``DIRECTORY/out`` until it is killed. Its source is ours with one addition, charges: files in
``DIRECTORY/charges`` named ``NUMBER-VICTIM``. The task that reads message NUMBER, or a later one,
deletes the charge, returns the messages before that one, and kills its worker or the whole process
group of the driver.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_connector.source.data_source import RocketMQDataSource
from spark_connector.source.stream import RocketMQStreamReader

SCHEMA = (
    "queueId int, queueOffset bigint, messageId string, tags string, body binary, "
    "storeTimestamp timestamp"
)
GROUP = "archive"
ROWS = 800
"""In a batch of a query with charges."""

_DIRECTORY = "POCKETMQ_DRILL_DIRECTORY"
_DRIVER = "POCKETMQ_DRILL_PROCESS_GROUP"


def archive(
    spark: Any,
    nameserver: str,
    topic: str,
    directory: Path,
    *,
    source: str = "rocketmq",
    rows: int = 100_000,
) -> Any:
    """The query, not started yet.

    Args:
        source: the format it reads.
        rows: in a batch at most.
    """
    frame = (
        spark.readStream.format(source)
        .option("nameServer", nameserver)
        .option("topic", topic)
        .option("consumerGroup", GROUP)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows)
        .schema(SCHEMA)
        .load()
    )
    return (
        frame.writeStream.format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
    )


class DrilledDataSource(RocketMQDataSource):
    """Our source with charges in it."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq.drilled"

    def streamReader(self, schema: StructType) -> RocketMQStreamReader:  # noqa: N802 - Spark's
        return DrilledReader(*self._prepare(schema))


class DrilledReader(RocketMQStreamReader):
    """Our reader, whose tasks die at a charge."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            where, victim = claimed([int(body) for body in batch.column("body").to_pylist()])
            if victim is None:
                yield batch
                continue
            if where:
                yield batch.slice(0, where)
            if victim == "driver":
                os.killpg(int(os.environ[_DRIVER]), signal.SIGKILL)
            os._exit(1)


def claimed(numbers: list[int]) -> tuple[int, str | None]:
    """Take a charge among the messages exclusively; return its position and victim."""
    for charge in sorted((Path(os.environ[_DIRECTORY]) / "charges").iterdir()):
        number, _, victim = charge.name.partition("-")
        where = next((at for at, one in enumerate(numbers) if one >= int(number)), None)
        if where is not None:
            try:
                charge.unlink()
            except FileNotFoundError:
                continue  # another task was faster
            return where, victim
    return 0, None


def main(nameserver: str, topic: str, directory: str) -> None:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import SETTINGS

    os.environ |= {_DIRECTORY: directory, _DRIVER: str(os.getpgrp())}
    builder = SparkSession.builder.master("local[2,3]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(DrilledDataSource)
    drilled = archive(
        spark, nameserver, topic, Path(directory), source=DrilledDataSource.name(), rows=ROWS
    )
    drilled.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
