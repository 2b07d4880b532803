"""The layouts of the timer files."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.disk import timer
from remoting.protocol.disk.timer import TimerCheck, Unit

_longs = st.integers(0, 2**62)
_seconds = st.integers(0, 4_000_000_000)

_units = st.builds(
    lambda previous, kind, second, wait_ms, offset, size, code: Unit(
        previous, kind, second * 1000, second * 1000 + wait_ms, offset, size, code
    ),
    st.integers(-1, 2**62),
    st.integers(1, 7),
    _seconds,
    st.integers(0, 2**31 - 1),
    _longs,
    st.integers(1, 2**31 - 1),
    st.integers(-(2**31), 2**31 - 1),
)


@given(_units, st.binary(max_size=60))
def test_a_unit_is_decoded_as_it_was_encoded(unit: Unit, before: bytes) -> None:
    data = before + unit.encode()
    assert timer.decode_unit(data, len(before)) == unit
    assert len(unit.encode()) == 52


@given(st.binary(max_size=120), st.integers(-10, 130))
def test_any_bytes_are_a_valid_unit_or_none(data: bytes, position: int) -> None:
    unit = timer.decode_unit(data, position)
    assert unit is None or (unit.kind in range(1, 8) and unit.size > 0)


def test_a_unit_has_the_fields_of_rocketmq() -> None:
    unit = Unit(104, 1, 1_700_000_000_000, 1_700_000_005_000, 4096, 250, 84)
    assert struct.unpack(">iqiqiqiiq", unit.encode()) == (
        *(52, 104, 1, 1_700_000_000_000, 5000, 4096, 250, 84, 0),
    )


@given(_longs, _longs, _longs)
def test_the_checkpoint_is_decoded_as_it_was_encoded(read: int, end: int, offset: int) -> None:
    check = TimerCheck(read, end, offset)
    data = timer.encode_check(check, 1, 2)
    assert len(data) == 56
    assert timer.decode_check(data.ljust(4096, b"\0")) == check


@given(st.binary(max_size=80))
def test_any_bytes_are_a_checkpoint_without_negative_numbers(data: bytes) -> None:
    assert min(timer.decode_check(data)) >= 0


@given(st.integers(200, 10_000))
def test_a_log_file_ends_with_room_for_its_mark(size: int) -> None:
    end = timer.units_end(size)
    assert end % 52 == 0
    assert 16 <= size - end < 16 + 52
    assert timer.is_blank(bytes(end) + timer.blank(size - end), end)


def test_rocketmqs_log_file_is_full_to_the_last_unit() -> None:
    size = timer.DEFAULT_LOG_FILE_BYTES
    assert (size - timer.units_end(size), size - timer.units_end(size) - 16) == (16, 0)
