"""An overview of a store, read from its files without walking the log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from broker.storetools.verify import metadata_files
from broker.storetools.verify.findings import Findings, is_open
from broker.storetools.verify.index_scan import load_index
from broker.storetools.view import StoreView


class TopicRow(NamedTuple):
    """A topic.

    Attributes:
        queues: number of its queues.
        min_offset, max_offset: the least ``min_offset`` and greatest ``max_offset`` of its queues.
        messages: number of messages in all queues.
        last_stored_ms: store time of its last message, ms since the epoch; None if unknown.
    """

    topic: str
    queues: int
    min_offset: int
    max_offset: int
    messages: int
    last_stored_ms: int | None


class GroupRow(NamedTuple):
    """A consumer group and a topic.

    Attributes:
        queues: number of queues with a committed offset.
        lag: messages behind these offsets.
    """

    group: str
    topic: str
    queues: int
    lag: int


class IndexFileFacts(NamedTuple):
    """An index file: the number of its keys, and the part of the log that it covers."""

    name: str
    keys: int
    begin_offset: int
    end_offset: int
    begin_ms: int
    end_ms: int


class Overview(NamedTuple):
    """The contents of a store.

    Attributes:
        writer: the broker that probably wrote it last.
        broker_name: name of the broker; None when the store doesn't have it.
        begin, end: physical offsets of the log.
        log_files, log_bytes: number of the log's files, and bytes in use.
        first_ms, last_ms: store times of the first and the last message, ms since the epoch.
        torn: what is wrong at the log's end; None when nothing is.
        running: a broker has the store open.
        abort: whether the file ``abort`` exists.
        free_bytes: free space on the store's disk.
    """

    writer: str
    broker_name: str | None
    begin: int
    end: int
    log_files: int
    log_bytes: int
    first_ms: int | None
    last_ms: int | None
    torn: str | None
    running: bool
    abort: bool
    free_bytes: int
    topics: list[TopicRow]
    groups: list[GroupRow]
    index_files: list[IndexFileFacts]


def overview(root: Path, commit_log: str | None = None) -> Overview:
    """Read the overview of a store. Raises ``StoreError``."""
    view = StoreView(root, commit_log=commit_log)
    # The end of the log first: what is read later can only be ahead of it.
    end = view.log_end()
    tables = metadata_files.read_tables(root, Findings())
    index = load_index(root / "index", Findings())
    topics, ends, last_ms = [], {}, None
    for topic in view.topics():
        row, queue_ends = _topic(view, topic)
        topics.append(row)
        ends.update(queue_ends)
        if row.last_stored_ms is not None:
            last_ms = max(last_ms or 0, row.last_stored_ms)
    status = os.statvfs(root)
    return Overview(
        writer=_writer(root),
        broker_name=tables.broker_name,
        begin=view.log.start,
        end=end.position,
        log_files=len(view.log.files),
        log_bytes=end.position - view.log.start,
        first_ms=view.log.stored_ms(view.log.start),
        last_ms=last_ms,
        torn=end.torn,
        running=is_open(root),
        abort=(root / "abort").exists(),
        free_bytes=status.f_bavail * status.f_frsize,
        topics=topics,
        groups=_groups(tables, ends),
        index_files=[
            IndexFileFacts(
                Path(part.path).name,
                part.header.next_entry - 1,
                part.header.begin_offset,
                part.header.end_offset,
                part.header.begin_ms,
                part.header.end_ms,
            )
            for part in index.parts
        ],
    )


def _topic(view: StoreView, topic: str) -> tuple[TopicRow, dict[tuple[str, int], int]]:
    ends, lows, messages = {}, [], 0
    last_ms: int | None = None
    queues = view.queues(topic)
    for queue_id in queues:
        queue = view.queue(topic, queue_id)
        low, high, _ = queue.range()
        lows.append(low)
        ends[topic, queue_id] = high
        messages += high - low
        if high > low:
            stored = view.log.stored_ms(queue.last_position(high))
            last_ms = max(last_ms or 0, stored or 0) or None
    low, high = min(lows, default=0), max(ends.values(), default=0)
    return TopicRow(topic, len(queues), low, high, messages, last_ms), ends


def _groups(tables: metadata_files.Tables, ends: dict[tuple[str, int], int]) -> list[GroupRow]:
    rows: dict[tuple[str, str], list[int]] = {}
    for (topic, group, queue_id), offset in tables.offsets.items():
        rows.setdefault((group, topic), []).append(max(ends.get((topic, queue_id), 0) - offset, 0))
    return [
        GroupRow(group, topic, len(lags), sum(lags))
        for (group, topic), lags in sorted(rows.items())
    ]


def _writer(root: Path) -> str:
    ours = {path.name for path in root.glob("pocketmq-*") if path.is_file()}
    if ours:
        newest = max((root / name).stat().st_mtime for name in ours)
        checkpoint = root / "checkpoint"
        if checkpoint.exists() and checkpoint.stat().st_mtime > newest + 60:
            return "PocketMQ, and perhaps another since"
        return "PocketMQ"
    marks = ("timerwheel", "timerlog", "abort.bak", "compaction", "rocketmq.lock")
    if any((root / name).exists() for name in marks):
        return "Apache RocketMQ 5"
    has_tables = (root / "config").is_dir()
    return "Apache RocketMQ 4" if has_tables else "unknown"
