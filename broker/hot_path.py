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
from typing import Final

from broker.hot.headers import KEY_BYTES
from broker.hot.send import Sends, Serve
from broker.hot.turn import Peer, Turn
from broker.state import BrokerState
from remoting.protocol.frame import PREFIX_BYTES
from remoting.protocol.limits import MAX_HEADER_BYTES

_PREFIX: Final = Struct(">II")
_LENGTH_BYTES: Final = 4
GoOn = Callable[[], bool]

_FRAMES_BETWEEN_LOOKS: Final = 16
"""Frames worked before the clock is looked at again: some 60 us."""


class HotPath:
    """The short way of one broker.

    Attributes:
        frames: how many went it.
    """

    __slots__ = ("_max_frame_bytes", "_sends", "_serves", "_turn", "frames")

    def __init__(self, state: BrokerState, *, max_frame_bytes: int) -> None:
        """For a broker whose store is open."""
        self._max_frame_bytes = max_frame_bytes
        self._turn = Turn(state)
        self._sends = Sends(state, self._turn)
        self._serves: dict[bytes, Serve] = {
            _beginning(code): serve for code, serve in self._sends.serves.items()
        }
        self.frames = 0

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
        turn = self._turn
        turn.begin(peer)
        self._sends.targets.refresh()
        try:
            return self._work(peer, buffer, position, stop, may_go_on)
        finally:
            turn.flush()

    def _work(self, peer: Peer, buffer: bytes, position: int, stop: int, may_go_on: GoOn) -> int:
        find, unpack = self._serves.get, _PREFIX.unpack_from
        longest = self._max_frame_bytes - _LENGTH_BYTES
        available = len(buffer)
        frames = 0
        while position < stop and available - position >= PREFIX_BYTES:
            length, header_length = unpack(buffer, position)
            header_at = position + PREFIX_BYTES
            end = position + _LENGTH_BYTES + length
            # A type other than JSON makes a very long header of it.
            if header_length <= MAX_HEADER_BYTES and end <= available and length <= longest:
                serve = find(buffer[header_at : header_at + KEY_BYTES])
                body_at = header_at + header_length
                if serve is not None and body_at <= end and serve(buffer, header_at, body_at, end):
                    self.frames += 1
                    position = end
                    frames += 1
                    if frames % _FRAMES_BETWEEN_LOOKS == 0 and not may_go_on():
                        break
                    continue
            end = self._work_cold(peer, buffer, position)
            if end == position:
                break
            position = end
            if peer.crowded or not may_go_on():
                break
        return position

    def _work_cold(self, peer: Peer, buffer: bytes, position: int) -> int:
        self._turn.flush()
        end = peer.work_cold(buffer, position)
        self._turn.look()
        self._sends.targets.refresh()
        return end


def _beginning(code: int) -> bytes:
    return (b'{"code":%d,"extFields":{' % code)[:KEY_BYTES]
