"""The short way of a message: what is hot and usual, in one pass over each read.

Requests to send, to pull and to commit an offset, with an ordinary JSON header, are worked here
without a command, a header object, a future or a task for each. All records of a pass are stored
with one assignment, the entries of a queue with another, and all answers are one write. Whatever is
unusual in any way, by its header, its topic, its properties or the state of the broker, goes the
general way, ``broker.processors``, which remains the reference: both give the same records, queue
entries, answers and errors, in the same order.

No asyncio and no sockets here: a ``Peer`` takes the answers and works the frames that stay cold.

A frame's header begins with its code; see ``hot.headers`` for why that is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from time import perf_counter
from typing import Final

from broker.hot.headers import KEY_BYTES
from broker.hot.offsets import Commits
from broker.hot.pull import Pulls
from broker.hot.send import Sends
from broker.hot.series import MAX_SERIES, MIN_SERIES, Series
from broker.hot.turn import LIGHT, Peer, Serve, Turn
from broker.processors.table import Processors
from broker.state import BrokerState
from remoting.protocol.codes import RequestCode
from remoting.protocol.frame import PREFIX_BYTES
from remoting.protocol.limits import MAX_HEADER_BYTES

_PREFIX: Final = Struct(">II")
_LENGTH_BYTES: Final = 4
GoOn = Callable[[], bool]

Served = Callable[[int, int, float], None]
"""Told of requests that went the short way: a code of their family, how many, seconds together."""

_FRAMES_BETWEEN_LOOKS: Final = 16
"""Frames worked before the clock is looked at again: some 60 us."""


class HotPath:
    """The short way of one broker.

    Attributes:
        frames: how many went it.
        on_served: told once per pass, for metrics.
    """

    __slots__ = (
        "_cold_seconds",
        "_commits",
        "_max_frame_bytes",
        "_pulls",
        "_sends",
        "_series",
        "_serves",
        "_turn",
        "frames",
        "on_served",
    )

    def __init__(self, state: BrokerState, processors: Processors, *, max_frame_bytes: int) -> None:
        """For a broker whose store is open; ``processors`` are the general path's."""
        self._max_frame_bytes = max_frame_bytes
        self._turn = turn = Turn(state)
        self._sends = Sends(state, turn)
        self._series = Series(state, turn, self._sends.targets)
        self._pulls = Pulls(state, processors.pull, processors.offsets, turn)
        self._commits = Commits(processors.offsets, turn)
        serves = {**self._sends.serves, **self._pulls.serves, **self._commits.serves}
        self._serves: dict[bytes, Serve] = {
            _beginning(code): serve for code, serve in serves.items()
        }
        self.frames = 0
        self.on_served: Served | None = None
        self._cold_seconds = 0.0

    def work(self, peer: Peer, buffer: bytes, position: int, stop: int, may_go_on: GoOn) -> int:
        """Work the frames of ``buffer`` from ``position`` on; the position behind the last one.

        Args:
            peer: who they came from.
            buffer: of whole frames, and perhaps the beginning of one more.
            position: of a frame.
            stop: the position from which on it shall end.
            may_go_on: asked now and then whether there is time left.

        Raises:
            FrameError: by the peer's ``work_cold``; what came before is done.
        """
        if self.on_served is not None:
            return self._work_measured(self.on_served, peer, buffer, position, stop, may_go_on)
        return self._work(peer, buffer, position, stop, may_go_on)

    def _work_measured(
        self,
        on_served: Served,
        peer: Peer,
        buffer: bytes,
        position: int,
        stop: int,
        may_go_on: GoOn,
    ) -> int:
        """The same; the time is told by equal shares, without that of cold frames."""
        pulls, commits, frames = self._pulls.served, self._commits.served, self.frames
        self._cold_seconds = 0.0
        started = perf_counter()
        try:
            return self._work(peer, buffer, position, stop, may_go_on)
        finally:
            frames = self.frames - frames
            share = (perf_counter() - started - self._cold_seconds) / max(frames, 1)
            pulls, commits = self._pulls.served - pulls, self._commits.served - commits
            for code, count in (
                (RequestCode.SEND_MESSAGE_V2, frames - pulls - commits),
                (RequestCode.PULL_MESSAGE, pulls),
                (RequestCode.UPDATE_CONSUMER_OFFSET, commits),
            ):
                if count:
                    on_served(code, count, count * share)

    def _work(self, peer: Peer, buffer: bytes, position: int, stop: int, may_go_on: GoOn) -> int:
        self._turn.begin(peer)
        self._sends.targets.refresh()
        try:
            return self._work_frames(peer, buffer, position, stop, may_go_on)
        finally:
            self._turn.flush()

    def _work_frames(
        self, peer: Peer, buffer: bytes, position: int, stop: int, may_go_on: GoOn
    ) -> int:
        turn = self._turn
        find, unpack = self._serves.get, _PREFIX.unpack_from
        longest = self._max_frame_bytes - _LENGTH_BYTES
        available = len(buffer)
        frames = 0
        look_at = position
        while position < stop and available - position >= PREFIX_BYTES:
            length, header_length = unpack(buffer, position)
            header_at = position + PREFIX_BYTES
            end = position + _LENGTH_BYTES + length
            # A type other than JSON makes a very long header of it.
            if header_length <= MAX_HEADER_BYTES and end <= available and length <= longest:
                body_at = header_at + header_length
                size = end - position
                if (
                    position >= look_at
                    and available - position >= MIN_SERIES * size
                    and body_at <= end
                ):
                    worked = self._work_series(buffer, position, body_at, size, stop)
                    look_at = position + MIN_SERIES * size // 2
                    if worked:
                        frames += worked
                        position = look_at = position + worked * size
                        if not may_go_on():
                            break
                        continue
                serve = find(buffer[header_at : header_at + KEY_BYTES])
                if (
                    serve is not None
                    and body_at <= end
                    and (done := serve(buffer, header_at, body_at, end))
                ):
                    frames += 1
                    self.frames += 1
                    position = end
                    if done == LIGHT:
                        if frames % _FRAMES_BETWEEN_LOOKS == 0 and not may_go_on():
                            break
                        continue
                    turn.store()
                    turn.post()
                    if peer.crowded or not may_go_on():
                        break
                    continue
            end = self._work_cold(peer, buffer, position)
            if end == position:
                break
            position = end
            if peer.crowded or not may_go_on():
                break
        return position

    def _work_series(self, buffer: bytes, position: int, body_at: int, size: int, stop: int) -> int:
        """Work a frame and those behind it as a series, if they are one; how many were."""
        room = (min(len(buffer), stop) - position) // size
        if room < MIN_SERIES:
            return 0
        most = min(room, MAX_SERIES)
        worked = self._series.serve(buffer, position, body_at, position + size, most)
        self.frames += worked
        return worked

    def _work_cold(self, peer: Peer, buffer: bytes, position: int) -> int:
        self._turn.flush()
        started = 0.0 if self.on_served is None else perf_counter()
        end = peer.work_cold(buffer, position)
        if self.on_served is not None:
            self._cold_seconds += perf_counter() - started
        self._turn.look()
        self._sends.targets.refresh()
        return end


def _beginning(code: int) -> bytes:
    return (b'{"code":%d,"extFields":{' % code)[:KEY_BYTES]
