"""The replication stream of RocketMQ 5's controller mode, at both of its ends (cf. AutoSwitchHA).

It is the plain stream (see ``stream``) with a handshake before it, and with epochs in its frames:

| frame | numbers |
|---|---|
| the slave's handshake | int32 1, int16 last file only, int16 learner, int64 broker id |
| the master's handshake | int32 1, int32 bytes of the list, int64 its end, int32 last epoch |
| its list, an entry | int32 epoch, int64 start |
| report | int32 2, int64 physical offset |
| data, heartbeat | int32 2, int32 size, int64 offset, int32 epoch, int64 start, int64 confirmed |

A slave of ours may send a token before its handshake, as in the plain stream.

The master's list tells the slave where the two logs part. The slave cuts its own there, saves the
list, and then accepts: so it never has a byte whose epoch it doesn't know. A master makes no epoch
while a slave is connected, so a frame has an epoch of that list.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from broker.replication.epochs import MAX_ENTRIES, EpochList
from broker.replication.stream import (
    MAX_FRAME_BYTES,
    TRANSFER_BYTES,
    MasterStream,
    SlaveStream,
    StreamError,
)
from broker.replication.stream import REPORT as TOKEN

HANDSHAKE: Final = 1
TRANSFER: Final = 2
"""The states of a connection that are on the wire."""

SLAVE_HELLO: Final = Struct(">ihhq")
MASTER_HELLO: Final = Struct(">iiqi")
ENTRY: Final = Struct(">iq")
REPORT: Final = Struct(">iq")
DATA: Final = Struct(">iiqiqq")
_MINUS: Final = 0x80


class Plan(NamedTuple):
    """What a slave does before it accepts: cut its log at ``point``, then save the epochs."""

    point: int
    epochs: EpochList


class AutoSwitchSlave(SlaveStream):
    """The slave's end of one connection. Times are monotonic, in seconds.

    Attributes:
        hello: the handshake to send first.
        plan: what to do before ``accept``; None until the master's handshake is here.
        confirmed: what the master has confirmed, which may be beyond the end of this log.
    """

    def __init__(
        self,
        broker_id: int,
        epochs: EpochList,
        end: int,
        now: float,
        *,
        confirmed: int = 0,
        epoch: int = -1,
    ) -> None:
        """Begin a connection.

        Args:
            broker_id: of the slave, from the controller.
            epochs: of its log. Without any, the caller has compared the logs.
            end: where its log ends: behind a whole record.
            now: the time.
            confirmed: up to where its log is confirmed, and is never cut.
            epoch: of the master, from the controller; -1 if its list may lack that.
        """
        super().__init__(end, now)
        self.hello = SLAVE_HELLO.pack(HANDSHAKE, 0, 0, broker_id)
        self.plan: Plan | None = None
        self.confirmed = confirmed
        self._epochs = epochs
        self._epoch = epoch
        self._state = HANDSHAKE
        self._master_end = 0
        self._head_bytes = MASTER_HELLO.size
        self._reported_at = now

    def accept(self, now: float) -> None:
        """Begin the transfer: the plan has been carried out, and both are on the disk."""
        assert self.plan is not None
        self._epochs = self.plan.epochs
        super().__init__(self.plan.point, now)
        self._state, self._head_bytes = TRANSFER, DATA.size

    def report(self, safe: int, now: float) -> bytes:
        """Return the report to send now; see ``SlaveStream.report``."""
        report = super().report(safe, now) if self._state == TRANSFER else b""
        return TRANSFER.to_bytes(4, "big") + report if report else b""

    def _read_head(self, head: bytes) -> int:
        if self._state == TRANSFER:
            return self._read_data(head)
        if self.plan is not None:
            raise StreamError("the master sends data before a report")
        if self._head_bytes != MASTER_HELLO.size:
            return self._read_list(head)
        state, size, self._master_end, _ = MASTER_HELLO.unpack(head)
        if state != HANDSHAKE or not 0 <= size <= ENTRY.size * MAX_ENTRIES or size % ENTRY.size:
            raise StreamError(f"the master sends a handshake of state {state} and {size} bytes")
        self._head_bytes = size
        return 0 if size else self._read_list(b"")

    def _read_list(self, packed: bytes) -> int:
        self._head_bytes = DATA.size
        others = EpochList(ENTRY.iter_unpack(packed))
        # A log tells only of epochs that it has bytes of, and an empty one of none.
        least = max(self._epoch, self._epochs.cut(self.begin).last(self.begin))
        newest = others.last(self._master_end)
        if newest < least:
            raise StreamError(
                f"the master is at epoch {newest}, and this broker at {least}: it is not the master"
                " now"
            )
        point: int | None = self.begin
        if self.begin and len(self._epochs):
            point = self._epochs.common_point(self.begin, others, self._master_end)
        if point is None:
            raise StreamError(
                "this log and the master's have no epoch in common: move this store away and start"
                " with an empty one"
            )
        if point < self.confirmed:
            raise StreamError(
                f"the master's log parts from this one at {point}, but this one is confirmed up to"
                f" {self.confirmed}: the stores differ"
            )
        self.plan = Plan(point, self._epochs.merged(point, others))
        return 0

    def _read_data(self, head: bytes) -> int:
        state, size, offset, epoch, start, confirmed = DATA.unpack(head)
        if state != TRANSFER:
            raise StreamError(f"the master sends a frame of state {state}")
        if not 0 <= size <= MAX_FRAME_BYTES:
            raise StreamError(f"the master sends a frame of {size} bytes")
        if (epoch, start) not in self._epochs.entries:
            raise StreamError(f"the master's handshake has no epoch {epoch} from {start} on")
        if not self.end and offset > 0:
            self.begin = offset  # an empty log begins where the master's does
        elif offset != self.end and (size or self.end or offset != -1):
            raise StreamError(
                f"the master sends its log from offset {offset}, but this one ends at {self.end}"
            )
        self.confirmed = max(self.confirmed, confirmed)
        return int(size)


class AutoSwitchMaster(MasterStream):
    """The master's end of one connection. Times are monotonic, in seconds.

    Attributes:
        broker_id: of the slave; None before its handshake.
        is_learner: whether the slave never joins the set of replicas in sync.
    """

    def __init__(self, epochs: EpochList, now: float) -> None:
        """Begin a connection; the epochs are those of the log."""
        super().__init__(now)
        self.broker_id: int | None = None
        self.is_learner = False
        self._epochs = epochs
        self._end = -1

    @property
    def has_begun(self) -> bool:
        """Whether the slave has sent its handshake."""
        return self.broker_id is not None

    def handshake(self, end: int) -> bytes:
        """Return the answer to the slave's handshake; the log ends at ``end``."""
        self._end = end
        packed = b"".join(ENTRY.pack(*entry) for entry in self._epochs.entries[-MAX_ENTRIES:])
        last = self._epochs.last(end)
        return MASTER_HELLO.pack(HANDSHAKE, len(packed), end, last) + packed

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the slave.

        Raises:
            StreamError: the slave breaks the protocol.
        """
        self._heard_at = now
        buffer = self._buffer + data
        if self.broker_id is None:
            if self.token is None and len(buffer) >= TOKEN.size and buffer[0] & _MINUS:
                (self.token,) = TOKEN.unpack_from(buffer)
                buffer = buffer[TOKEN.size :]
            if len(buffer) < SLAVE_HELLO.size:
                self._buffer = buffer
                return
            state, _, learner, broker_id = SLAVE_HELLO.unpack_from(buffer)
            if state != HANDSHAKE or broker_id < 1:
                raise StreamError(f"a handshake has state {state} and broker id {broker_id}")
            self.broker_id, self.is_learner = broker_id, bool(learner)
            buffer = buffer[SLAVE_HELLO.size :]
        whole = len(buffer) - len(buffer) % REPORT.size
        self._buffer = buffer[whole:]
        for state, offset in REPORT.iter_unpack(buffer[:whole]):
            if state != TRANSFER:
                raise StreamError(f"the slave sends a report of state {state}")
            if self.request is None:
                if not 0 <= offset <= self._end:
                    raise StreamError(
                        f"the slave begins at {offset}, but this log ended at {self._end} when it"
                        " connected"
                    )
                self.request = self.sent = offset
            self._count(offset)

    def size(self, end: int) -> int:
        """Return the most bytes that the next frame may have if the log ends at ``end``."""
        _, border = self._epochs.at(self.sent)
        return max(
            0, min(TRANSFER_BYTES, (end if border is None else min(end, border)) - self.sent)
        )

    def frame(self, size: int, confirmed: int, now: float) -> bytes:
        """Return the header of the next frame, which has ``size`` bytes of the log.

        Args:
            size: at most ``size(end)``.
            confirmed: the confirm offset.
            now: the time.
        """
        (epoch, start), _ = self._epochs.at(self.sent)
        # As Apache's master does while its log is empty.
        offset = self.sent if self.sent or size else -1
        self.header(size, now)
        return DATA.pack(TRANSFER, size, offset, epoch, start, confirmed)
