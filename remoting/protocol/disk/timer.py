"""The timer files of RocketMQ 5.x: slots of ``timerwheel``, units of ``timerlog``, ``timercheck``.

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
==========  =====================================================================================

RocketMQ writes whole seconds as the time until a unit is due and divides by 1000 where it reads
it. Our units have the ms before the message is due, so that a slot is sorted without its records.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

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
