"""Names and small layouts of the store's files.

Files of the commit log and of consume queues are named by the offset they begin at.

A consume queue entry has a message's position, its size and its tags code. Logical offset n is at
byte ``20 * n`` of the queue's files taken together. In the schedule topic the third number is the
time of delivery instead (cf. ConsumeQueue).

The checkpoint has the store times up to which log, queues and index are on disk: three int64 in
4096 bytes, the rest zero (5.x keeps two more numbers there, which we don't read). All three may be
0 after a crash (cf. StoreCheckpoint).
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from remoting.protocol.errors import RecordError

CHECKPOINT_BYTES: Final = 4096
SAFETY_MS: Final = 3000
"""How far before the checkpoint recovery begins, for messages of the same moment."""

_TIMES: Final = Struct(">qqq")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Store times, ms since 1970, 0 for never."""

    physic_ms: int = 0
    """Of the last message of the commit log when it was flushed."""
    logics_ms: int = 0
    """Of the last message in a consume queue when these were flushed."""
    index_ms: int = 0
    """Of the last message in an index file that is full."""

    @property
    def recover_from_ms(self) -> int:
        """Everything stored before this is on disk in the log and in the queues."""
        return max(0, min(self.physic_ms, self.logics_ms) - SAFETY_MS)

    def encode(self) -> bytes:
        """The whole file."""
        times = _TIMES.pack(self.physic_ms, self.logics_ms, self.index_ms)
        return times.ljust(CHECKPOINT_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Checkpoint:
        """Read the file.

        Raises:
            RecordError: it is shorter than its three numbers.
        """
        if len(data) < _TIMES.size:
            raise RecordError(f"the checkpoint has {len(data)} bytes, its numbers take 24")
        return cls(*_TIMES.unpack_from(data))


ENTRY: Final = Struct(">qiq")
"""Physical offset, size of the record, tags code."""

ENTRY_BYTES: Final = ENTRY.size

FILLER: Final = ENTRY.pack(0, 0x7FFFFFFF, 0)
"""Before the first real entry of a queue whose first file does not begin with one."""


NAME_LENGTH: Final = 20


def name_of(offset: int) -> str:
    """The name of the file that begins at an offset: 20 decimal digits.

    Raises:
        ValueError: the offset is negative.
    """
    if offset < 0:
        raise ValueError(f"no file begins at the negative offset {offset}")
    return f"{offset:020d}"


def offset_of(name: str) -> int | None:
    """The offset that a file begins at; None for other names."""
    if len(name) == NAME_LENGTH and name.isascii() and name.isdigit():
        return int(name)
    return None
