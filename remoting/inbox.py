"""What was read and not yet worked.

Reads come in any cut. As long as nothing is left over, a read is worked where it lies, without a
copy. What is left of an incomplete frame is kept as a list of chunks and joined once, when the
frame is whole: a frame of 16 MiB in 64 KiB reads is copied once, not 256 times. Small reads are
gathered into one chunk, or a peer that sends byte by byte would cost forty times what it sends.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from remoting.protocol.frame import PREFIX_BYTES, needed

_LENGTH: Final = Struct(">I")
_SMALL_READ_BYTES: Final = 4096
_CHUNK_BYTES: Final = 64 * 1024


class Inbox:
    """The buffer being worked, the position in it, and the chunks behind it.

    ``add`` and ``advance`` raise FrameError when no frame can begin with these bytes. Of a frame
    that is whole only the length is looked at: who works it sees the rest.

    Attributes:
        ready: whether there is a whole frame, at ``position`` of ``buffer``.
        empty: whether there is nothing.
    """

    __slots__ = (
        "_chunks",
        "_chunks_bytes",
        "_max_frame_bytes",
        "_need",
        "buffer",
        "empty",
        "position",
        "ready",
    )

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self.buffer = b""
        self.position = 0
        self._chunks: list[bytes | bytearray] = []
        self._chunks_bytes = 0
        self._need = needed(b"")
        self.ready = False
        self.empty = True

    def __len__(self) -> int:
        return len(self.buffer) - self.position + self._chunks_bytes

    def add(self, data: bytes) -> None:
        """Take a read."""
        if self.empty:
            self.buffer = data
            self.position = 0
            self._measure()
            return
        self._keep(data)
        if len(self) >= self._need > len(self.buffer) - self.position:
            self._join()

    def advance(self, position: int) -> None:
        """What lies before ``position`` has been worked."""
        end = len(self.buffer)
        assert self.position <= position <= end, "a feed consumes what it was given"
        self.position = position
        if position == end and not self._chunks_bytes:
            self.clear()
        else:
            self._measure()

    @property
    def missing(self) -> int:
        """Bytes that the frame at the position lacks, or its length, when that is missing."""
        return max(self._need - len(self), 0)

    def take_rest(self) -> tuple[int, list[bytes | bytearray]]:
        """Give away the incomplete frame, the only thing there is: its bytes, and what is here."""
        need, parts = self._need, [self.buffer[self.position :], *self._chunks]
        self.clear()
        return need, parts

    def clear(self) -> None:
        """Forget everything."""
        self.buffer = b""
        self.position = 0
        if self._chunks_bytes:
            self._chunks.clear()
            self._chunks_bytes = 0
        self._need = _LENGTH.size
        self.ready = False
        self.empty = True

    def _keep(self, data: bytes) -> None:
        chunks = self._chunks
        self._chunks_bytes += len(data)
        if len(data) >= _SMALL_READ_BYTES:
            chunks.append(data)
            return
        last = chunks[-1] if chunks else None
        if isinstance(last, bytearray) and len(last) < _CHUNK_BYTES:
            last += data
        else:
            chunks.append(bytearray(data))

    def _join(self) -> None:
        """Make one buffer of the rest and the chunks behind it."""
        self.buffer = b"".join((memoryview(self.buffer)[self.position :], *self._chunks))
        self.position = 0
        self._chunks.clear()
        self._chunks_bytes = 0
        self._measure()

    def _measure(self) -> None:
        """Find out what the frame at the position needs, and get it into one piece if it is here.

        A rest that has to wait is cut off: it must not keep a long read alive.
        """
        self.empty = False
        have = len(self.buffer) - self.position
        if have >= PREFIX_BYTES:
            (length,) = _LENGTH.unpack_from(self.buffer, self.position)
            need = _LENGTH.size + length
            if PREFIX_BYTES <= need <= have and need <= self._max_frame_bytes:
                self._need = need
                self.ready = True
                return
        self.ready = False
        need = needed(self.buffer, self.position, max_frame_bytes=self._max_frame_bytes)
        self._need = need
        if need <= have + self._chunks_bytes:
            self._join()
        elif self.position:
            self.buffer = self.buffer[self.position :]
            self.position = 0
