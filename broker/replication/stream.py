"""RocketMQ's replication stream at both of its ends: bytes and times in, bytes and offsets out.

A slave connects to its master and reports the end of its log: 8 bytes, a physical offset. The
master answers with frames: the physical offset of the bytes that follow, their number, and these
bytes of the log; without bytes a frame is a heartbeat (cf. HAConnection and HAClient of 4.9,
DefaultHAConnection and DefaultHAClient of 5.x). There is no handshake: the first report decides
where the master begins, and each one acknowledges all bytes before it. A slave of ours first sends
a token that its master has given it, 8 bytes too, which is below 0 and so can't be an offset.

A frame may end inside a record. A slave keeps that part in ``SlaveStream.pending``, so its log
always ends with a whole record; after a cut it asks for the part again.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

REPORT: Final = Struct(">q")
HEADER: Final = Struct(">qi")

TRANSFER_BYTES: Final = 32 * 1024
"""Most log bytes in a frame that we send (cf. haTransferBatchSize)."""

MAX_FRAME_BYTES: Final = 4 * 1024 * 1024 - HEADER.size
"""Most log bytes in a frame that we accept: what fits into the buffer of Apache's slave."""

HEARTBEAT_SECONDS: Final = 5.0
"""Longest time between two reports, or two frames (cf. haSendHeartbeatInterval)."""

SILENCE_SECONDS: Final = 20.0
"""Close a connection that has brought nothing for this long (cf. haHousekeepingInterval)."""


class StreamError(Exception):
    """The other end breaks the protocol or has another log: close the connection."""


class SlaveStream:
    """The slave's end of one connection. Times are monotonic, in seconds.

    Attributes:
        begin: physical offset of the first byte of ``pending``, where the slave's log ends.
        pending: bytes received and not appended yet.
    """

    def __init__(self, begin: int, now: float, *, assumed: bytes = b"") -> None:
        """Begin a connection.

        Args:
            begin: where the slave's log ends.
            now: the time.
            assumed: the log's bytes from ``begin`` on, which are not requested. A request of 0
                means the begin of the master's last file, so a slave that needs a whole log assumes
                its first byte, which is 0 in a record of less than 16 MiB.
        """
        self.begin = begin
        self.pending = bytearray(assumed)
        self._request = begin + len(assumed)
        self._head = bytearray()
        self._head_bytes = HEADER.size
        self._missing = 0  # of the current frame
        self._heard_at = now
        self._reported_at = -HEARTBEAT_SECONDS
        self._reported = -1

    @property
    def end(self) -> int:
        """Physical offset after the last byte received."""
        return self.begin + len(self.pending)

    def receive(self, data: bytes | memoryview, now: float) -> None:
        """Add bytes from the master to ``pending``.

        Raises:
            StreamError: a frame does not continue the log, or has an impossible size.
        """
        self._heard_at = now
        at = 0
        while at < len(data):
            if self._missing:
                part = data[at : at + self._missing]
                self.pending += part
                self._missing -= len(part)
                at += len(part)
                continue
            lacks = self._head_bytes - len(self._head)
            self._head += data[at : at + lacks]
            at += lacks
            if len(self._head) == self._head_bytes:
                head = bytes(self._head)
                self._head.clear()
                self._missing = self._read_head(head)

    def _read_head(self, head: bytes) -> int:
        """Check the header of a frame; return the number of the log's bytes that follow."""
        offset, size = HEADER.unpack(head)
        if offset != self.end:
            raise StreamError(
                f"the master sends its log from offset {offset}, but this one ends at {self.end}"
            )
        if not 0 <= size <= MAX_FRAME_BYTES:
            raise StreamError(f"the master sends a frame of {size} bytes")
        return int(size)

    def appended(self, size: int) -> None:
        """Drop the first bytes of ``pending``, which are in the log now."""
        del self.pending[:size]
        self.begin += size

    def report(self, safe: int, now: float) -> bytes:
        """Return the report to send now; empty if none is due.

        Args:
            safe: physical offset up to which the log is as safe as the slave's flush mode promises.
            now: the time.
        """
        offset = max(safe, self._request)
        if offset <= self._reported and now - self._reported_at < HEARTBEAT_SECONDS:
            return b""
        self._reported, self._reported_at = offset, now
        return REPORT.pack(offset)

    def pause(self, now: float) -> float:
        """Return the seconds until a report or the end of the connection is due.

        Raises:
            StreamError: the master is silent.
        """
        silence = self._heard_at + SILENCE_SECONDS - now
        if silence <= 0:
            raise StreamError(f"the master has sent nothing for {SILENCE_SECONDS:.0f} seconds")
        return max(0.0, min(silence, self._reported_at + HEARTBEAT_SECONDS - now))


class MasterStream:
    """The master's end of one connection. Times are monotonic, in seconds.

    Attributes:
        token: what the slave has sent before anything else; None: nothing.
        request: where the slave's log ended when it connected; None before its first report.
        sent: physical offset after the last byte sent.
        acked: physical offset up to which the slave has the log; 0 if unknown. What the slave had
            before it connected counts from its first report after a frame.
    """

    def __init__(self, now: float) -> None:
        """Begin a connection."""
        self.token: int | None = None
        self.request: int | None = None
        self.sent = 0
        self.acked = 0
        self._buffer = b""
        self._heard_at = now
        self._sent_at: float | None = None
        self._second = now
        self._sent_in_second = 0

    @property
    def has_begun(self) -> bool:
        """Whether the slave has sent what follows a token."""
        return self.request is not None

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the slave.

        Raises:
            StreamError: the slave acknowledges what it was not sent.
        """
        self._heard_at = now
        buffer = self._buffer + data
        whole = len(buffer) - len(buffer) % REPORT.size
        self._buffer = buffer[whole:]
        for (offset,) in REPORT.iter_unpack(buffer[:whole]):
            if self.request is None and self.token is None and offset < 0:
                self.token = offset
            elif self.request is None:
                self.request = offset
            elif self._sent_at is not None:  # else a report again, before the first frame
                self._count(offset)

    def _count(self, offset: int) -> None:
        if offset > self.sent:
            raise StreamError(
                f"the slave acknowledges offset {offset}, but was sent the log up to {self.sent}"
            )
        self.acked = max(self.acked, offset)

    def start(self, offset: int) -> None:
        """Begin to send at a physical offset."""
        self.sent = offset

    def size(self, end: int) -> int:
        """Return the most bytes that the next frame may have if the log ends at ``end``."""
        return max(0, min(TRANSFER_BYTES, end - self.sent))

    def frame(self, size: int, _confirmed: int, now: float) -> bytes:
        """Return the header of the next frame; the plain stream has no confirm offset."""
        return self.header(size, now)

    def header(self, size: int, now: float) -> bytes:
        """Return the header of the next frame, which has ``size`` bytes of the log."""
        header = HEADER.pack(self.sent, size)
        self.sent += size
        self._sent_in_second += size
        self._sent_at = now
        return header

    def room(self, now: float, most: int) -> int:
        """Return the bytes of the log that may be sent now, of ``most`` in a second.

        The second begins when the one before it is over (cf. FlowMonitor).
        """
        if now - self._second >= 1:
            self._second, self._sent_in_second = now, 0
        return max(0, most - self._sent_in_second)

    def refill(self, now: float) -> float:
        """Return the seconds until the next second begins."""
        return max(0.0, self._second + 1 - now)

    def pause(self, now: float) -> float:
        """Return the seconds until a heartbeat or the end of the connection is due.

        Raises:
            StreamError: the slave is silent.
        """
        silence = self._heard_at + SILENCE_SECONDS - now
        if silence <= 0:
            raise StreamError(f"the slave has sent nothing for {SILENCE_SECONDS:.0f} seconds")
        heartbeat = 0.0 if self._sent_at is None else self._sent_at + HEARTBEAT_SECONDS - now
        return max(0.0, min(silence, heartbeat))


def first_offset(request: int, start: int, end: int, file_size: int) -> int:
    """Return where a master begins to send to a slave (cf. HAConnection.WriteSocketService).

    Args:
        request: the slave's first report; 0 asks for the last file.
        start: physical offset of the first byte of the master's log.
        end: physical offset after its last one.
        file_size: bytes of a commit-log file.

    Raises:
        StreamError: the master does not have what follows.
    """
    if request == 0:
        return max(start, end - end % file_size)
    if request > end:
        raise StreamError(
            f"the slave's log ends at {request}, and this master's at {end}: the slave has messages"
            " that the master lacks"
        )
    if request < start:
        raise StreamError(
            f"the slave's log ends at {request}, but this master's begins at {start}: what is"
            " between them has been deleted, so the slave needs an empty store or a copy"
        )
    return request
