"""How far the store is on the disk: RocketMQ's ``checkpoint``, and a file of ours beside it.

RocketMQ keeps times (cf. StoreCheckpoint); those of one moment can't be told apart, and a clock may
be wrong. Our file is JSON with a CRC behind it, replaced atomically. It has up to three sections:

========  ==========================================================================================
safe      A start after a crash begins to look here: the log and the entries of its queues are on
          the disk up to ``end``. RocketMQ's broker ignores the file, so it may be old, but what it
          records stays true unless somebody cuts the log. Recovery finds that out: a record begins
          at ``tail``, some of whose bytes are kept, and one ends or begins at ``end``. It also has
          the next message's number of every queue: a queue with fewer entries was lost or damaged,
          and is built anew from the log before it takes a message.
stop      A clean stop is a safe point at the end of the log. This section has where each queue
          ends, and a stamp of every file and directory: length, inode and time of the last change,
          which nobody can set back. The next start believes it only if all of that is unchanged and
          the last records of the log end at the safe point. A store that was copied, that another
          broker has had open, that lost, got or changed a file, or that crashed is recovered.
index     How far the log is indexed; see ``index``.
========  ==========================================================================================

The last two are valid only after a clean stop: they are removed before a store takes messages. A
file that is missing or damaged costs a slow start, nothing else.
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
"""What earlier versions kept in three files. They are not read."""

Numbers = dict[str, dict[int, int]]
"""Of each queue of each topic the number of its next message."""


def encode(content: dict[str, Any]) -> bytes:
    """The bytes of our file."""
    text = json_dumps(content)
    return b"%s%08x" % (text, crc32(text))


def decode(data: bytes) -> dict[str, Any]:
    """What our file contains.

    Raises:
        ValueError: it is damaged.
    """
    text, crc = data[:-_CRC_DIGITS], data[-_CRC_DIGITS:]
    if crc != b"%08x" % crc32(text):
        raise ValueError("its CRC is another one")
    content: dict[str, Any] = json_loads(text)
    return content


@dataclass(frozen=True, slots=True)
class SafePoint:
    """Up to where log and queues are on the disk.

    Attributes:
        tail: physical offset, at most ``end``, where a record begins.
        head: the first bytes there, in hex; fewer or none when the log ended.
        end: physical offset up to which the log and its entries are on the disk.
        synced: physical offset, at least ``end``, up to which the log is.
        numbers: number of the next message, as it was when the log ended at ``end``.
    """

    tail: int
    head: str
    end: int
    synced: int
    numbers: Numbers

    @classmethod
    def of(cls, section: dict[str, Any]) -> SafePoint:
        """Read the section. Raises ``KeyError``, ``TypeError``, ``ValueError``, ``AttributeError``.

        That is the section of another version of ours.
        """
        numbers = {
            topic: {int(queue_id): int(number) for queue_id, number in rows.items()}
            for topic, rows in section["numbers"].items()
        }
        tail, end, synced = (int(section[name]) for name in ("tail", "end", "synced"))
        bytes.fromhex(section["head"])
        return cls(tail, section["head"], end, synced, numbers)

    def section(self) -> dict[str, Any]:
        """What ``of`` reads."""
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
    """How a clean stop left the store.

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


class IndexNote(NamedTuple):
    """How far a clean stop had indexed the log.

    Attributes:
        indexed: physical offset.
        last: name of the last index file and its next entry; empty for no file.
    """

    indexed: int
    last: list[object]


class StoreCheckpoint:
    """Both files of one store.

    Attributes:
        times: RocketMQ's checkpoint, as it was read.
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
        """Read what the run before this one left.

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
        """How the last stop left the store, if it is unchanged; else None.

        Args:
            log_starts: the commit-log files that were found.
        """
        try:
            return self._clean_stop(self._content["stop"], log_starts)
        except (OSError, ValueError, KeyError, TypeError):
            # It is missing or of another version of ours, or a file is gone.
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
        """How far the last stop had indexed the log; None when it is not known."""
        try:
            section = self._content["index"]
            return IndexNote(int(section["indexed"]), list(section["last"]))
        except (ValueError, KeyError, TypeError):
            return None

    # --- a running store

    @property
    def safe_end(self) -> int:
        """Physical offset up to which log and queues are on the disk; from any thread."""
        return 0 if self.safe is None else self.safe.end

    def has_name(self, queue: ConsumeQueue) -> bool:
        """Whether a queue that was found at the start is known to have its directory on the disk.

        It has after a clean stop, and if the safe point has messages of it.
        """
        if self._stopped:
            return True
        numbers = {} if self.safe is None else self.safe.numbers
        return numbers.get(queue.topic, {}).get(queue.queue_id, 0) > 0

    def begin(self, log: CommitLog, *, synced: int, believed: bool) -> None:
        """The store has been recovered, and will take messages.

        Args:
            log: just opened.
            synced: physical offset up to which it is on the disk.
            believed: whether the safe point that was read is true.

        Raises:
            OSError: our file can't be written, and not for want of space.
        """
        for name in EARLIER_NAMES:
            self._files.remove(self._paths.root / name)
        # Of a log that was recovered in another way nobody knows which entries are on the disk.
        start = SafePoint(log.start, "", log.start, log.start, {})
        point = replace((believed and self.safe) or start, synced=synced)
        stale = not believed or not self._content.keys().isdisjoint(("stop", "index"))
        if point == self.safe and not stale:
            return
        try:
            self.write(point)
        except OSError as error:
            if not is_no_space(error):
                raise
            # The store opens all the same. An earlier safe point is still true; all else is not.
            if stale:
                self._files.remove(self._paths.own_checkpoint)
                self.safe = self.safe if believed else None
                # The disk has a little room now.
                with contextlib.suppress(OSError):
                    self.write(point)

    def write(
        self,
        point: SafePoint | None,
        *,
        stop: dict[str, Any] | None = None,
        index: IndexNote | None = None,
    ) -> None:
        """Replace our file; all that ``point`` claims is on the disk.

        Raises:
            OSError: the disk refuses; the file is as it was.
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
            # The disk may be full: without the file the next start takes longer.
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
        """A store has been flushed and will not be touched again.

        Args:
            log: of the store.
            queues: of the store.
            tail: where a record begins, best one of the last.
            last_store_ms: store time of the last record.
            index: how far the log is indexed, if that is known.

        Raises:
            OSError: the disk refuses.
        """
        stop = None
        # Without a safe point at the end of the log the next start has to look for entries.
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
        """Of a queue's directory, which shows whether files came or went, and of its last file."""
        # As text: with ten thousand queues paths take longer than all else.
        directory = f"{self._paths.consume_queues}/{topic}/{ends.queue_id}"
        last = ends.first_start + (ends.files - 1) * self._queue_file_bytes
        return [self._files.stamp(directory), self._files.stamp(f"{directory}/{name_of(last)}")]
