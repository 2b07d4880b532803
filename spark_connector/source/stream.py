"""The streaming reader: chooses the offsets of each micro-batch, on the driver.

Spark writes the end of a batch to its offset log before the batch is read, and the end names what
the log has no start for, so a repeated batch has the same ranges. The reader holds no other state
that has to survive a restart. It exists in one Python process for the duration of a query;
constructing it opens no connection.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log
from spark_connector.errors import BrokerError, ConnectorError
from spark_connector.schema import Column
from spark_connector.source.admission import Admission, begin, begin_anew
from spark_connector.source.brokers import Brokers
from spark_connector.source.commits import Commits
from spark_connector.source.offsets import (
    Marks,
    Offsets,
    begins_of,
    check_topics,
    from_json,
    marks_of,
    to_json,
)
from spark_connector.source.options import SourceOptions
from spark_connector.source.partitions import ranges_of, read, tasks
from spark_connector.source.positions import Edge, Positions
from spark_connector.source.queue_monitor import QueueMonitor
from spark_connector.source.resolve import resolve
from spark_connector.source.search import MessageSearch
from spark_connector.spark import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

_log = Log("spark")


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream.

    Args:
        options: the options of the query.
        columns: the columns that Spark requires, in its order.
        monitor: the view of the queues; by default one for the options' name servers.
    """

    def __init__(
        self, options: SourceOptions, columns: Sequence[Column], monitor: QueueMonitor | None = None
    ) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._monitor = monitor or QueueMonitor(options, Brokers(options.connection))
        self._brokers = self._monitor.brokers
        self._commits = Commits(self._brokers, options.group) if options.commit else None
        self._admission = Admission(options.limits, options.read.on_data_loss, time.monotonic())
        self._initial: dict[str, Any] | None = None
        self._idle = False
        self._lost = 0
        self._checked: set[MessageQueue] = set()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint begins; always the same value."""
        if self._initial is None:
            bounds = self._monitor.bounds or self._monitor.fetch(strict=True)
            options = self._options
            positions = options.starting or Positions("startingOffsets", Edge.LATEST)
            now_ms = int(time.time() * 1000)
            offsets = resolve(positions, bounds, self._search(), options, now_ms)
            self._initial = to_json(offsets, self._marks(offsets), offsets)
        return self._initial

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Make the current ends of the queues the end of the query (trigger AvailableNow)."""
        bounds = self._monitor.fetch(strict=True)
        self._admission.target = {queue: ends.maximum for queue, ends in bounds.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of rows; ``latestOffset`` applies it together with the others."""
        return ReadMaxRows(self._admission.max_rows)

    # Spark detects admission control by the two parameters, which its stubs don't declare.
    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return where the next batch ends; ``start`` if there is no batch yet."""
        before, marks = from_json(start), marks_of(start)
        check_topics(before, self._options.subscription)
        self._monitor.refresh(before, idle=self._idle, may_wait=self._admission.target is None)
        bounds = self._monitor.bounds
        policy = self._options.read.on_data_loss
        begins = {
            queue: begin_anew(queue, bounds[queue], policy)
            for queue in self._recreated(before, marks)
        }
        self._checked |= begins.keys()
        begins |= {
            queue: begin(queue, offset, bounds[queue], policy)
            for queue, offset in before.items()
            if queue in bounds and offset > bounds[queue].maximum
        }
        begun = before | begins
        self._check_target(begun)
        if self._commits is not None:
            ends_by_itself = self._admission.target is not None
            self._commits.store(begun, self._monitor.routes, bounds, impatient=ends_by_itself)
        end = self._admission.end(
            begun,
            bounds,
            time.monotonic(),
            mean_size=self._mean_size,
            take_all=isinstance(limit, ReadAllAvailable),
        )
        self._idle = end == before and not begins
        if self._idle:
            return start
        if self._admission.lost > self._lost:
            _log.warning(
                "messages were deleted before they were read",
                subscription=self._options.subscription,
                offsets_lost=self._admission.lost - self._lost,
                in_all=self._admission.lost,
            )
            self._lost = self._admission.lost
        chosen = {queue for queue in end if end[queue] != before.get(queue)} | begins.keys()
        if begins_of(start) == before:
            # Spark logs no initial offset: it asks for it again, and it may be another by then.
            begins = begun
        begins |= {queue: bounds[queue].minimum for queue in end.keys() - before.keys()}
        return to_json(end, marks | self._marks(chosen & self._checked), begins)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the ends of all queues regardless of limits, for measuring lag."""
        if not self._monitor.bounds:
            return None
        return to_json({queue: ends.maximum for queue, ends in self._monitor.bounds.items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of one batch."""
        begun, ends = from_json(start), from_json(end)
        check_topics(ends, self._options.subscription)
        if not self._monitor.routes:
            self._monitor.fetch(strict=True)
        options = self._options
        self._brokers.check_filter(self._monitor.routes, options.group, options.read.tags)
        begun |= begins_of(end)
        for queue in self._recreated(ends, marks_of(end)):
            # The batch was planned before the topic was recreated; the next one begins anew.
            begin_anew(queue, self._monitor.bounds[queue], options.read.on_data_loss)
            begun[queue] = ends[queue]
        ranges = {queue: (self._begin(begun, queue, last), last) for queue, last in ends.items()}
        return tasks(ranges_of(ranges, self._monitor.routes), options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the Arrow batches of one task; runs on an executor."""
        return read(partition, self._options.read, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the end of a finished batch to the group, unless that has been done already."""
        if self._commits is not None:
            self._commits.store(from_json(end), self._monitor.routes, self._monitor.bounds)

    def stop(self) -> None:
        """Close the connections. Spark often kills the process without calling this."""
        self._monitor.close()

    def _search(self) -> MessageSearch:
        return MessageSearch(self._brokers, self._monitor.routes, self._options.group)

    def _marks(self, queues: Iterable[MessageQueue]) -> Marks:
        """Return the marks by which ``_recreated`` detects that a topic was recreated."""
        bounds = self._monitor.bounds
        return {
            queue: (bounds[queue].maximum, bounds[queue].stored_ms)
            for queue in queues
            if queue in bounds and bounds[queue].stored_ms
        }

    def _recreated(self, offsets: Offsets, marks: Marks) -> set[MessageQueue]:
        """Return the queues whose topic was recreated since their marks were made.

        A queue is checked once when a query starts, and again if it has vanished meanwhile. A queue
        without new messages needs no request. Queues that end before their offset are left to
        ``begin``, which handles them.
        """
        bounds = self._monitor.bounds
        self._checked &= bounds.keys()
        recreated = set()
        for queue in bounds.keys() - self._checked:
            ends, mark = bounds[queue], marks.get(queue)
            try:
                if mark and offsets.get(queue, 0) <= ends.maximum and self._is_other(queue, mark):
                    recreated.add(queue)
                else:
                    self._checked.add(queue)
            except BrokerError as error:
                _log.warning("a queue can't be compared with its mark", queue=queue, reason=error)
        if recreated:
            _log.warning("topics were deleted and recreated", queues=sorted(map(str, recreated)))
        return recreated

    def _is_other(self, queue: MessageQueue, mark: tuple[int, int]) -> bool:
        ends = self._monitor.bounds[queue]
        end, stored_ms = mark
        if (ends.maximum, ends.stored_ms) == mark:
            return False
        at = min(end, ends.maximum) - 1
        if at < ends.minimum:
            return False
        last_ms = self._search().stored_ms(queue, at)
        # After a crash a broker may have lost the messages at the mark: its last message is older.
        return last_ms is not None and (
            last_ms != stored_ms if at == end - 1 else last_ms > stored_ms
        )

    def _mean_size(self, queue: MessageQueue, offset: int) -> float | None:
        try:
            return self._search().mean_size(queue, offset)
        except BrokerError as error:
            _log.warning("a broker can't be asked for the sizes of its messages", reason=error)
            return None

    def _begin(self, begun: Offsets, queue: Any, end: int) -> int:
        """Return where a queue's range begins.

        A new queue has no start offset yet; that of a recreated queue may be above its end.
        """
        start = begun.get(queue)
        if start is not None and start <= end:
            return start
        bounds = self._monitor.bounds.get(queue)
        if bounds is None:
            return end if start is not None else 0
        return min(end, begin(queue, start, bounds, self._options.read.on_data_loss))

    def _check_target(self, begun: Offsets) -> None:
        """Check that the broker of every queue below its target is reachable.

        Otherwise an AvailableNow query would end before it has read all messages.

        Raises:
            BrokerError: a queue doesn't exist any more.
        """
        target = self._admission.target or {}
        unreachable = [
            queue
            for queue, end in target.items()
            if begun.get(queue, 0) < end and queue not in self._monitor.bounds
        ]
        if unreachable and not self._monitor.fetch(strict=True).keys() >= set(unreachable):
            queue = unreachable[0]
            raise BrokerError(
                f"queue {queue} vanished before it was read to its end at offset {target[queue]}",
                "start its broker again and then the query: it goes on from its checkpoint",
            )


class UnlimitedStreamReader(RocketMQStreamReader):
    """The reader for Spark before 4.2, which passes neither a limit nor the start of a batch."""

    def __init__(
        self, options: SourceOptions, columns: Sequence[Column], monitor: QueueMonitor | None = None
    ) -> None:
        super().__init__(options, columns, monitor)
        self._end: Offsets | None = None
        self._begun: Offsets = {}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override] # noqa: N802 - Spark's name
        """Return the ends of all queues."""
        if self._end is None:
            # Each queue must be in the first end: one that is missing would be read from its
            # beginning in the batch after it.
            bounds = self._monitor.fetch(strict=True)
        else:
            self._monitor.refresh(self._end, idle=self._idle, may_wait=True)
            bounds = self._monitor.bounds
        begins: Offsets = {}
        if self._end is None:
            # Whether the query has a checkpoint, so that this isn't its first batch, only
            # ``partitions`` learns, and that is where an initial offset that is needed fails.
            with suppress(ConnectorError):
                begins = from_json(self.initialOffset())
        # A queue whose broker is away keeps its offset, be it of this run or of the checkpoint.
        end = self._begun | (self._end or {})
        end |= {queue: ends.maximum for queue, ends in bounds.items()}
        self._idle = end == self._end
        self._end = end
        return to_json(end, self._marks(end), begins)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of one batch; only here does Spark say where it begins."""
        if not self._monitor.routes:
            self._monitor.fetch(strict=True)
        begun = self._begun | from_json(start)
        if self._initial is not None and from_json(start) == from_json(self._initial):
            begun |= begins_of(end)
        begins = {
            queue: begin_anew(queue, self._monitor.bounds[queue], self._options.read.on_data_loss)
            for queue in self._recreated(begun, marks_of(start))
        }
        self._checked |= begins.keys()
        found = super().partitions(to_json(begun | begins), end | {"begins": {}})
        self._begun = begun | from_json(end)
        return found
