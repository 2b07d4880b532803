"""The file with the delivery progress."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.disk.delays import FILE_BYTES, decode, encode

OFFSETS = st.dictionaries(st.integers(1, 64), st.integers(0, 2**62), max_size=64)
END = st.integers(0, 2**62)


@given(OFFSETS, END)
def test_saved_progress_is_read_again(offsets: dict[int, int], end: int) -> None:
    note = encode(offsets, end)
    assert decode(note.ljust(FILE_BYTES, b"\xee"), end) == offsets
    assert decode(note, end + 1) == offsets


@given(OFFSETS, END)
def test_a_note_of_a_longer_log_is_ignored(offsets: dict[int, int], end: int) -> None:
    assert decode(encode(offsets, end + 1), end) == {}


@given(OFFSETS, END, st.data())
def test_a_damaged_note_is_ignored(offsets: dict[int, int], end: int, data) -> None:
    note = bytearray(encode(offsets, end))
    note[data.draw(st.integers(0, len(note) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert decode(bytes(note), 2**63 - 1) == {}


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    assert isinstance(decode(data, 2**62), dict)


def test_a_note_fits_its_file_however_many_levels_there_are() -> None:
    offsets = {level: level for level in range(1, 1000)}
    note = encode(offsets, 5)
    assert len(note) <= FILE_BYTES
    assert decode(note, 5).items() <= offsets.items()
