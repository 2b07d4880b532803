"""The batch reader: reads the offsets between two positions of each queue, in parallel tasks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from client.network.routes import Route
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log
from spark_connector.errors import OptionError
from spark_connector.schema import Column
from spark_connector.source.brokers import BoundsByQueue, Brokers
from spark_connector.source.options import SourceOptions
from spark_connector.source.partitions import QueuePartition, ranges_of, read, tasks
from spark_connector.source.positions import Edge, Positions
from spark_connector.source.pushdown import Pushed, push
from spark_connector.source.queue_monitor import check_assigned
from spark_connector.source.ranges import RangePartition
from spark_connector.source.resolve import resolve
from spark_connector.source.search import KeyMatches, MessageSearch
from spark_connector.spark import Filter

INDEX_MARGIN_MS = 1000
"""Messages stored less than this before an index's last update are read from the queue as well:
the index is updated by another thread and may lack some of them."""

_log = Log("spark")

Ranges = dict[MessageQueue, tuple[int, int]]


class RocketMQBatchReader(DataSourceReader):
    """Reads the messages between two positions of each queue.

    Args:
        options: the options of the query.
        columns: the columns that Spark requires, in its order.
        brokers, search: the classes that send requests to brokers.
    """

    def __init__(
        self,
        options: SourceOptions,
        columns: Sequence[Column],
        *,
        brokers: type[Brokers] = Brokers,
        search: type[MessageSearch] = MessageSearch,
    ) -> None:
        self._options = options
        self._make_brokers = brokers
        self._make_search = search
        self._columns = tuple(columns)
        self._pushed = Pushed()
        self._nothing = False

    def partitions(self) -> list[InputPartition]:
        """Return the tasks, one partition each."""
        if self._nothing:
            return []
        options = self._options
        brokers = self._make_brokers(options.connection)
        routes = brokers.routes(options.subscription)
        brokers.check_filter(routes, options.group, options.read.tags)
        bounds = {
            queue: ends
            for queue, ends in brokers.bounds(routes).items()
            if options.subscription.includes(queue)
        }
        check_assigned(options, bounds)
        search = self._make_search(brokers, routes, options.group)
        ranges = self._narrow(self._ranges(bounds, search), search)
        by_key = self._by_key(ranges, search, routes) if self._pushed.keys else []
        return by_key + tasks(ranges_of(ranges, routes), options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the Arrow batches of one task; runs on an executor."""
        return read(partition, self._options.read, self._columns)

    def _ranges(self, bounds: BoundsByQueue, search: MessageSearch) -> Ranges:
        """Return the range of each queue as given by the options, without filters."""
        options = self._options
        starting = options.starting or Positions("startingOffsets", Edge.EARLIEST)
        ending = options.ending or Positions("endingOffsets", Edge.LATEST)
        now_ms = int(time.time() * 1000)
        starts = resolve(starting, bounds, search, options, now_ms)
        # The strategy for timestamps without a match applies to the starting position only.
        lenient = replace(options, fail_without_match=False)
        ends = resolve(ending, bounds, search, lenient, now_ms)
        for queue, start in starts.items():
            if start > ends[queue] and options.ending is not None:
                raise OptionError(
                    f"in queue {queue} {starting.option} is offset {start}, behind "
                    f"{ending.option}, which is offset {ends[queue]}",
                    "let the query begin before it ends",
                )
        return {queue: (start, ends[queue]) for queue, start in starts.items()}

    def _narrow(self, ranges: Ranges, search: MessageSearch) -> Ranges:
        """Narrow ranges by the pushed filters; queues without matching offsets are left out."""
        pushed = self._pushed
        narrowed: Ranges = {}
        for queue, (first, last) in ranges.items():
            start, end = pushed.cut(first, last)
            if not pushed.wants(queue) or start >= end:
                continue
            if pushed.since_ms is not None:
                start = max(start, search.at_or_after(queue, pushed.since_ms))
            if pushed.until_ms is not None and start < end:
                end = min(end, search.at_or_after(queue, pushed.until_ms))
            narrowed[queue] = (start, end)
        return narrowed

    def _by_key(
        self, ranges: Ranges, search: MessageSearch, routes: Mapping[str, Route]
    ) -> list[InputPartition]:
        """Return one task for all messages found by index, or none.

        The offsets covered by an index are removed from ``ranges``; the others stay in it.
        """
        messages: set[tuple[MessageQueue, int]] = set()
        for topic in sorted({queue.topic for queue in ranges}):
            lookups = [search.by_key(topic, key) for key in sorted(self._pushed.keys or ())]
            for broker in sorted({q.broker_name for q in ranges if q.topic == topic}):
                matches = [lookup.get(broker) for lookup in lookups]
                reliable = [match for match in matches if match is not None]
                if len(reliable) == len(matches):
                    messages |= self._use_index(ranges, topic, broker, reliable, search)
        hits: list[RangePartition] = []
        for queue, found in groupby(sorted(messages), key=lambda hit: hit[0]):
            # One range for each run of consecutive offsets: those minus their indices are the same.
            for _, run in groupby(enumerate(found), key=lambda hit: hit[1][1] - hit[0]):
                offsets = [offset for _, (_, offset) in run]
                hits += ranges_of({queue: (offsets[0], offsets[-1] + 1)}, routes)
        return [QueuePartition(hits)] if hits else []

    @staticmethod
    def _use_index(
        ranges: Ranges, topic: str, broker: str, matches: list[KeyMatches], search: MessageSearch
    ) -> set[tuple[MessageQueue, int]]:
        """Remove the indexed part of a broker's ranges; return its matching messages."""
        matching: set[tuple[MessageQueue, int]] = set()
        indexed_until = min(match.indexed_until_ms for match in matches) - INDEX_MARGIN_MS
        for queue, (start, end) in list(ranges.items()):
            if (queue.topic, queue.broker_name) != (topic, broker):
                continue
            tail = min(end, max(start, search.at_or_after(queue, indexed_until)))
            ranges[queue] = (tail, end)
            for match in matches:
                matching |= {
                    hit for hit in match.offsets if hit[0] == queue and start <= hit[1] < tail
                }
        return matching


class PushDownReader(RocketMQBatchReader):
    """A batch reader that takes filters. Spark rejects it while filter push-down is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Use filters to narrow what is read; return all of them, for Spark to apply again."""
        self._pushed = push(filters, kafka=self._options.kafka_names)
        expression = self._pushed.expression(self._options.read.filter_tags)
        if expression is None:
            self._nothing = True
        else:
            read_options = replace(self._options.read, filter_tags=expression)
            self._options = replace(self._options, read=read_options)
        _log.debug("filters pushed down", pushed=self._pushed)
        return filters
