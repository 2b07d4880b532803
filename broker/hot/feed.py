"""The hot path on a connection: where its answers go, and the frames that are worked cold."""

from __future__ import annotations

from broker.hot_path import HotPath
from remoting.connection import Connection
from remoting.limits import SLICE_BYTES, SLICE_SECONDS
from remoting.protocol.frame import cut
from remoting.protocol.message.hosts import host_bytes


class HotFeed:
    """Feeds one connection's reads to the hot path; see ``remoting.endpoint.Feed``."""

    __slots__ = (
        "_counters",
        "_hot",
        "_max_frame_bytes",
        "_now",
        "_until",
        "born_host",
        "connection",
        "post",
    )

    def __init__(self, hot: HotPath, connection: Connection) -> None:
        endpoint = connection.endpoint
        self._counters = endpoint.counters
        self._hot = hot
        self.connection = connection
        self._max_frame_bytes = endpoint.limits.max_frame_bytes
        self._now = endpoint.clock.monotonic
        self._until = 0.0
        # A peer that is gone again already has no address; nothing of it goes the short way.
        self.born_host = host_bytes(*connection.remote) if connection.remote[0] else b""
        self.post = connection.send_pieces

    def __call__(self, buffer: bytes, position: int) -> int:
        """Work a slice of a read."""
        hot = self._hot
        self._until = self._now() + SLICE_SECONDS
        before = hot.frames
        try:
            return hot.work(self, buffer, position, position + SLICE_BYTES, self._may_go_on)
        finally:
            self._counters.frames_in += hot.frames - before

    def _may_go_on(self) -> bool:
        return self._now() < self._until

    @property
    def crowded(self) -> bool:
        """See ``Peer``."""
        return self.connection.crowded

    @property
    def may_hold(self) -> bool:
        """See ``Peer``."""
        return self.connection.may_hold

    def work_cold(self, buffer: bytes, position: int) -> int:
        """See ``Peer``."""
        frame = cut(buffer, position, max_frame_bytes=self._max_frame_bytes)
        if frame is None:
            return position
        self.connection.receive(frame)
        return frame.end

    def hold(self, answers: int) -> None:
        """See ``Peer``."""
        self.connection.hold_answers(answers)

    def release(self, answers: int) -> None:
        """See ``Peer``."""
        self.connection.release_answers(answers)
