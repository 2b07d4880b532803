"""The epochs of a log: which part of it was written under which master.

The controller numbers the masters of a group: each election begins a new epoch, in which one broker
alone writes. An entry says where in the log an epoch begins; two logs that have an entry in common
are the same up to the end of that epoch in the shorter one, and this is where the logs part.

That holds on two conditions. An entry is on the disk before the first byte of its epoch is in the
log. And an entry whose epoch has no byte is replaced by the next one: RocketMQ keeps it instead and
drops the new one (cf. EpochFileCache.appendEntry), so bytes of two masters can have one epoch
there.

RocketMQ's file, ``epochFileCheckpoint``: the number of entries, the CRC-32 of what follows, and
``epoch-offset`` of each entry, in lines (cf. CheckpointFile). A CRC of 0 is not checked.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

MAX_ENTRIES: Final = 1000
"""Most entries of a handshake, the newest ones; a file may have more."""

_CRC_BITS: Final = 0x7FFFFFFF


class EpochFileError(Exception):
    """The epoch file is damaged: which master wrote the log is unknown."""


class Epoch(NamedTuple):
    """An epoch, and the physical offset where it begins."""

    epoch: int
    start: int


class EpochList:
    """The epochs of a log, oldest first; both numbers rise. It never changes."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        """Create a list; an entry replaces those before it that don't begin or count below it."""
        kept: list[Epoch] = []
        for epoch, start in entries:
            while kept and (kept[-1].start >= start or kept[-1].epoch >= epoch):
                kept.pop()
            kept.append(Epoch(epoch, start))
        self.entries = tuple(kept)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochList) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __iter__(self) -> Iterator[Epoch]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"EpochList({[tuple(entry) for entry in self.entries]})"

    def last(self, end: int) -> int:
        """Return the newest epoch of a log that ends at ``end``; -1 if it has none."""
        return next((entry.epoch for entry in reversed(self.entries) if entry.start <= end), -1)

    def append(self, epoch: int, start: int) -> EpochList:
        """Return the list of a log whose master begins an epoch at its end, ``start``.

        Raises:
            ValueError: the log has this epoch, or a newer one.
        """
        before = self.cut(start)
        if before.entries and before.entries[-1].epoch >= epoch:
            raise ValueError(f"epoch {epoch} can't begin: the log is at {before.entries[-1].epoch}")
        return EpochList((*before, Epoch(epoch, start)))

    def cut(self, end: int) -> EpochList:
        """Return the list of the log's part before ``end``: the epochs that have a byte there."""
        return EpochList(entry for entry in self.entries if entry.start < end)

    def opened(self, end: int) -> EpochList:
        """Return the list of a log that was just opened, and ends at ``end``.

        A slave knows epochs of its master that begin beyond its own end.
        """
        return EpochList(entry for entry in self.entries if entry.start <= end)

    def begin(self, start: int) -> EpochList:
        """Return the list of a log whose part before ``start`` has been deleted."""
        first = 0
        while first + 1 < len(self.entries) and self.entries[first + 1].start <= start:
            first += 1
        return EpochList(self.entries[first:])

    def at(self, offset: int) -> tuple[Epoch, int | None]:
        """Return the epoch of the byte at an offset, and where the next one begins.

        Raises:
            ValueError: the list has no epoch.
        """
        if not self.entries:
            raise ValueError("this log has no epoch")
        index = len(self.entries) - 1
        while index and self.entries[index].start > offset:
            index -= 1
        later = self.entries[index + 1].start if index + 1 < len(self.entries) else None
        return self.entries[index], later

    def common_point(self, end: int, other: EpochList, other_end: int) -> int | None:
        """Return the physical offset where this log and another one part.

        Args:
            end: where this log ends.
            other: the epochs of the other log.
            other_end: where it ends.

        Returns:
            None if it is unknown: no entry is in both, and they begin at different offsets.
        """
        for entry in reversed(self.entries):
            if entry.start <= min(end, other_end) and entry in other.entries:
                ends = [end, other_end, self.at(entry.start)[1], other.at(entry.start)[1]]
                return min(offset for offset in ends if offset is not None)
        begins = {one.entries[0].start for one in (self, other) if one.entries}
        # Logs that begin at the same offset part there, at the latest.
        return begins.pop() if len(begins) == 1 else None

    def merged(self, point: int, other: EpochList) -> EpochList:
        """Return the list of this log once it is cut at ``point`` and follows the other one.

        The other list's epochs count from ``point`` on, those that begin beyond it, too.
        """
        own = [entry for entry in self.entries if entry.start < point]
        newest = own[-1].epoch if own else -1
        return EpochList((*own, *(entry for entry in other if entry.epoch > newest)))

    def encode(self) -> str:
        """Return the text of the file."""
        lines = "".join(f"{epoch}-{start}\n" for epoch, start in self.entries)
        return f"{len(self.entries)}\n{zlib.crc32(lines.encode()) & _CRC_BITS}\n{lines}"

    @classmethod
    def decode(cls, text: str) -> EpochList:
        """Parse the text of a file, with whatever line ends.

        Raises:
            EpochFileError: it is damaged.
        """
        try:
            count, crc, *lines = text.split()
            entries = [tuple(map(int, line.split("-", 1))) for line in lines]
            found = cls((epoch, start) for epoch, start in entries)
            expected, stored = int(count), int(crc)
        except ValueError as error:
            raise EpochFileError(f"the epoch file is damaged: {error}") from error
        if len(entries) != expected:
            raise EpochFileError(
                f"the epoch file is damaged: it should have {expected} epochs, not {len(entries)}"
            )
        own = "".join(f"{line}\n" for line in lines)
        if stored and stored not in {
            zlib.crc32(one.encode()) & _CRC_BITS for one in (own, own.replace("\n", "\r\n"))
        }:
            raise EpochFileError("the epoch file is damaged: its checksum is wrong")
        return found
