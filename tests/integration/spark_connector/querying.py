"""The readers of the source, called as Spark would, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from client import Message
from client.blocking import Admin, Producer
from spark_connector.schema import COLUMNS
from spark_connector.source.batch import PushDownReader
from spark_connector.source.brokers import Brokers
from spark_connector.source.options import SourceOptions
from spark_connector.source.queue_monitor import ArrivalWatch, Pace, QueueMonitor
from spark_connector.source.search import MessageSearch
from spark_connector.source.stream import RocketMQStreamReader

Row = dict[str, Any]


def batch_reader(
    name_server: str,
    *,
    brokers: type[Brokers] = Brokers,
    search: type[MessageSearch] = MessageSearch,
    **given: object,
) -> PushDownReader:
    options = _options(name_server, given)
    return PushDownReader(options, list(COLUMNS.values()), brokers=brokers, search=search)


def stream_reader(
    name_server: str,
    *,
    brokers: type[Brokers] = Brokers,
    watch: ArrivalWatch | None = None,
    pace: Pace = Pace(),
    kind: type[RocketMQStreamReader] = RocketMQStreamReader,
    **given: object,
) -> RocketMQStreamReader:
    options = _options(name_server, given)
    monitor = QueueMonitor(options, brokers(options.connection), watch=watch, pace=pace)
    return kind(options, list(COLUMNS.values()), monitor)


def rows(reader: Any, partitions: Iterable[Any] | None = None) -> list[Row]:
    """Return the rows of all tasks of a batch."""
    partitions = reader.partitions() if partitions is None else partitions
    return [
        row
        for partition in partitions
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def numbers(found: Iterable[Row]) -> list[int]:
    return sorted(int(row["body"]) for row in found)


class Query:
    """A streaming query: calls the reader as Spark's engine does, with an offset log."""

    def __init__(self, reader: RocketMQStreamReader, log: list[Any] | None = None) -> None:
        self.reader = reader
        self.log = [] if log is None else log
        self.found: list[Row] = []

    def step(self, *, take_all: bool = False) -> list[Row]:
        """Run one micro-batch; return nothing if there is nothing new."""
        if not self.log:
            self.log.append(self.reader.initialOffset())
        limit = ReadAllAvailable() if take_all else self.reader.getDefaultReadLimit()
        end = self.reader.latestOffset(self.log[-1], limit)
        self.reader.reportLatestOffset()
        if end == self.log[-1]:
            return []
        found = rows(self.reader, self.reader.partitions(self.log[-1], end))
        self.log.append(end)
        self.found += found
        return found

    def available_now(self) -> list[list[Row]]:
        """Run all batches up to the current ends of the queues."""
        self.reader.prepareForTriggerAvailableNow()
        steps = []
        before = -1
        while before != len(self.log):
            before = max(1, len(self.log))
            found = self.step()
            if found:
                steps.append(found)
        return steps

    def until(self, done: Callable[[], bool], *, steps: int = 200) -> None:
        """Run micro-batches until a condition holds."""
        for _ in range(steps):
            self.step()
            if done():
                return
        raise AssertionError("it did not happen")


def send(admin: Admin, producer: Producer, topic: str, numbered: Iterable[int]) -> None:
    """Send messages; ``n`` has body ``n``, key ``kn``, tag even or odd, and queue ``n`` modulo."""
    queues = admin.queues(topic)
    by_queue: dict[int, list[Message]] = {}
    for number in numbered:
        queue = queues[number % len(queues)]
        message = Message(
            topic,
            b"%d" % number,
            tag="odd" if number % 2 else "even",
            keys=[f"k{number}"],
            queue=queue,
        )
        by_queue.setdefault(queue.queue_id, []).append(message)
    for messages in by_queue.values():
        for result in producer.send_many(messages):
            assert not isinstance(result, Exception), result


def _options(name_server: str, given: dict[str, object]) -> SourceOptions:
    texts = {name: str(value) for name, value in given.items()}
    return SourceOptions.of({"nameServer": name_server} | texts)
