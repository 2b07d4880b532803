"""What a clean stop leaves for the next start, so that it need not look into every file.

It tells where the log and each queue end, and stamps every file and directory it speaks of: length,
inode and time of the last change, which nobody can set back. The next start believes it only if
all of that is still as it was, and if the last records of the log end where it says. A store that
was copied, that another broker has had open, that lost, got or changed a file, or that crashed is
recovered, as RocketMQ does. The file is ours alone; RocketMQ leaves it lying, and it is
removed before a store is marked as open.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from broker.store.commit_log import CommitLog
from broker.store.config import StoreConfig, StorePaths
from broker.store.consume_queue import QueueEnds
from broker.store.os_files import Files, Stamp
from broker.store.queue_table import QueueTable
from remoting.protocol.accelerated import crc32, json_dumps, json_loads
from remoting.protocol.disk.files import name_of

FORMAT: Final = 1
_CRC_DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class CleanStop:
    """How a store was left.

    Attributes:
        log_end: physical offset behind the last record.
        log_tail: physical offset of a record not far before it.
        last_store_ms: store time of the last record.
        queues: of each topic.
    """

    log_end: int
    log_tail: int
    last_store_ms: int
    queues: dict[str, list[QueueEnds]]


def write(
    files: Files,
    paths: StorePaths,
    config: StoreConfig,
    log: CommitLog,
    queues: QueueTable,
    *,
    log_tail: int,
    last_store_ms: int,
) -> None:
    """Leave word of a store that has been flushed and will not be touched again.

    ``log_tail`` is where a record begins, best one of the last.

    Nothing is left of one with entries that never got into their queue.

    Raises:
        OSError: it can't be written, or a file is missing.
    """
    ends = queues.ends()
    if ends is None:
        return
    content = {
        "format": FORMAT,
        "sizes": _sizes(config),
        "logEnd": log.end,
        "logTail": max(log_tail, queues.last_position()),
        "lastStoreMs": last_store_ms,
        "log": _log_stamps(files, paths, [file.start for file in log.files]),
        "queues": files.stamp(paths.consume_queues),
        "topics": [
            [
                topic,
                files.stamp(paths.consume_queues / topic),
                [[*row, *_queue_stamps(files, paths, config, topic, row)] for row in rows],
            ]
            for topic, rows in ends.items()
        ],
    }
    text = json_dumps(content)
    files.replace(paths.clean_stop, b"%s%08x" % (text, crc32(text)), backup=False)


def read(
    files: Files, paths: StorePaths, config: StoreConfig, log_starts: Iterable[int]
) -> CleanStop | None:
    """What the last stop left, if the store is still as it was; else None.

    Args:
        log_starts: the commit-log files that were found.
    """
    data = files.read(paths.clean_stop) or b""
    text, crc = data[:-_CRC_DIGITS], data[-_CRC_DIGITS:]
    if crc != b"%08x" % crc32(text):
        return None
    try:
        return _checked(json_loads(text), files, paths, config, log_starts)
    except (OSError, ValueError, KeyError, TypeError):
        # Of another version of ours, or a file is gone.
        return None


def _checked(
    content: dict[str, Any],
    files: Files,
    paths: StorePaths,
    config: StoreConfig,
    log_starts: Iterable[int],
) -> CleanStop | None:
    if content["format"] != FORMAT or content["sizes"] != _sizes(config):
        return None
    if content["log"] != _log_stamps(files, paths, log_starts):
        return None
    if content["queues"] != files.stamp(paths.consume_queues):
        return None
    queues: dict[str, list[QueueEnds]] = {}
    for topic, stamp, rows in content["topics"]:
        if stamp != files.stamp(paths.consume_queues / topic):
            return None
        queues[topic] = ends = []
        for *numbers, directory, last in rows:
            ends.append(QueueEnds(*numbers))
            if [directory, last] != _queue_stamps(files, paths, config, topic, ends[-1]):
                return None
    return CleanStop(content["logEnd"], content["logTail"], content["lastStoreMs"], queues)


def _sizes(config: StoreConfig) -> list[int]:
    return [config.mapped_file_size_commit_log, config.mapped_file_size_consume_queue]


def _log_stamps(files: Files, paths: StorePaths, starts: Iterable[int]) -> list[Stamp]:
    logs = [files.stamp(paths.commit_log / name_of(start)) for start in starts]
    return [files.stamp(paths.commit_log), *logs]


def _queue_stamps(
    files: Files, paths: StorePaths, config: StoreConfig, topic: str, ends: QueueEnds
) -> list[Stamp]:
    """Of a queue's directory, which tells whether files came or went, and of its last file."""
    directory = f"{paths.consume_queues}/{topic}/{ends.queue_id}"
    last = ends.first_start + (ends.files - 1) * config.queue_file_bytes
    return [files.stamp(directory), files.stamp(f"{directory}/{name_of(last)}")]
