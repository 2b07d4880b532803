"""The place in the log behind which a start after a crash begins to look.

Before it all is on the disk: the log, and the entries that the queues have of it. The file that
records it is written now and then, and by every clean stop; it is ours alone and RocketMQ leaves
it lying, so it may be of long ago, but what it says of the log stays true unless somebody cuts the
log below it. That is found out: a record begins at ``tail``, some of whose bytes are kept here, and
one ends or begins at ``end``.

It also has the next message's number of every queue. A queue that turns out to have fewer entries
was lost or damaged, and is built anew from the log before it takes a message.

Cf. StoreCheckpoint, which keeps times: those of one moment can't be told apart, and a clock may be
wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, NamedTuple

from broker.store.commit_log import CommitLog
from broker.store.config import StoreConfig, StorePaths
from broker.store.consume_queue import ConsumeQueue
from broker.store.os_files import Files, is_no_space
from broker.store.queue_table import QueueTable
from remoting.protocol.accelerated import crc32, json_dumps, json_loads

FORMAT: Final = 1
_CRC_DIGITS: Final = 8
_HEAD_BYTES: Final = 64
"""Of the record at ``tail``: its sizes, its place, its CRC, when it was born and stored."""

_ASKED_FOR_THEIR_LAST: Final = 64
"""Queues whose last message may be the tail; from there to the end the log is walked once more."""

Numbers = dict[str, dict[int, int]]
"""Of each queue of each topic the number of its next message."""


@dataclass(frozen=True, slots=True)
class SafePoint:
    """What the file tells.

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


class Mark(NamedTuple):
    """A moment of the store, to become a safe point when the disk has all that was there."""

    tail: int
    head: str
    end: int
    generation: int
    numbers: dict[ConsumeQueue, int]


class Marker:
    """Takes marks; only the thread that appends does.

    Attributes:
        generation: of the marks; none of an earlier one becomes a safe point.
    """

    def __init__(
        self, log: CommitLog, queues: QueueTable, first_waiting: Callable[[], int]
    ) -> None:
        """``first_waiting`` tells where the first message lies that has no entry yet."""
        self._log = log
        self._queues = queues
        self._first_waiting = first_waiting
        self._tail = log.opened_tail
        self._numbers: dict[ConsumeQueue, int] = {}
        self.generation = 0

    @property
    def log_end(self) -> int:
        """Where the log ends now; from any thread."""
        return self._log.end

    def take(self) -> Mark:
        """What the store comes to now."""
        end = min(self._log.end, self._first_waiting())
        numbers = {queue: queue.max_offset for queue in self._queues.all()}
        grown = (queue for queue, number in numbers.items() if number > self._numbers.get(queue, 0))
        for queue in islice(grown, _ASKED_FOR_THEIR_LAST):
            entry = queue.entry(queue.max_offset - 1)
            if entry is not None and self._tail < entry[0] < end:
                self._tail = entry[0]
        self._numbers = numbers
        head = head_at(self._log, self._tail, end)
        return Mark(self._tail, head, end, self.generation, numbers)


def head_at(log: CommitLog, position: int, end: int) -> str:
    """The bytes by which a place of the log, before ``end``, is known again."""
    file = log.file_at(position)
    if file is None or position >= end:
        return ""
    end = min(position + _HEAD_BYTES, end, file.start + file.size)
    view = log.slice(position, end - position)
    return "" if view is None else view.hex()


class SafePointFile:
    """The file, and what it holds.

    Attributes:
        point: what was written or read last; None for nothing.
    """

    def __init__(self, files: Files, paths: StorePaths, config: StoreConfig) -> None:
        self._files = files
        self._path = paths.safe_point
        self._sizes = [config.mapped_file_size_commit_log, config.mapped_file_size_consume_queue]
        self.point: SafePoint | None = None

    def read(self) -> SafePoint | None:
        """What a run before this one left; None when there is none, or one that is damaged.

        Raises:
            OSError: it can't be read.
        """
        data = self._files.read(self._path) or b""
        text, crc = data[:-_CRC_DIGITS], data[-_CRC_DIGITS:]
        if crc != b"%08x" % crc32(text):
            return None
        try:
            self.point = self._checked(json_loads(text))
        except (ValueError, KeyError, TypeError, AttributeError):
            # Of another version of ours.
            return None
        return self.point

    def _checked(self, content: dict[str, Any]) -> SafePoint | None:
        if content["format"] != FORMAT or content["sizes"] != self._sizes:
            return None
        numbers = {
            topic: {int(queue_id): int(number) for queue_id, number in rows.items()}
            for topic, rows in content["numbers"].items()
        }
        tail, end, synced = (int(content[name]) for name in ("tail", "end", "synced"))
        return SafePoint(tail, str(content["head"]), end, synced, numbers)

    def safe_end(self) -> int:
        """Physical offset up to which log and queues are on the disk; from any thread."""
        point = self.point
        return 0 if point is None else point.end

    def number_of(self, queue: ConsumeQueue) -> int:
        """Number of a queue's next message at the safe point; 0 when it knows of none."""
        point = self.point
        return 0 if point is None else point.numbers.get(queue.topic, {}).get(queue.queue_id, 0)

    def begin(self, log: CommitLog, *, synced: int, believed: bool) -> None:
        """The log has been recovered; of its queues nobody knows whether they are on the disk.

        Args:
            log: just opened.
            synced: physical offset up to which it is on the disk.
            believed: whether what was read here goes with it.

        Raises:
            OSError: it can't be written, and not for want of space.
        """
        point = self.point if believed else None
        if point is None:
            point = SafePoint(log.start, "", log.start, log.start, {})
        if point == self.point and point.synced == synced:
            return
        try:
            self.write(replace(point, synced=synced))
        except OSError as error:
            if not is_no_space(error):
                raise
            # The store opens all the same. What was believed is still true, if of an earlier time.
            if not believed:
                self.drop()

    def drop(self) -> None:
        """It is not true any more. Raises ``OSError``."""
        self.point = None
        self._files.remove(self._path)

    def write(self, point: SafePoint) -> None:
        """Replace what is there; all that ``point`` says is on the disk. Raises ``OSError``."""
        content = {
            "format": FORMAT,
            "sizes": self._sizes,
            "tail": point.tail,
            "head": point.head,
            "end": point.end,
            "synced": point.synced,
            "numbers": {
                topic: {str(queue_id): number for queue_id, number in rows.items()}
                for topic, rows in point.numbers.items()
            },
        }
        text = json_dumps(content)
        self._files.replace(self._path, b"%s%08x" % (text, crc32(text)), backup=False)
        self.point = point

    def forget(self, topic: str) -> None:
        """Say nothing of a topic any more. Raises ``OSError``."""
        point = self.point
        if point is None or topic not in point.numbers:
            return
        others = {name: rows for name, rows in point.numbers.items() if name != topic}
        try:
            self.write(replace(point, numbers=others))
        except OSError:
            # A full disk, it may be: then the next start takes longer.
            self.drop()


def point_of(mark: Mark, synced: int) -> SafePoint:
    """What a mark comes to once the disk has it, and the log up to ``synced``."""
    numbers: Numbers = {}
    for queue, number in mark.numbers.items():
        numbers.setdefault(queue.topic, {})[queue.queue_id] = number
    return SafePoint(mark.tail, mark.head, mark.end, synced, numbers)
