"""The findings of a check, ranges of the damaged log, and whether a broker has a store open.

``DAMAGE`` concerns data that exists only once: the log, or the broker's tables. ``DERIVED`` data
can be rebuilt from the log: queues, index, checkpoint. A ``NOTE`` is not a problem.

A running broker, Apache's or PocketMQ's, holds a lock on the first byte of the store's file
``lock``. ``is_open`` queries conflicting locks (F_GETLK) without taking one. Closing any descriptor
of a file drops the locks that the process has on it, so if this process has the store open itself,
the file is not opened.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from bisect import bisect_right
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

MAX_FINDINGS: Final = 1000
"""Findings that are kept, to bound memory; further ones are only counted."""

UNUSABLE: Final = frozenset({"side-file", "small-file", "timers"})
"""Kinds of findings about files that a repair moves away: the few of them are always kept."""


class Severity(StrEnum):
    """Severity of a finding."""

    DAMAGE = "damage"
    DERIVED = "derived"
    NOTE = "note"


class Finding(NamedTuple):
    """One finding.

    Attributes:
        severity: of the finding.
        kind: identifies the kind of finding, for programs.
        path: the file or directory.
        place: in the log, a physical offset; in other files, the position in bytes; None for the
            whole file.
        sentence: the finding as a text for people.
    """

    severity: Severity
    kind: str
    path: str
    place: int | None
    sentence: str


class Findings:
    """The findings of a check.

    Args:
        most: maximum number of findings to keep.

    Attributes:
        shown: the first findings, which are kept.
        counts: number of findings by severity.
        kinds: number of findings by kind.
    """

    def __init__(self, most: int = MAX_FINDINGS) -> None:
        self._most = most
        self.shown: list[Finding] = []
        self.counts: Counter[Severity] = Counter()
        self.kinds: Counter[str] = Counter()

    def add(
        self, severity: Severity, kind: str, path: str, place: int | None, sentence: str
    ) -> None:
        """Add a finding."""
        kind = str(kind)
        self.counts[severity] += 1
        self.kinds[kind] += 1
        if len(self.shown) < self._most or kind in UNUSABLE:
            self.shown.append(Finding(severity, kind, path, place, sentence))

    def damage(self, kind: str, path: str, place: int | None, sentence: str) -> None:
        """Add damage to data that exists only once."""
        self.add(Severity.DAMAGE, kind, path, place, sentence)

    def derived(self, kind: str, path: str, place: int | None, sentence: str) -> None:
        """Add a fault of data that can be rebuilt from the log."""
        self.add(Severity.DERIVED, kind, path, place, sentence)

    def note(self, kind: str, path: str, place: int | None, sentence: str) -> None:
        """Add something that is not a problem."""
        self.add(Severity.NOTE, kind, path, place, sentence)

    def merge(self, other: Findings) -> None:
        """Add the findings of a part of the check."""
        self.counts += other.counts
        self.kinds += other.kinds
        self.shown += other.shown[: max(self._most - len(self.shown), 0)]

    @property
    def is_sound(self) -> bool:
        """Whether there are only notes."""
        return not self.counts[Severity.DAMAGE] and not self.counts[Severity.DERIVED]

    @property
    def left_out(self) -> int:
        """Number of findings that are counted, but not kept."""
        return self.counts.total() - len(self.shown)


MAX_RANGES: Final = 65_536
"""Maximum number of ranges; further ones extend the last one, including the gaps between."""


class Ranges:
    """A set of ranges of physical offsets, added in ascending order."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> None:
        """Add a range that begins behind all earlier ones."""
        if self._ends and (begin == self._ends[-1] or len(self._ends) >= MAX_RANGES):
            self._ends[-1] = end
        else:
            self._begins.append(begin)
            self._ends.append(end)

    def merge(self, other: Ranges) -> None:
        """Add the ranges of a later part of the log."""
        for begin, end in zip(other._begins, other._ends, strict=True):
            self.add(begin, end)

    def __contains__(self, position: int) -> bool:
        index = bisect_right(self._begins, position) - 1
        return index >= 0 and position < self._ends[index]

    def __bool__(self) -> bool:
        return bool(self._begins)


_FLOCK: Final = struct.Struct("hhqqi4x")
"""``struct flock`` of Linux: type, whence, start, length, process."""


def is_open(root: Path) -> bool:
    """Return whether a process holds the store's lock; False where that is unknown."""
    path = root / "lock"
    try:
        inode = path.stat().st_ino
        if sys.platform != "linux":
            return False
        if _is_mine(inode):
            return True
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    kind, *_ = _FLOCK.unpack(answer)
    return bool(kind != fcntl.F_UNLCK)


def _is_mine(inode: int) -> bool:
    """Return whether this process holds a lock on the file with this inode."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    for line in lines:
        words = line.split()
        # 1: POSIX ADVISORY WRITE 4711 08:01:131085 0 0
        mine = len(words) >= 6 and words[1] == "POSIX" and words[4] == str(os.getpid())
        if mine and words[5].rpartition(":")[2] == str(inode):
            return True
    return False
