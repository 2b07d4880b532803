"""Keys read from many records at once equal those read one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store import index_keys as batch
from remoting.protocol.disk.index_file import IndexTable, file_bytes
from remoting.protocol.message.record import (
    BORN_HOST_V6,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    TRANSACTION_ROLLBACK,
    encode_record,
    host_bytes,
)
from tests.support.core import LACKING

if LACKING:
    pytest.skip(LACKING, allow_module_level=True)

from broker.store.index_keys import compiled_walk

HOST = host_bytes("10.9.8.7", 10911)
HOST_V6 = host_bytes("fe80::1", 10911)
BASE = 4096


def log_of(records: Sequence[dict]) -> bytes:
    """Return consecutive records, as stored at ``BASE`` of a log."""
    data = b""
    for number, fields in enumerate(records):
        values = {
            "topic": "TopicTest",
            "body": b"hello",
            "born_host": HOST,
            "store_host": HOST,
            "queue_offset": number,
            "physical_offset": BASE + len(data),
            "store_timestamp_ms": 1_700_000_000_000 + 777 * number,
        }
        data += encode_record(**(values | fields))
    return data


def unique(number: int) -> bytes:
    return b"UNIQ_KEY\x01%032X\x02CLUSTER\x01DefaultCluster" % number


def check_alike(data: bytes) -> batch.Walked:
    plain = batch.walk(data, BASE)
    fast = compiled_walk(memoryview(data), BASE)
    assert fast.used == plain.used
    assert fast.batch.hashes.tolist() == plain.batch.hashes
    assert fast.batch.offsets.tolist() == plain.batch.offsets
    assert fast.batch.times_ms.tolist() == plain.batch.times_ms
    return plain


SERIES = {
    "ids": [{"properties": unique(n)} for n in range(100)],
    "bodies of all sizes": [{"properties": unique(n), "body": b"x" * (n % 23)} for n in range(100)],
    "keys": [
        {"properties": b"KEYS\x01order-%d user-%d\x02TAGS\x01t%d\x02%s" % (n, n * 7, n, unique(n))}
        for n in range(200)
    ],
    "topics": [{"properties": unique(n), "topic": f"topic{n % 5}"} for n in range(100)],
    "spaces elsewhere": [
        {"properties": b"KEYS\x01%s" % (b"ab cd" if n % 3 else b"a bcd")} for n in range(50)
    ],
    "another name of the same length": [
        {"properties": b"%s\x01abc" % (b"KEYS" if n % 2 else b"KEYX")} for n in range(50)
    ],
    "a separator in a value": [
        {
            "properties": b"price\x01%s\x02KEYS\x01k%02d"
            % (b"12345678" if n % 7 else b"1\x02KEYS\x011", n)
        }
        for n in range(50)
    ],
    "a name twice": [
        {"properties": b"UNIQ_KEY\x01first%d\x02UNIQ_KEY\x01last-%d" % (n % 10, n % 10)}
        for n in range(50)
    ],
    "empty values": [{"properties": b"KEYS\x01\x02UNIQ_KEY\x01"} for n in range(20)],
    "not ASCII": [
        {"properties": f"KEYS\x01{'schlüssel' if n % 4 else 'schlussel!'}".encode()}
        for n in range(50)
    ],
    "topics not ASCII": [{"topic": "größe", "properties": unique(n)} for n in range(20)],
    "IPv6": [
        {"properties": unique(n), ("store_host" if n % 3 else "born_host"): HOST_V6}
        for n in range(50)
    ],
    "of 5.x": [
        {"properties": unique(n)} | ({"magic": MAGIC_V2} if n % 2 else {}) for n in range(50)
    ],
    "rolled back": [
        {"properties": unique(n), "sys_flag": TRANSACTION_ROLLBACK if n % 2 else 0}
        for n in range(50)
    ],
    "long keys": [{"properties": b"KEYS\x01" + b"k" * 2000 + b"%d" % (n % 10)} for n in range(20)],
    "nothing": [{} for n in range(50)],
}


@pytest.mark.parametrize("records", SERIES.values(), ids=SERIES.keys())
def test_every_kind_of_series_gives_the_keys_of_its_records(records: list[dict]) -> None:
    data = log_of(records)
    assert check_alike(data).used == len(data)


texts = st.lists(
    st.tuples(
        st.sampled_from([b"KEYS", b"UNIQ_KEY", b"TAGS", b"KEY", b""]),
        st.sampled_from(
            [
                b"a",
                b"b",
                b"a b",
                b" a",
                b"ab",
                b"",
                b"\x01",
                "ü".encode(),
                b"\x7f",
                b"\xff",
                "\U0001f600".encode(),
            ]
        ),
    ),
    max_size=4,
).map(lambda entries: b"\x02".join(name + b"\x01" + value for name, value in entries))


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "properties": texts,
                "body": st.sampled_from([b"", b"x", b"\xda\xa3\x20\xa7"]),
                "topic": st.sampled_from(["T", "U", "TT", b"\xe9", "ü", "\U0001f600"]),
                "born_host": st.sampled_from([HOST, HOST_V6]),
                "magic": st.sampled_from([MAGIC_V1, MAGIC_V2]),
                "sys_flag": st.sampled_from([0, 4, 8, 12]),
            },
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 12),
)
def test_whatever_records_there_are_both_ways_agree(records: list[dict], times: int) -> None:
    check_alike(log_of(records * times))


@given(st.data())
def test_whatever_is_damaged_or_cut_off_both_ways_stop_at_the_same_place(
    data: st.DataObject,
) -> None:
    log = bytearray(log_of(SERIES["ids"][:20]))
    for _ in range(data.draw(st.integers(0, 3))):
        log[data.draw(st.integers(0, len(log) - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(log[: data.draw(st.integers(0, len(log)))])
    plain = batch.walk(cut, BASE)
    fast = compiled_walk(memoryview(cut), BASE)
    assert fast.used == plain.used
    assert fast.batch.hashes.tolist() == plain.batch.hashes
    assert fast.batch.offsets.tolist() == plain.batch.offsets
    assert fast.batch.times_ms.tolist() == plain.batch.times_ms


@pytest.mark.parametrize("slots", [7, 100_003])
def test_links_of_both_ways_leave_the_same_file(slots: int) -> None:
    records = [*SERIES["keys"], *SERIES["a name twice"], *SERIES["ids"]]
    data = log_of(records)
    tables = [
        IndexTable(bytearray(file_bytes(slots, 2000)), slots=slots, entries=2000) for _ in range(2)
    ]
    for table, walk in zip(tables, (batch.walk, compiled_walk), strict=True):
        for _ in range(2):
            keys = walk(memoryview(data), BASE).batch
            for start in range(0, len(keys), 300):
                table.store(keys.link(table, start, min(start + 300, len(keys))))
    plain, fast = tables
    assert fast.header == plain.header
    assert fast.buffer == plain.buffer


def test_flags_with_a_flipped_bit_are_not_taken_for_a_rolled_back_message() -> None:
    log = bytearray(log_of(SERIES["ids"][:2]))
    second = int.from_bytes(log[:4], "big")
    log[second + PHYSICAL_OFFSET_AT + 8 + 3] ^= TRANSACTION_ROLLBACK | BORN_HOST_V6
    assert batch.walk(bytes(log), BASE).used == second
    assert compiled_walk(memoryview(bytes(log)), BASE).used == second
