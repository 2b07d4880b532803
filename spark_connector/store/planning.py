"""Divides a store into tasks.

Queues are split by offsets, which are dense, and small pieces share a task, because a store may
have ten thousand queues. The commit log is split at starts of records, so every record is read by
exactly one task.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from broker.storetools.view import StoreView
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log
from remoting.runtime.settings import nearest
from spark_connector.errors import UnknownTopicError
from spark_connector.source.pushdown import Pushed
from spark_connector.source.ranges import RangePartition, split
from spark_connector.store.options import ScanMode, StoreOptions

_log = Log("spark")


@dataclass(frozen=True, slots=True)
class QueuePieces:
    """The ranges of queues that one task reads."""

    ranges: tuple[RangePartition, ...]


@dataclass(frozen=True, slots=True)
class LogPiece:
    """The part of the commit log that one task reads: physical offsets, the end excluded."""

    begin: int
    end: int


Piece: TypeAlias = QueuePieces | LogPiece

SMALL_RECORDS: Final = 20_000
"""Pieces share a task up to this many messages, as starting a task takes about 20 ms."""

CLOCK_STEP_MS: Final = 10_000
"""Filters by time are widened by this, because store times go back when the broker's clock is set
back. Spark applies the filters again to each row."""


def plan(view: StoreView, options: StoreOptions, pushed: Pushed) -> list[Piece]:
    """Return the tasks of a query.

    Raises:
        UnknownTopicError: the store has no queue of a topic named in the options.
        StoreError: the store can't be read.
    """
    if options.scan is ScanMode.LOG:
        return list(plan_log(view, options, pushed))
    return list(plan_queues(view, options, pushed))


# --- queues


def plan_queues(view: StoreView, options: StoreOptions, pushed: Pushed) -> list[QueuePieces]:
    """Return the tasks of a scan of queues; see ``plan``."""
    ranges = []
    torn = 0
    for topic in wanted_topics(view, options, pushed):
        for queue_id in view.queues(topic):
            if pushed.wants(MessageQueue(topic, options.broker_name, queue_id)):
                part, entries_beyond = _range(view, options, pushed, topic, queue_id)
                ranges.append(part)
                torn += entries_beyond
    if torn:
        _log.warning(
            "entries at the end of queues have no message in the log and are left out",
            store=options.path,
            entries=torn,
        )
    pieces = split(ranges, min_partitions=options.min_partitions, max_records=options.max_records)
    total = sum(piece.offsets for piece in pieces)
    limit = min(SMALL_RECORDS, options.max_records, total // options.min_partitions)
    return _bundled(pieces, limit)


def wanted_topics(view: StoreView, options: StoreOptions, pushed: Pushed) -> list[str]:
    """Return the topics to read, sorted. Raises UnknownTopicError."""
    known = view.topics()
    for topic in options.topics or ():
        if topic not in known:
            raise UnknownTopicError(
                f"the store {options.path} has no queue of topic {topic!r}{nearest(topic, known)}",
                f"it has {', '.join(known[:20]) or 'none'}{' ...' if len(known) > 20 else ''};"
                " messages without a queue are found with scan=log",
            )
    topics = known if options.topics is None else sorted(options.topics)
    return [topic for topic in topics if topic in pushed.queue_values.get("topic", topics)]


def _range(
    view: StoreView, options: StoreOptions, pushed: Pushed, topic: str, queue_id: int
) -> tuple[RangePartition, int]:
    queue = view.queue(topic, queue_id)
    start, end, torn = queue.range()
    start, end = pushed.cut(start, end)
    if start < end and pushed.since_ms is not None:
        start = max(start, queue.offset_of_time(pushed.since_ms - CLOCK_STEP_MS))
    if start < end and pushed.until_ms is not None:
        end = min(end, queue.offset_of_time(pushed.until_ms + CLOCK_STEP_MS))
    whole = RangePartition(topic, options.broker_name, queue_id, start, max(start, end), ())
    return whole, torn


def _bundled(pieces: Iterable[RangePartition], limit: int) -> list[QueuePieces]:
    bundles: list[list[RangePartition]] = []
    filled = 0
    for piece in pieces:
        if bundles and filled + piece.offsets <= limit:
            bundles[-1].append(piece)
        else:
            bundles.append([piece])
            filled = 0
        filled += piece.offsets
    return [QueuePieces(tuple(bundle)) for bundle in bundles]


# --- the log


def plan_log(view: StoreView, options: StoreOptions, pushed: Pushed) -> list[LogPiece]:
    """Return the tasks of a scan of the commit log; see ``plan``."""
    log_end = view.log_end()
    if log_end.torn is not None:
        _log.warning(
            "the commit log ends with an incomplete record, which is left out",
            store=options.path,
            position=log_end.position,
            why=log_end.torn,
        )
    begin, end = view.log.start, log_end.position
    if pushed.low > begin:
        begin = view.log.first_start(pushed.low, end)
    if pushed.high is not None:
        end = view.log.first_start(pushed.high, end)
    span = max(1, min(options.max_bytes, -(-(end - begin) // options.min_partitions)))
    edges = [begin]
    for cut in range(begin + span, end, span):
        edge = view.log.first_start(cut, end)
        if edge > edges[-1]:
            edges.append(edge)
    edges.append(end)
    return [LogPiece(start, stop) for start, stop in pairwise(edges) if stop > start]
