"""Choosing records by their properties, where they lie: compiled and plain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.filters import sql
from broker.filters.sql import SqlFilter
from remoting.protocol.core import record as record_core
from remoting.protocol.message import properties
from remoting.protocol.message.record import MAGIC_V1, MAGIC_V2, encode_record

V4, V6 = b"\x7f\0\0\1\0\0\0\1", b"\0" * 20


def record(text: bytes, body: bytes = b"body", host: bytes = V4, magic: int = MAGIC_V1) -> bytes:
    return encode_record(
        topic="T", body=body, properties=text, born_host=host, store_host=host, magic=magic
    )


def of(**entries: str) -> bytes:
    return record(properties.encode(entries))


def select(expression: str, *records: bytes, most: int = 100) -> tuple[list[bytes], int, int]:
    kept, count, looked = SqlFilter(expression).select([memoryview(b"".join(records))], most)
    return [bytes(piece) for piece in kept], count, looked


def test_adjacent_matches_come_as_one():
    one, two, three, four = (of(a=str(number)) for number in (1, 2, 3, 4))
    assert select("a <> 3", one, two, three, four) == ([one + two, four], 3, 4)
    assert select("a = 1", one, two) == ([one], 1, 2)
    assert select("a = 9", one, two) == ([], 0, 2)


def test_no_more_are_looked_at_than_it_takes_to_find_so_many():
    records = [of(a=str(number)) for number in range(10)]
    assert select("a >= 2", *records, most=3) == ([b"".join(records[2:5])], 3, 5)


def test_slices_of_records_are_looked_at_one_after_the_other():
    one, two, three = (of(a=str(number)) for number in (1, 2, 3))
    views = [memoryview(one + two), memoryview(three)]
    kept, count, looked = SqlFilter("a >= 2").select(views, 100)
    assert ([bytes(piece) for piece in kept], count, looked) == ([two, three], 2, 3)
    kept, count, looked = SqlFilter("a >= 2").select(views, 1)
    assert ([bytes(piece) for piece in kept], count, looked) == ([two], 1, 2)


def test_what_can_not_be_evaluated_does_not_match():
    assert select("a <> 1", of(a="x"), of(), of(a="2")) == ([of(a="2")], 1, 3)


def test_the_last_value_of_a_name_counts_and_an_empty_one_is_none():
    twice, empty = record(b"a\x011\x02a\x012"), record(b"a\x01\x02b\x011")
    assert select("a = 2", twice) == ([twice], 1, 1)
    assert select("a IS NULL", empty) == ([empty], 1, 1)
    assert select("b = 1", empty) == ([empty], 1, 1)


def test_names_are_compared_whole_and_values_may_hold_anything():
    odd = record("aa\x011\x02ba\x011\x02a\x01x\x01\u6807".encode())
    assert select("a = 'x\x01\u6807'", odd) == ([odd], 1, 1)


def test_records_of_ipv6_hosts_and_of_long_topics_are_read_too():
    for one in (record(b"a\x011", host=V6), record(b"a\x011", magic=MAGIC_V2)):
        assert select("a = 1", one) == ([one], 1, 1)


def test_what_is_no_record_ends_the_search():
    good = of(a="1")
    for junk in (b"\0" * 200, good[:50], b"\xff" * 200):
        assert select("a = 1", good, junk) == ([good], 1, 1)


@given(
    st.lists(st.binary(max_size=60) | st.text("ab\x01\x02 ", max_size=30).map(str.encode)),
    st.binary(max_size=120),
)
def test_the_compiled_core_finds_the_same(texts, junk):
    data = memoryview(b"".join(record(text) for text in texts) + junk)
    names = (b"a", b"ab", b"b", b"TAGS")
    assert record_core.property_rows(data, names) == sql.plain_property_rows(data, names)
