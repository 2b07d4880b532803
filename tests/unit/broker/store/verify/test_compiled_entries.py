"""The compiled checks of index entries trust nothing and change no invalid entry."""

from __future__ import annotations

from array import array

import pytest

from remoting.protocol.disk.index_file import ENTRY, IndexTable, file_bytes
from tests.support.core import LACKING

if LACKING:
    pytest.skip(LACKING, allow_module_level=True)

from remoting.protocol.core import index_entries

SLOTS = 5


def packed(count: int) -> bytearray:
    """Return entries chained as by a writer."""
    table = IndexTable(bytearray(file_bytes(SLOTS, 100)), slots=SLOTS, entries=100)
    return bytearray(table.link(list(range(count)), [7] * count, [1000] * count).entries)


def test_intact_chains_advance_the_slots() -> None:
    newest = array("i", bytes(4 * SLOTS))
    assert index_entries.chain(packed(12), 1, newest)
    assert newest.tolist() == [11, 12, 8, 9, 10]


@pytest.mark.parametrize("wrong", [0, 5, 11])
def test_a_broken_chain_leaves_the_slots_as_they_were(wrong: int) -> None:
    data = packed(12)
    hashed, offset, seconds, _ = ENTRY.unpack_from(data, wrong * ENTRY.size)
    ENTRY.pack_into(data, wrong * ENTRY.size, hashed, offset, seconds, 99)
    newest = array("i", bytes(4 * SLOTS))
    assert not index_entries.chain(data, 1, newest)
    assert not any(newest)


def test_hashes_below_zero_have_a_slot_too() -> None:
    newest = array("i", bytes(4 * SLOTS))
    assert index_entries.chain(bytearray(ENTRY.pack(-1, 0, 0, 0)), 1, newest)
    assert newest.tolist() == [0, 0, 0, 0, 1]


def test_slots_beyond_the_buffer_are_refused() -> None:
    column = array("q", [1])
    with pytest.raises(ValueError, match="not in the buffer"):
        index_entries.link(column, column, column, bytearray(40), SLOTS, 100, 1, 0)
    with pytest.raises(ValueError, match="not in the buffer"):
        index_entries.set_slots(bytearray(44), column, column)
    with pytest.raises(ValueError, match="equally long"):
        index_entries.link(column, column[:0], column, bytearray(60), SLOTS, 100, 1, 0)
