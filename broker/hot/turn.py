"""What one pass over a read gathers: answers that go out at once, answers that wait for the disk.

Appends are gathered by the store's ``Bulk``. ``flush`` brings everything out in the order that the
general path has: records and queue entries first, then the answers. It comes before every frame
that goes the general way, and at the end of the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from broker.hot.answers import framed, less_durable
from broker.state import BrokerState
from remoting.protocol.message.hosts import HOST_BYTES_V4

if TYPE_CHECKING:
    from remoting.connection import Connection

Piece: TypeAlias = bytes | memoryview
Fill: TypeAlias = tuple[int | bytes, ...]


Serve: TypeAlias = Callable[[bytes, int, int, int], int]
"""Works the frame whose header begins at the first position, whose body at the second, and which
ends at the third. ``COLD``: it was left to the general path; else it is done."""

COLD: Final = 0
LIGHT: Final = 1
HEAVY: Final = 2
"""It took long, or its answer is large: see whether there is time left, and room for more."""


class Peer(Protocol):
    """Who a read came from.

    Attributes:
        born_host: its packed address.
        connection: as the processors know it.
    """

    born_host: bytes
    connection: Connection

    @property
    def crowded(self) -> bool:
        """Whether it must first take its answers."""
        ...

    @property
    def may_hold(self) -> bool:
        """Whether answers to it may wait."""
        ...

    def post(self, pieces: Sequence[Piece]) -> None:
        """Send answers."""
        ...

    def work_cold(self, buffer: bytes, position: int) -> int:
        """Work one frame the general way; behind it, or ``position`` when it isn't whole."""
        ...

    def hold(self, answers: int) -> None:
        """So many answers to it wait from now on."""
        ...

    def release(self, answers: int) -> None:
        """So many answers to it wait no longer."""
        ...


class Turn:
    """The pass being made.

    Attributes:
        peer: who is served.
        answers: what goes to it.
        late: answers that wait for the disk: their templates and what they are filled with.
        takes_sends: whether the peer's sends may go the short way.
        messages, message_bytes: stored so far.
        syncs: whether answers wait for the disk unless a message says otherwise.
    """

    __slots__ = (
        "_bulk",
        "_state",
        "answers",
        "late",
        "message_bytes",
        "messages",
        "peer",
        "syncs",
        "takes_sends",
    )

    peer: Peer

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._bulk = state.store.bulk
        self.syncs = state.store.sync_flush
        self.answers: list[Piece] = []
        self.late: list[tuple[bytes, Fill]] = []
        self.takes_sends = False
        self.messages = 0
        self.message_bytes = 0

    def begin(self, peer: Peer) -> None:
        """Serve ``peer`` from now on."""
        self.peer = peer
        self.look()

    def look(self) -> None:
        """See what the peer's sends may do now; after each frame that went the general way."""
        state = self._state
        self.takes_sends = len(self.peer.born_host) == HOST_BYTES_V4 == len(state.packed_host) and (
            not self.syncs or self.peer.may_hold
        )

    def answer_send(self, template: bytes, fill: Fill, *, waits: bool) -> None:
        """Answer a send whose message was added, now or when the disk has it."""
        if waits and self.syncs:
            self.late.append((template, fill))
        else:
            self.answers.append(framed(template % fill))

    def store(self) -> None:
        """Store what was gathered and make it visible."""
        self._bulk.flush()
        if self.messages:
            counters = self._state.counters
            counters.messages_sent += self.messages
            counters.bytes_sent += self.message_bytes
            self.messages = self.message_bytes = 0
            if self.syncs:
                self._state.store.ask_sync()

    def post(self) -> None:
        """Send the answers that are ready; nothing may wait to be stored."""
        if self.answers:
            answers, self.answers = self.answers, []
            self.peer.post(answers)

    def flush(self) -> None:
        """Bring out what was gathered."""
        self.store()
        self.post()
        if self.late:
            late, self.late = self.late, []
            self.peer.hold(len(late))
            end = self._bulk.position
            self._state.store.when_durable(end, partial(_answer_late, self.peer, late))


def _answer_late(peer: Peer, late: list[tuple[bytes, Fill]], durable: bool) -> None:
    if durable:
        answers = [framed(template % fill) for template, fill in late]
    else:
        answers = [framed(less_durable(template % fill)) for template, fill in late]
    peer.post(answers)
    peer.release(len(late))
