"""The checkpoint file: up to which store times the log, the queues and the index are on disk.

Three int64 in 4096 bytes, the rest zero (5.x keeps two more numbers there, which are not ours to
read). All three may be 0 after a crash (cf. StoreCheckpoint).
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
