"""File names, consume queue entries and the checkpoint of the store.

Files of the commit log and of consume queues are named after the offset at which they begin.

A consume queue entry has a message's physical offset, its size and its tags code. The entry of
queue offset n is at byte ``20 * n`` of the queue's concatenated files. In the schedule topic the
third number is the delivery time instead (cf. ConsumeQueue).

The checkpoint has the store times up to which commit log, consume queues and index are flushed:
three int64 in 4096 bytes. With 5.x two more follow: what a master has flushed, which is not used
here, and the confirm offset. The rest is zero. All may be 0 after a crash (cf. StoreCheckpoint).
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from remoting.protocol.errors import RecordError

CHECKPOINT_BYTES: Final = 4096
SAFETY_MS: Final = 3000
"""How long before the checkpoint recovery begins, as several messages may have its time."""

_TIMES: Final = Struct(">qqq")
_NUMBERS: Final = Struct(">qqqqq")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The store's checkpoint: store times in ms since 1970, 0 for never."""

    physic_ms: int = 0
    """Store time of the last message of the commit log when it was flushed."""
    logics_ms: int = 0
    """Store time of the last message in the consume queues when they were flushed."""
    index_ms: int = 0
    """Store time of the last message in the last full index file."""
    confirm_offset: int = 0
    """Physical offset up to which all replicas in sync have the log (controller mode)."""

    @property
    def recover_from_ms(self) -> int:
        """The store time before which commit log and consume queues are flushed."""
        return max(0, min(self.physic_ms, self.logics_ms) - SAFETY_MS)

    def encode(self) -> bytes:
        """Return the content of the file."""
        times = self.physic_ms, self.logics_ms, self.index_ms
        return _NUMBERS.pack(*times, 0, self.confirm_offset).ljust(CHECKPOINT_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Checkpoint:
        """Parse the content of the file.

        Raises:
            RecordError: it is shorter than its three numbers.
        """
        if len(data) < _TIMES.size:
            raise RecordError(f"the checkpoint has {len(data)} bytes, its numbers take 24")
        numbers = bytes(data[: _NUMBERS.size]).ljust(_NUMBERS.size, b"\0")
        physic_ms, logics_ms, index_ms, _, confirm_offset = _NUMBERS.unpack(numbers)
        return cls(physic_ms, logics_ms, index_ms, confirm_offset)


ENTRY: Final = Struct(">qiq")
"""Physical offset, size of the record, tags code."""

ENTRY_BYTES: Final = ENTRY.size

FILLER: Final = ENTRY.pack(0, 0x7FFFFFFF, 0)
"""The entry before a queue's first real one, if that is not the first of its file."""


NAME_LENGTH: Final = 20


def name_of(offset: int) -> str:
    """Return the name of the file that begins at an offset: 20 decimal digits.

    Raises:
        ValueError: the offset is negative.
    """
    if offset < 0:
        raise ValueError(f"no file begins at the negative offset {offset}")
    return f"{offset:020d}"


def offset_of(name: str) -> int | None:
    """Return the offset at which a file begins, given its name; None for other names."""
    if len(name) == NAME_LENGTH and name.isascii() and name.isdigit():
        return int(name)
    return None
