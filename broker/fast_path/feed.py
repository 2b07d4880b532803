"""The fast path on a connection, and its frames that take the general path."""

from __future__ import annotations

from broker.fast_path.read_pass import ReadPass
from remoting.connection import Connection
from remoting.limits import SLICE_BYTES, SLICE_SECONDS
from remoting.protocol.frame import cut
from remoting.protocol.message.record import host_bytes


class FastPathFeed:
    """Feeds one connection's reads to the read pass; see ``remoting.endpoint.Feed``.

    Attributes:
        connection: as the processors know it.
        born_host: its packed address.
    """

    __slots__ = (
        *("_counters", "_max_frame_bytes", "_now", "_pass", "_until"),
        *("born_host", "connection"),
    )

    def __init__(self, read_pass: ReadPass, connection: Connection) -> None:
        endpoint = connection.endpoint
        self._counters = endpoint.counters
        self._pass = read_pass
        self._max_frame_bytes = endpoint.limits.max_frame_bytes
        self._now = endpoint.clock.monotonic
        self._until = 0.0
        self.connection = connection
        # A peer that is gone again already has no address; its frames take the general path.
        self.born_host = host_bytes(*connection.remote) if connection.remote[0] else b""

    def __call__(self, buffer: bytes, position: int) -> int:
        """Work a slice of a read."""
        read_pass = self._pass
        self._until = self._now() + SLICE_SECONDS
        before = read_pass.frames
        try:
            return read_pass.work(self, buffer, position, position + SLICE_BYTES, self._may_go_on)
        finally:
            self._counters.frames_in += read_pass.frames - before

    def _may_go_on(self) -> bool:
        return self._now() < self._until

    def work_cold(self, buffer: bytes, position: int) -> int:
        """Work one frame on the general path; behind it, or ``position`` when it isn't whole."""
        frame = cut(buffer, position, max_frame_bytes=self._max_frame_bytes)
        if frame is None:
            return position
        self.connection.receive(frame)
        return frame.end
