"""Messages of a queue, brought together from where they lie in the log.

Messages of other queues lie between those of one. Where the gaps are small they are read along,
where they are large each message is read alone; either way the bytes go into one buffer, which is
used again and again, and the decoder is told where in it each record begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker.storetools.view import EntryRun, LogView

Numbers = NDArray[np.int64]

MAX_GAP_BYTES: Final = 4096
"""Bytes of others between two messages that are read along: about what one more call costs."""

GATHER_BYTES: Final = 8 * 1024 * 1024
"""Bytes gathered at once, unless a single message is larger."""

ENTRY_TYPE: Final[Any] = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries of queues as columns.

    ``queues`` says which queue of those that are read, ``offsets`` which message of it;
    ``positions`` are physical offsets, ``sizes`` are in bytes.
    """

    queues: Numbers
    offsets: Numbers
    positions: Numbers
    sizes: Numbers
    tags_codes: Numbers

    @classmethod
    def of(cls, run: EntryRun, queue: int) -> Entries:
        """The entries of a run of the queue with this index."""
        raw = np.frombuffer(run.entries, dtype=ENTRY_TYPE)
        return cls(
            np.full(len(raw), queue, dtype=np.int64),
            np.arange(run.offset, run.offset + len(raw), dtype=np.int64),
            raw["position"].astype(np.int64),
            raw["size"].astype(np.int64),
            raw["tags_code"].astype(np.int64),
        )

    def __len__(self) -> int:
        """How many there are."""
        return len(self.offsets)

    @classmethod
    def merged(cls, parts: Sequence[Entries]) -> Entries:
        """Entries of several runs; those of more than one queue by their place in the log."""
        if len(parts) == 1:
            return parts[0]
        columns = (field.name for field in fields(cls))
        whole = cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))
        if (whole.queues == whole.queues[:1]).all():
            return whole
        return whole.where(np.argsort(whole.positions, kind="stable"))

    def where(self, chosen: Any) -> Entries:
        """Those that a mask, an index array or a slice chooses."""
        return Entries(
            self.queues[chosen],
            self.offsets[chosen],
            self.positions[chosen],
            self.sizes[chosen],
            self.tags_codes[chosen],
        )


@dataclass(frozen=True, slots=True)
class Gathered:
    """Records in a buffer: those of ``entries`` begin at ``starts``; all are of one log file.

    The buffer is good until the next ones are asked for.
    """

    buffer: memoryview
    starts: Numbers
    entries: Entries
    file: str


class Gatherer:
    """Reads the records of entries, in their order."""

    def __init__(self, log: LogView) -> None:
        self._log = log
        self._memory = memoryview(bytearray(GATHER_BYTES))

    def gather(self, entries: Entries) -> Iterator[Gathered]:
        """The records of entries, all of which lie within the log's files.

        Raises:
            StoreChanged: retention took some meanwhile.
            StoreError: they can't be read.
        """
        files = self._log.files
        file_ends = np.array([file.end for file in files], dtype=np.int64)
        file_of = np.searchsorted(file_ends, entries.positions, side="right")
        ends = entries.positions + entries.sizes
        gaps = entries.positions[1:] - ends[:-1]
        # A new read begins at each: another file, back, or too far ahead.
        breaks = np.ones(len(entries), dtype=bool)
        breaks[1:] = (gaps < 0) | (gaps > MAX_GAP_BYTES) | (file_of[1:] != file_of[:-1])
        taken = entries.sizes.copy()
        taken[1:] += np.where(breaks[1:], 0, gaps)
        used = np.cumsum(taken)
        done = 0
        while done < len(entries):
            before = int(used[done - 1]) if done else 0
            stop = int(np.searchsorted(used, before + GATHER_BYTES, side="right"))
            other = np.flatnonzero(file_of[done:] != file_of[done])
            stop = max(done + 1, min(stop, done + int(other[0]) if len(other) else stop))
            part = slice(done, stop)
            yield self._read(
                entries.where(part), breaks[part], ends[part], files[int(file_of[done])].path
            )
            done = stop

    def _read(self, entries: Entries, breaks: Any, ends: Numbers, file: str) -> Gathered:
        breaks[0] = True
        firsts = np.flatnonzero(breaks)
        lasts = np.append(firsts[1:], len(breaks)) - 1
        begins = entries.positions[firsts]
        lengths = ends[lasts] - begins
        places = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        if total > len(self._memory):
            self._memory = memoryview(bytearray(total))
        for begin, length, place in zip(
            begins.tolist(), lengths.tolist(), places.tolist(), strict=True
        ):
            self._log.read_into(begin, self._memory[place : place + length])
        shift = np.repeat(places - begins, lasts - firsts + 1)
        return Gathered(self._memory[:total], entries.positions + shift, entries, file)
