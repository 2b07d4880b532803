"""The index file has RocketMQ's bytes and finds what RocketMQ finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.disk.index_file import (
    DEFAULT_ENTRIES,
    DEFAULT_SLOTS,
    ENTRY,
    HEADER,
    SLOT,
    IndexTable,
    file_bytes,
    index_key,
    key_hash,
)

GOLDEN = json.loads((Path(__file__).parents[4] / "golden/hashes.json").read_text("utf-8"))
FILE = GOLDEN["index_file"]
FOREVER = 2**63 - 1


def empty(slots: int, entries: int) -> tuple[bytearray, IndexTable]:
    buffer = bytearray(file_bytes(slots, entries))
    return buffer, IndexTable(buffer, slots=slots, entries=entries)


@pytest.fixture
def filled() -> tuple[bytearray, IndexTable]:
    buffer, table = empty(FILE["hashSlotNum"], FILE["indexNum"])
    for put in FILE["puts"]:
        assert table.put(put["key"], put["phyOffset"], put["storeTimestamp"]) == put["ok"]
    return buffer, table


@pytest.mark.parametrize("case", GOLDEN["index_key_hash"], ids=lambda c: ascii(c["key"])[:20])
def test_a_key_hashes_to_the_slot_that_java_takes(case: dict[str, Any]) -> None:
    assert key_hash(case["key"]) == case["keyHash"]
    assert key_hash(case["key"]) % DEFAULT_SLOTS == case["slot_of_5000000"]
    assert key_hash(case["key"]) % 500 == case["slot_of_500"]


@pytest.mark.parametrize(
    ("topic", "key", "expected"),
    [
        ("TopicTest", "KEY1", 1656969516),
        ("TopicTest", "7F000001000A18B4AAC2000000000000", 617494069),
        ("TopicTest", "UK1", 85106457),
        ("TopicTest", "k1", 2746024),
    ],
)
def test_the_documented_hashes(topic: str, key: str, expected: int) -> None:
    assert key_hash(index_key(topic, key)) == expected


def test_the_default_file_has_the_documented_size() -> None:
    assert file_bytes() == 420000040
    assert (DEFAULT_SLOTS, DEFAULT_ENTRIES) == (5_000_000, 20_000_000)
    assert file_bytes(100, 400) == 8440


def test_puts_leave_the_bytes_that_java_leaves(filled: tuple[bytearray, IndexTable]) -> None:
    buffer, _ = filled
    slots = FILE["hashSlotNum"]
    assert len(buffer) == FILE["file_length"]
    assert buffer[: HEADER.size].hex() == FILE["header_hex"]
    entries_at = HEADER.size + slots * SLOT.size
    entries = bytes.fromhex(FILE["entries_hex"])
    assert buffer[entries_at : entries_at + len(entries)] == entries
    assert not any(buffer[entries_at + len(entries) :])
    values = [value for (value,) in SLOT.iter_unpack(buffer[HEADER.size : entries_at])]
    assert [[slot, value] for slot, value in enumerate(values) if value] == FILE["nonzero_slots"]


@pytest.mark.parametrize("select", FILE["selects"], ids=json.dumps)
def test_selects_find_what_java_finds(
    filled: tuple[bytearray, IndexTable], select: dict[str, Any]
) -> None:
    _, table = filled
    found = table.select(select["key"], select["maxNum"], select["begin"], select["end"])
    assert found == select["phyOffsets"]


def test_a_full_file_refuses_the_next_key() -> None:
    _, table = empty(10, 4)
    assert [table.put(f"k{n}", n, 1000) for n in range(4)] == [True, True, True, False]
    assert table.is_full
    assert table.header.next_entry == 4
    assert table.select("k2", 10, 0, FOREVER) == [2]


def test_times_before_the_first_and_far_after_it_are_clamped() -> None:
    _, table = empty(10, 10)
    for offset, stored_ms in enumerate([50_000, 49_000, 2**62]):
        table.put("k", offset, stored_ms)
    assert table.select("k", 10, 50_000, 50_000) == [1, 0]
    assert table.select("k", 10, 0, FOREVER) == [2, 1, 0]


def test_a_file_without_begin_time_counts_no_seconds() -> None:
    buffer, table = empty(10, 10)
    table.put("k", 1, 0)
    table.put("k", 2, 9_000)
    assert ENTRY.unpack_from(buffer, HEADER.size + 10 * SLOT.size + 2 * ENTRY.size)[2] == 0


def test_a_buffer_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="takes 280 bytes, not 279"):
        IndexTable(bytearray(279), slots=10, entries=10)


def test_a_negative_time_ends_the_chain() -> None:
    buffer, table = empty(1, 10)
    table.put("k", 1, 1000)
    table.put("k", 2, 1000)
    at = HEADER.size + SLOT.size + 2 * ENTRY.size
    ENTRY.pack_into(buffer, at, key_hash("k"), 2, -1, 1)
    assert table.select("k", 10, 0, FOREVER) == []


def test_a_chain_that_leads_in_circles_ends() -> None:
    buffer, table = empty(1, 10)
    for offset in (1, 2, 3):
        table.put("k", offset, 1000)
    at = HEADER.size + SLOT.size + ENTRY.size
    ENTRY.pack_into(buffer, at, key_hash("k"), 1, 0, 3)
    assert table.select("k", 10, 0, FOREVER) == [3, 2, 1]


@given(st.binary(min_size=file_bytes(4, 6), max_size=file_bytes(4, 6)))
def test_damaged_files_are_read_without_harm(data: bytes) -> None:
    table = IndexTable(bytearray(data), slots=4, entries=6)
    assert len(table.select("k", 32, 0, FOREVER)) < 6
    table.put("k", 1, 1000)
    assert len(table.select("k", 32, 0, FOREVER)) < 6


@given(st.lists(st.tuples(st.sampled_from("abcAaBB"), st.integers(0, 10**6)), max_size=19))
def test_every_key_that_was_put_is_found_newest_first(puts: list[tuple[str, int]]) -> None:
    _, table = empty(3, 20)
    for key, offset in puts:
        assert table.put(key, offset, 1000)
    for key in "abcAB":
        hits = [o for k, o in reversed(puts) if key_hash(k) == key_hash(key)]
        assert table.select(key, 64, 0, FOREVER) == hits
