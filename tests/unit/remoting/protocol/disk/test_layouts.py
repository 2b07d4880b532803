"""Consume-queue entries, checkpoint and file names have the documented bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.disk import files as consume_queue_entry
from remoting.protocol.disk.files import Checkpoint, name_of, offset_of
from remoting.protocol.errors import RecordError
from remoting.protocol.message.tags import tags_code

LONG = st.integers(0, 2**63 - 1)


def test_a_consume_queue_entry_has_20_bytes() -> None:
    entry = consume_queue_entry.ENTRY.pack(0, 138, tags_code("TagA"))
    assert entry.hex() == "00000000000000000000008a000000000027a807"
    assert len(entry) == consume_queue_entry.ENTRY_BYTES
    schedule = consume_queue_entry.ENTRY.pack(138, 156, 0x1A1FAFDFE22)
    assert schedule.hex() == "000000000000008a0000009c000001a1fafdfe22"


def test_a_filler_stands_for_entries_that_were_removed() -> None:
    assert consume_queue_entry.ENTRY.unpack(consume_queue_entry.FILLER) == (0, 0x7FFFFFFF, 0)


def test_the_documented_checkpoint() -> None:
    data = Checkpoint(physic_ms=0x1A1FAFDD75B, logics_ms=0x1A1FAFDD786).encode()
    assert len(data) == 4096
    assert data[:32].hex() == "000001a1fafdd75b000001a1fafdd786" + "0" * 32
    assert not any(data[32:])


@given(LONG, LONG, LONG)
def test_a_checkpoint_round_trips(physic_ms: int, logics_ms: int, index_ms: int) -> None:
    checkpoint = Checkpoint(physic_ms, logics_ms, index_ms)
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint


def test_recovery_begins_three_seconds_before_the_older_time() -> None:
    assert Checkpoint(10_000, 8_000, 1).recover_from_ms == 5_000
    assert Checkpoint(10_000, 2_000, 1).recover_from_ms == 0


def test_a_checkpoint_cut_off_is_refused() -> None:
    assert Checkpoint.decode(bytes(24)) == Checkpoint()
    with pytest.raises(RecordError, match="23 bytes"):
        Checkpoint.decode(bytes(23))


def test_a_file_is_named_by_its_first_offset() -> None:
    assert [name_of(offset) for offset in (0, 1073741824, 6000000)] == [
        "00000000000000000000",
        "00000000001073741824",
        "00000000000006000000",
    ]
    with pytest.raises(ValueError, match="negative offset -1"):
        name_of(-1)


@given(LONG)
def test_a_file_name_says_its_offset(offset: int) -> None:
    assert offset_of(name_of(offset)) == offset


@pytest.mark.parametrize("name", ["", "0", "0" * 19 + "x", "0" * 21, "٣" * 20, "-" + "0" * 19])
def test_other_names_are_no_log_files(name: str) -> None:
    assert offset_of(name) is None
