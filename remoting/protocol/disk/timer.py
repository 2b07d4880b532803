"""The timer files of RocketMQ 5.x: slots of ``timerwheel``, units of ``timerlog``, ``timercheck``.

``timerProgress`` is PocketMQ's own.

The wheel has a slot of 32 bytes for each second of 14 days. A slot's units form a chain in the
timer log: the slot has the positions of the first and the last, each unit that of the one before.
A slot counts for the second that it names; any other content is left over from an earlier one.
All numbers are big endian (cf. TimerWheel, TimerLog, TimerCheckpoint).

==========  =====================================================================================
file        content
==========  =====================================================================================
slot        int64 second since 1970, int64 position of the first unit, int64 of the last, int32
            number of messages, int32 unused
unit        int32 52, int64 position of the unit before or -1, int32 kind, int64 time of writing
            (ms, whole seconds), int32 ms from there until it is due, int64 physical offset and
            int32 size of the message's record, int32 Java hash of its real topic, int64 unused
timercheck  int64 next slot to read (ms), int64 end of the synced timer log, int64 next offset of
            the timer topic, the same once more, three int64 of the version; then zeros
progress    8 bytes ``PMQTIME2``, eight int64 as in ``TimerProgress``, int32 CRC-32 of the bytes
            before; then zeros
==========  =====================================================================================

RocketMQ writes whole seconds as the time until a unit is due and divides by 1000 where it reads
it. Our units have the ms before the message is due, so that a slot is sorted without its records.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from remoting.protocol.accelerated import crc32

WHEEL_NAME: Final = "timerwheel"
LOG_NAME: Final = "timerlog"
CHECK_NAME: Final = "timercheck"
PROGRESS_NAME: Final = "timerProgress"

PRECISION_MS: Final = 1000
"""The length of a slot."""

WHEEL_SLOTS: Final = 2 * 7 * 24 * 3600
SLOT: Final = Struct(">qqqii")
WHEEL_BYTES: Final = WHEEL_SLOTS * SLOT.size

UNIT: Final = Struct(">iqiqiqiiq")
DEFAULT_LOG_FILE_BYTES: Final = 100 * 1024 * 1024
_BLANK: Final = Struct(">iqi")
_BLANK_MAGIC: Final = 0xCBD43194 - (1 << 32)

CHECK: Final = Struct(">7q")
CHECK_BYTES: Final = 4096

NORMAL: Final = 1
ROLL: Final = 2
"""The message is due later than the wheel reaches, and is stored in the timer topic again."""
DELETE: Final = 4
"""The message recalls another one of the same slot."""
_KINDS: Final = frozenset(range(1, 8))


class Slot(NamedTuple):
    """The units of one second; ``last`` is -1 if there are none."""

    second: int = -1
    first: int = -1
    last: int = -1
    messages: int = 0
    unused: int = 0


NO_SLOT: Final = Slot()


class Unit(NamedTuple):
    """One message of the wheel; times in ms since 1970."""

    previous: int
    kind: int
    written_ms: int
    due_ms: int
    """Exact if not a whole second; see the module."""
    offset: int
    size: int
    topic_hash: int = 0

    @property
    def slot_ms(self) -> int:
        """The time of its slot."""
        return self.due_ms // PRECISION_MS * PRECISION_MS

    def encode(self) -> bytes:
        """Return the unit's bytes."""
        return UNIT.pack(
            UNIT.size,
            self.previous,
            self.kind,
            self.written_ms,
            self.due_ms - self.written_ms,
            self.offset,
            self.size,
            self.topic_hash,
            0,
        )


class TimerCheck(NamedTuple):
    """The content of ``timercheck`` without its version."""

    read_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0


def slot_index(slot_ms: int) -> int:
    """Return the number of the slot for a time."""
    return slot_ms // PRECISION_MS % WHEEL_SLOTS


def decode_unit(data: bytes | memoryview, position: int) -> Unit | None:
    """Return the unit at a position; None if there is no valid one."""
    if not 0 <= position <= len(data) - UNIT.size:
        return None
    size, previous, kind, written_ms, wait_ms, offset, length, code, _ = UNIT.unpack_from(
        data, position
    )
    if size != UNIT.size or kind not in _KINDS or length <= 0 or offset < 0 or written_ms < 0:
        return None
    return Unit(previous, kind, written_ms, written_ms + wait_ms, offset, length, code)


def is_blank(data: bytes | memoryview, position: int) -> bool:
    """Return whether the end of a log file begins here."""
    if not 0 <= position <= len(data) - _BLANK.size:
        return position >= 0
    return bool(_BLANK.unpack_from(data, position)[2] == _BLANK_MAGIC)


def blank(length: int) -> bytes:
    """Return the mark of the last ``length`` bytes of a log file."""
    return _BLANK.pack(length, 0, _BLANK_MAGIC)


def units_end(file_bytes: int) -> int:
    """Return how many bytes of a log file may hold units."""
    return (file_bytes - _BLANK.size) // UNIT.size * UNIT.size


def encode_check(check: TimerCheck, version_ms: int, counter: int) -> bytes:
    """Return the bytes of ``timercheck`` before its zeros."""
    # RocketMQ takes the lower one of both offsets.
    offset = check.queue_offset
    return CHECK.pack(check.read_ms, check.log_end, offset, offset, 0, version_ms, counter)


def decode_check(data: bytes | memoryview) -> TimerCheck:
    """Return the content of ``timercheck``; zeros if it is too short or has negative numbers."""
    if len(data) < CHECK.size:
        return TimerCheck()
    read_ms, log_end, queue_offset, master_offset, *_ = CHECK.unpack_from(data)
    found = TimerCheck(read_ms, log_end, min(queue_offset, master_offset))
    return found if min(found) >= 0 else TimerCheck()


_PROGRESS_MAGIC: Final = b"PMQTIME2"
_PROGRESS: Final = Struct(">8s8q")
_PROGRESSES: Final = {_PROGRESS_MAGIC: _PROGRESS, b"PMQTIMER": Struct(">8s5q")}
"""The layouts; older versions didn't have the last three numbers."""

_CRC: Final = Struct(">I")
PROGRESS_BYTES: Final = 4096


class TimerProgress(NamedTuple):
    """How far reading and delivering have come.

    Attributes:
        store_end: end of the commit log after the deliveries.
        log_end: end of the timer log.
        queue_offset: next offset of the timer topic.
        slot_ms: time of the slot that is being delivered.
        delivered: what is delivered of it, see ``broker.delivery.timer_wheel.pack``.
        lost_offset: messages before this offset of the timer topic were in files that are lost.
        lost_slot_ms, lost_delivered: how far those had been delivered.
    """

    store_end: int = 0
    log_end: int = 0
    queue_offset: int = 0
    slot_ms: int = 0
    delivered: int = 0
    lost_offset: int = 0
    lost_slot_ms: int = 0
    lost_delivered: int = 0

    def encode(self) -> bytes:
        """Return the bytes of ``timerProgress`` before its zeros."""
        data = _PROGRESS.pack(_PROGRESS_MAGIC, *self)
        return data + _CRC.pack(crc32(data))


def decode_progress(data: bytes | memoryview) -> TimerProgress:
    """Return the content of ``timerProgress``; zeros if it is damaged. Never raises."""
    layout = _PROGRESSES.get(bytes(data[:8]))
    if layout is None or len(data) < layout.size + _CRC.size:
        return TimerProgress()
    _, *numbers = layout.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, layout.size)
    if min(numbers) < 0 or crc != crc32(bytes(data[: layout.size])):
        return TimerProgress()
    return TimerProgress(*numbers)


def difference(
    rows: Iterable[tuple[int, tuple[int, ...]]],
    log: Iterable[tuple[int, memoryview]],
    read_ms: int,
) -> str | None:
    """Compare what waits in the wheel and in the timer log.

    Args:
        rows: number and content of the slots of the wheel.
        log: start and used part of each file of the log.
        read_ms: the time of the slot that is being delivered; earlier slots don't matter.

    Returns:
        The first difference as a sentence; None if there is none.
    """
    read = read_ms // PRECISION_MS
    try:
        begin, chains, unread = _waiting(log, read)
    except ValueError as error:
        return str(error)
    for number, (second, first, end, *_) in rows:
        if second < read or second % WHEEL_SLOTS != number:
            continue
        chain, last = chains.pop(second, None), end
        if second == read:
            # A stop takes the delivered units out of this chain.
            while last in unread:
                last = unread.pop(last)
            unread.clear()
        if (
            last >= max(begin, 0)
            if chain is None
            else last != chain[1] or begin <= first != chain[0]
        ):
            return f"slot {second} of the wheel has other units than the timer log"
    if chains or unread:
        return (
            f"the wheel lacks slot {min(chains, default=read)}, for which the timer log has units"
        )
    return None


def _waiting(
    log: Iterable[tuple[int, memoryview]], read: int
) -> tuple[int, dict[int, tuple[int, int]], dict[int, int]]:
    """Return what a scan of the log finds.

    That is the log's begin, the positions of the first and last unit of later seconds, and for each
    unit of the second ``read`` its position and that of the one before.

    Raises:
        ValueError: the log is damaged.
    """
    begin = -1
    chains: dict[int, tuple[int, int]] = {}
    unread: dict[int, int] = {}
    for start, view in log:
        begin = start if begin < 0 else begin
        units = UNIT.iter_unpack(view[: len(view) // UNIT.size * UNIT.size])
        for number, (size, previous, _, written_ms, wait_ms, *_) in enumerate(units):
            if size != UNIT.size:
                if is_blank(view, number * UNIT.size):
                    break
                raise ValueError(f"the timer log has no unit at {start + number * UNIT.size}")
            second = (written_ms + wait_ms) // PRECISION_MS
            if second < read:
                continue
            at = start + number * UNIT.size
            if second == read:
                unread[at] = previous
                continue
            first, last = chains.get(second, (at, -1))
            if previous != last and not (last < 0 and previous < begin):
                raise ValueError(f"the timer log's unit at {at} has a wrong unit before it")
            chains[second] = first, at
    return begin, chains, unread
