"""The checkpoints, which record how far the store is on the disk: RocketMQ's file and our own.

RocketMQ's ``checkpoint`` holds timestamps (cf. StoreCheckpoint). Messages stored in the same
millisecond have the same timestamp, and the clock may be wrong, so we also write a file of our own,
``pocketmq-checkpoint``: JSON followed by its CRC, replaced atomically. It has up to three sections:

========  ==========================================================================================
safe      The safe point, where a start after a crash begins: up to ``end``, the log and its queue
          entries are on the disk. RocketMQ's broker ignores this file, so it may be out of date,
          but it stays true unless the log is truncated. Recovery detects that: a record must begin
          at ``tail`` with the bytes in ``head``, and a record must begin or end at ``end``. The
          section also has the next queue offset of every queue: a queue with fewer entries was lost
          or damaged, and all queues are rebuilt from the log before the store opens.
stop      Written by a clean stop, whose safe point is the end of the log. The section has the ends
          of each queue and a stamp of the log's files, of the queues' directories and of their last
          files: length, inode and time of the last change (ctime, which can't be set). The next
          start uses it only if all stamps are unchanged and the last records of the log end at
          the safe point. A store that crashed, was copied, was opened by another broker, or that
          lost, gained or changed a file is recovered.
index     How far the log is indexed; see ``index``.
========  ==========================================================================================

The last two are valid only after a clean stop: they are removed before the store accepts messages.
If the file is missing or damaged, the next start takes longer; nothing else is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from broker.store.commit_log import CommitLog
from broker.store.config import StoreConfig, StorePaths
from broker.store.consume_queue import ConsumeQueue, QueueEnds, QueueTable
from broker.store.os_files import Files, Stamp, is_no_space
from remoting.protocol.accelerated import crc32, json_dumps, json_loads
from remoting.protocol.disk.files import Checkpoint, name_of
from remoting.protocol.errors import RecordError

FORMAT: Final = 1
_CRC_DIGITS: Final = 8
EARLIER_NAMES: Final = ("pocketmq-safe-point", "pocketmq-clean-stop", "pocketmq-index")
"""Files of earlier versions, which had one file per section. They are removed, not read."""

Numbers = dict[str, dict[int, int]]
"""By topic and queue id, the queue offset of the next message."""


def encode(content: dict[str, Any]) -> bytes:
    """Return the bytes of our checkpoint file."""
    text = json_dumps(content)
    return b"%s%08x" % (text, crc32(text))


def decode(data: bytes) -> dict[str, Any]:
    """Return the content of our checkpoint file.

    Raises:
        ValueError: the file is damaged.
    """
    text, crc = data[:-_CRC_DIGITS], data[-_CRC_DIGITS:]
    if crc != b"%08x" % crc32(text):
        raise ValueError("its CRC does not match")
    content: dict[str, Any] = json_loads(text)
    return content


@dataclass(frozen=True, slots=True)
class SafePoint:
    """The point up to which log and queues are on the disk.

    Attributes:
        tail: physical offset, at most ``end``, where a record begins.
        head: the first bytes at ``tail``, in hex; fewer or none if ``end`` is near.
        end: physical offset up to which the log and its queue entries are on the disk.
        synced: physical offset, at least ``end``, up to which the log is on the disk.
        numbers: each queue's next queue offset, as it was when every message before ``end`` had its
            entry.
    """

    tail: int
    head: str
    end: int
    synced: int
    numbers: Numbers

    @classmethod
    def of(cls, section: dict[str, Any]) -> SafePoint:
        """Decode the ``safe`` section.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: another version wrote the section.
        """
        numbers = {
            topic: {int(queue_id): int(number) for queue_id, number in rows.items()}
            for topic, rows in section["numbers"].items()
        }
        tail, end, synced = (int(section[name]) for name in ("tail", "end", "synced"))
        bytes.fromhex(section["head"])
        return cls(tail, section["head"], end, synced, numbers)

    def section(self) -> dict[str, Any]:
        """Return the section that ``of`` decodes."""
        numbers = {
            topic: {str(queue_id): number for queue_id, number in rows.items()}
            for topic, rows in self.numbers.items()
        }
        return {
            "tail": self.tail,
            "head": self.head,
            "end": self.end,
            "synced": self.synced,
            "numbers": numbers,
        }


@dataclass(frozen=True, slots=True)
class CleanStop:
    """The state in which a clean stop left the store.

    Attributes:
        log_end: physical offset behind the last record.
        log_tail: physical offset of a record a little before ``log_end``.
        last_store_ms: store time of the last record, ms since the epoch.
        queues: the ends of each topic's queues.
    """

    log_end: int
    log_tail: int
    last_store_ms: int
    queues: dict[str, list[QueueEnds]]


class IndexNote(NamedTuple):
    """How far a clean stop had indexed the log.

    Attributes:
        indexed: physical offset up to which the log is indexed; -1 if the files are as a crash left
            them, because indexing was off since.
        last: name of the last index file and the number of its next entry; empty for no file.
    """

    indexed: int
    last: list[object]


class StoreCheckpoint:
    """Reads and writes both checkpoint files of one store.

    Attributes:
        times: RocketMQ's checkpoint as read by ``read``.
        safe: the safe point that was read or written last; None for none.
    """

    def __init__(self, files: Files, paths: StorePaths, config: StoreConfig) -> None:
        self._files = files
        self._paths = paths
        self._queue_file_bytes = config.queue_file_bytes
        self._sizes = [config.mapped_file_size_commit_log, config.mapped_file_size_consume_queue]
        self._content: dict[str, Any] = {}
        self._written = b""
        self._stopped = False
        self.times = Checkpoint()
        self.safe: SafePoint | None = None

    def read(self) -> None:
        """Read both files.

        Raises:
            OSError: a file can't be read.
        """
        with contextlib.suppress(RecordError):
            self.times = Checkpoint.decode(self._files.read(self._paths.checkpoint) or b"")
        # Another version of ours may have written it.
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            content = decode(self._files.read(self._paths.own_checkpoint) or b"")
            if content["format"] == FORMAT and content["sizes"] == self._sizes:
                self.safe = SafePoint.of(content["safe"])
                self._content = content

    def clean_stop(self, log_starts: Sequence[int]) -> CleanStop | None:
        """Return the state that the last clean stop left, or None if the store has changed since.

        Args:
            log_starts: physical offsets where the commit-log files found begin.
        """
        try:
            return self._clean_stop(self._content["stop"], log_starts)
        except (OSError, ValueError, KeyError, TypeError):
            # The section is missing or from another version, or a file does not exist any more.
            return None

    def _clean_stop(self, stop: dict[str, Any], log_starts: Sequence[int]) -> CleanStop | None:
        files, directory = self._files, self._paths.consume_queues
        if stop["log"] != self._log_stamps(log_starts) or stop["queues"] != files.stamp(directory):
            return None
        queues: dict[str, list[QueueEnds]] = {}
        for topic, stamp, rows in stop["topics"]:
            if stamp != files.stamp(directory / topic):
                return None
            queues[topic] = ends = []
            for *numbers, queue, last in rows:
                ends.append(QueueEnds(*numbers))
                if [queue, last] != self._queue_stamps(topic, ends[-1]):
                    return None
        assert self.safe is not None
        self._stopped = True
        return CleanStop(self.safe.end, stop["tail"], stop["lastStoreMs"], queues)

    def index_note(self) -> IndexNote | None:
        """Return how far the last clean stop had indexed the log; None if unknown."""
        try:
            section = self._content["index"]
            return IndexNote(int(section["indexed"]), list(section["last"]))
        except (ValueError, KeyError, TypeError):
            return None

    # --- a running store

    @property
    def safe_end(self) -> int:
        """Physical offset up to which log and queues are on the disk. Readable in any thread."""
        return 0 if self.safe is None else self.safe.end

    def has_name(self, queue: ConsumeQueue) -> bool:
        """Return whether the directory of a queue found at the start is known to be synced.

        It is after a clean stop, and if the safe point has messages of the queue.
        """
        if self._stopped:
            return True
        numbers = {} if self.safe is None else self.safe.numbers
        return numbers.get(queue.topic, {}).get(queue.queue_id, 0) > 0

    def begin(self, log: CommitLog, *, synced: int, safe_point_holds: bool) -> None:
        """Rewrite our file after recovery, before the store accepts messages.

        Args:
            log: just opened.
            synced: physical offset up to which it is on the disk.
            safe_point_holds: whether the safe point that was read is true of this store.

        Raises:
            OSError: our file can't be written, for another reason than a full disk.
        """
        for name in EARLIER_NAMES:
            self._files.remove(self._paths.root / name)
        # Without a valid safe point it is unknown which queue entries are on the disk, so the new
        # one covers none.
        start = SafePoint(log.start, "", log.start, log.start, {})
        point = replace((safe_point_holds and self.safe) or start, synced=synced)
        stale = not safe_point_holds or not self._content.keys().isdisjoint(("stop", "index"))
        if point == self.safe and not stale:
            return
        try:
            self.write(point)
        except OSError as error:
            if not is_no_space(error):
                raise
            # A full disk must not keep the store from opening. If the file has only a safe point
            # that holds, it may stay; otherwise it is wrong from now on.
            if stale:
                self._files.remove(self._paths.own_checkpoint)
                self.safe = self.safe if safe_point_holds else None
                # Removing the file may have freed enough space.
                with contextlib.suppress(OSError):
                    self.write(point)

    def write(
        self,
        point: SafePoint | None,
        *,
        stop: dict[str, Any] | None = None,
        index: IndexNote | None = None,
    ) -> None:
        """Replace our file. Log and queues must be synced as far as ``point`` says.

        Raises:
            OSError: the file can't be written, and is unchanged.
        """
        sections = {
            "safe": None if point is None else point.section(),
            "stop": stop,
            "index": None if index is None else index._asdict(),
        }
        content = {"format": FORMAT, "sizes": self._sizes} | {
            name: section for name, section in sections.items() if section is not None
        }
        self._files.replace(self._paths.own_checkpoint, encode(content), backup=False)
        self.safe = point

    def forget(self, topic: str) -> None:
        """Remove a topic from the safe point. Raises ``OSError``."""
        point = self.safe
        if point is None or topic not in point.numbers:
            return
        others = {name: rows for name, rows in point.numbers.items() if name != topic}
        try:
            self.write(replace(point, numbers=others))
        except OSError:
            # The disk may be full, and the old file must not stay. Without the file the next start
            # takes longer.
            self.safe = None
            self._files.remove(self._paths.own_checkpoint)

    def write_times(self, times: Checkpoint) -> None:
        """Write RocketMQ's checkpoint if it has changed. Raises ``OSError``."""
        data = times.encode()
        if data != self._written:
            self._files.write(self._paths.checkpoint, data)
            self._written = data

    # --- a clean stop

    def finish(
        self,
        log: CommitLog,
        queues: QueueTable,
        *,
        tail: int,
        last_store_ms: int,
        index: IndexNote | None,
    ) -> None:
        """Write the sections of a clean stop. The store is flushed and must not change any more.

        Args:
            log: of the store.
            queues: of the store.
            tail: physical offset where a record begins, as near to the end of the log as possible.
            last_store_ms: store time of the last record, ms since the epoch.
            index: how far the log is indexed; None if unknown.

        Raises:
            OSError: the file can't be written.
        """
        stop = None
        # Without a safe point at the end of the log, queue entries may be missing, and the next
        # start has to walk the log.
        if self.safe is not None and self.safe.end == log.end:
            with contextlib.suppress(OSError):
                stop = self._stop_section(log, queues, tail, last_store_ms)
        if stop is not None or index is not None:
            self.write(self.safe, stop=stop, index=index)

    def _stop_section(
        self, log: CommitLog, queues: QueueTable, tail: int, last_store_ms: int
    ) -> dict[str, Any] | None:
        topics = queues.ends()
        if topics is None:
            return None
        directory, stamp = self._paths.consume_queues, self._files.stamp
        return {
            "tail": max(tail, queues.last_position()),
            "lastStoreMs": last_store_ms,
            "log": self._log_stamps([file.start for file in log.files]),
            "queues": stamp(directory),
            "topics": [
                [
                    topic,
                    stamp(directory / topic),
                    [[*ends, *self._queue_stamps(topic, ends)] for ends in rows],
                ]
                for topic, rows in topics.items()
            ],
        }

    def _log_stamps(self, starts: Sequence[int]) -> list[Stamp]:
        directory = self._paths.commit_log
        paths = [directory, *(directory / name_of(start) for start in starts)]
        return [self._files.stamp(path) for path in paths]

    def _queue_stamps(self, topic: str, ends: QueueEnds) -> list[Stamp]:
        """Return the stamps of a queue's directory, which changes with its files, and last file."""
        # Strings: with ten thousand queues, Path objects would take most of the time.
        directory = f"{self._paths.consume_queues}/{topic}/{ends.queue_id}"
        last = ends.first_start + (ends.files - 1) * self._queue_file_bytes
        return [self._files.stamp(directory), self._files.stamp(f"{directory}/{name_of(last)}")]
