"""Records are encoded byte for byte, and other bytes are never taken for a record."""

from __future__ import annotations

import mmap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.errors import RecordError
from remoting.protocol.message import record
from remoting.protocol.message import record as sys_flag
from remoting.protocol.message.record import (
    Blank,
    End,
    FoundRecord,
    Invalid,
    encode_record,
    examine,
    host_bytes,
)
from remoting.protocol.message.view import RecordView, iter_records

V4 = host_bytes("10.1.2.3", 54321)
V6 = host_bytes("2001:db8::1", 5)
STORE = host_bytes("10.9.8.7", 10911)

INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
HOSTS = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))

records = st.fixed_dictionaries(
    {
        "topic": st.text(st.characters(codec="utf-8"), max_size=31),
        "body": st.binary(max_size=300),
        "properties": st.binary(max_size=300),
        "born_host": HOSTS,
        "store_host": HOSTS,
        "queue_id": INT,
        "flag": INT,
        "queue_offset": LONG,
        "physical_offset": LONG,
        "sys_flag": st.integers(0, 0xFFF).map(lambda bits: bits & ~sys_flag.HOSTS_V6_MASK),
        "born_timestamp_ms": LONG,
        "store_timestamp_ms": LONG,
        "reconsume_times": INT,
        "prepared_transaction_offset": LONG,
        "magic": st.sampled_from([record.MAGIC_V1, record.MAGIC_V2]),
    }
)


def plain(**fields: Any) -> bytes:
    defaults: dict[str, Any] = {
        "topic": "TopicTest",
        "body": b"hello",
        "properties": b"TAGX\x011",
        "born_host": V4,
        "store_host": STORE,
    }
    return encode_record(**(defaults | fields))


def test_the_documented_record_is_written_byte_for_byte() -> None:
    assert (
        plain(
            queue_id=2,
            queue_offset=5,
            physical_offset=1000,
            born_timestamp_ms=1600000000000,
            store_timestamp_ms=1600000000123,
            reconsume_times=1,
        ).hex()
        == "0000006fdaa320a73610a6860000000200000000000000000000000500000000000003e800000000"
        "00000174876e80000a0102030000d43100000174876e807b0a09080700002a9f00000001000000000000"
        "00000000000568656c6c6f09546f706963546573740006544147580131"
    )


STORED = [
    "0000008adaa320a73610a6860000000000000000000000000000000000000000000000000000000000000174876e"
    "80000a0102030000d431000001a1fafdd6e80a09080700002a9f000000000000000000000000000000056865"
    "6c6c6f09546f7069635465737400214b455953016b31206b320254414753015461674102554e49515f4b4559"
    "01554b31",
    "0000009cdaa320a76c814a3700000002000000000000000000000000000000000000008a0000000000000174876e"
    "80000a0102030000d431000001a1fafdd7120a09080700002a9f000000000000000000000000000000076465"
    "6c61796564135343484544554c455f544f5049435f58585858002744454c41590133025245414c5f544f5049"
    "4301546f70696354657374025245414c5f5149440131",
    "00000074daa320a747cc1be00000000000000000000000000000000100000000000001260000000000000174876e"
    "80000a0102030000d431000001a1fafdd72d0a09080700002a9f000000000000000000000000000000026231"
    "09546f70696354657374000e78013102434c5553544552014331",
    "00000071daa320a711b5c3ad00000000000000000000000000000002000000000000019a0000000000000174876e"
    "80000a0102030000d431000001a1fafdd72d0a09080700002a9f000000000000000000000000000000036232"
    "3209546f70696354657374000a434c5553544552014331",
    "00000068daa320a77b5a41210000000000000000000000000000000000000000000005f40000000400000174876e"
    "80000a0102030000d431000001a1fafdd77b0a09080700002a9f000000000000000000000000000000046861"
    "6c6609546f706963546573740000",
    "00000072daa320a77706591600000000000000000000000000000004000000000000065c0000001000000174876e"
    "800020010db800000000000000000000000100000005000001a1fafdd7860a09080700002a9f000000000000"
    "00000000000000000002763609546f706963546573740000",
]


def test_the_documented_commit_log_is_found_record_by_record() -> None:
    log = b"".join(map(bytes.fromhex, STORED))
    views = list(iter_records(log))
    assert [view.size for view in views] == [138, 156, 116, 113, 104, 114]
    assert [view.queue_offset for view in views] == [0, 0, 1, 2, 0, 4]
    assert [bytes(view.stored_body) for view in views[2:]] == [b"b1", b"b22", b"half", b"v6"]
    assert views[0].offset_id == "0A09080700002A9F0000000000000000"
    assert views[2].offset_id == "0A09080700002A9F0000000000000126"
    assert views[4].sys_flag & sys_flag.TRANSACTION_MASK == sys_flag.TRANSACTION_PREPARED
    assert views[5].sys_flag == sys_flag.BORN_HOST_V6
    assert views[5].born_host == ("2001:db8::1", 5)
    assert all(view.check_crc() for view in views)


@given(records)
def test_every_field_round_trips(fields: dict[str, Any]) -> None:
    raw = encode_record(**fields)
    view = RecordView(raw)
    hosts = sys_flag.BORN_HOST_V6 * (len(fields["born_host"]) == 20)
    hosts |= sys_flag.STORE_HOST_V6 * (len(fields["store_host"]) == 20)
    assert view.size == len(raw)
    assert view.topic == fields["topic"]
    assert view.stored_body == fields["body"]
    assert view.properties_text == fields["properties"]
    assert view.born_host_bytes == fields["born_host"]
    assert view.store_host_bytes == fields["store_host"]
    assert view.sys_flag == fields["sys_flag"] | hosts
    plain_fields = set(fields) - {
        "topic",
        "body",
        "properties",
        "born_host",
        "store_host",
        "sys_flag",
    }
    assert {name: getattr(view, name) for name in plain_fields} == {
        name: fields[name] for name in plain_fields
    }
    assert view.check_crc()
    assert examine(raw, 0) == FoundRecord(len(raw))


@given(records, st.data())
def test_the_size_is_known_before_writing(fields: dict[str, Any], data: st.DataObject) -> None:
    raw = encode_record(**fields)
    assert len(raw) == record.record_size(
        len(fields["body"]),
        len(fields["topic"].encode()),
        len(fields["properties"]),
        born_host_length=len(fields["born_host"]),
        store_host_length=len(fields["store_host"]),
        version=1 if fields["magic"] == record.MAGIC_V1 else 2,
    )


@given(records, st.data())
def test_a_record_cut_off_anywhere_is_refused(fields: dict[str, Any], data: st.DataObject) -> None:
    raw = encode_record(**fields)
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    with pytest.raises(RecordError):
        RecordView(cut)
    assert isinstance(examine(cut, 0), End | Invalid)


def read_everything(view: RecordView) -> None:
    for name in dir(type(view)):
        if not name.startswith("__") and name not in {"body", "check_crc", "_body", "_property"}:
            getattr(view, name, None)
    view.check_crc()


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_nothing_but_a_record_error(data: bytes) -> None:
    scan = examine(data, 0)
    assert isinstance(scan, FoundRecord | Blank | End | Invalid)
    try:
        view = RecordView(data)
    except RecordError:
        assert not isinstance(scan, FoundRecord)
    else:
        read_everything(view)


@given(records, st.data())
def test_a_record_with_changed_bytes_is_refused_or_readable(
    fields: dict[str, Any], data: st.DataObject
) -> None:
    raw = bytearray(encode_record(**fields))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    scan = examine(raw, 0)
    assert isinstance(scan, FoundRecord | Blank | End | Invalid)
    try:
        view = RecordView(raw)
    except RecordError:
        assert not isinstance(scan, FoundRecord)
    else:
        assert view.size == len(raw)
        read_everything(view)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"topic": "t" * 128}, "128 bytes, more than 127"),
        ({"topic": "é" * 64}, "128 bytes, more than 127"),
        ({"topic": "t" * 256}, "256 bytes, more than 127"),
        ({"topic": "t" * 32768, "magic": record.MAGIC_V2}, "32768 bytes, more than 32767"),
        ({"topic": "t" * 70000, "magic": record.MAGIC_V2}, "70000 bytes, more than 32767"),
        ({"properties": b"p" * 32768}, "32768 bytes, more than 32767"),
        ({"born_host": b"1234"}, "8 or 20 bytes, not 4"),
        ({"store_host": b""}, "8 or 20 bytes, not 0"),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain(**fields)


def test_the_longest_topics_and_properties_fit() -> None:
    assert RecordView(plain(topic="t" * 127, properties=b"p" * 32767)).topic == "t" * 127
    long = plain(topic=b"t" * 32767, magic=record.MAGIC_V2)
    assert RecordView(long).topic == "t" * 32767


def test_the_bits_of_the_hosts_follow_the_hosts() -> None:
    both = sys_flag.BORN_HOST_V6 | sys_flag.STORE_HOST_V6
    assert RecordView(plain(sys_flag=both)).sys_flag == 0
    assert RecordView(plain(store_host=V6)).sys_flag == sys_flag.STORE_HOST_V6
    assert RecordView(plain(born_host=V6, store_host=V6)).sys_flag == both


def test_a_given_crc_is_not_computed_again() -> None:
    view = RecordView(plain(crc=7))
    assert view.body_crc == 7
    assert not view.check_crc()


def test_the_fixed_fields_can_be_packed_in_one_call() -> None:
    rest = record.tail(b"TopicTest", b"TAGX\x011")
    head = record.HEAD_V4.pack(
        *(record.FIXED_BYTES_V4 + 5 + 9 + 6, record.MAGIC_V1, record.body_crc(b"hello")),
        *(2, 0, 5, 1000, 0, 1600000000000, V4, 1600000000123, STORE, 1, 0, 5),
    )
    assert head + b"hello" + rest == plain(
        queue_id=2,
        queue_offset=5,
        physical_offset=1000,
        born_timestamp_ms=1600000000000,
        store_timestamp_ms=1600000000123,
        reconsume_times=1,
    )
    assert (record.HEAD_BYTES_V4, record.FIXED_BYTES_V4) == (88, 91)


def test_a_blank_record_ends_a_file() -> None:
    raw = plain()
    log = raw + record.blank(501) + bytes(493)
    assert record.blank(501).hex() == "000001f5cbd43194"
    assert examine(log, len(raw)) == Blank(501)
    with pytest.raises(RecordError, match="magic is 0xcbd43194"):
        list(iter_records(log))


def test_a_blank_record_needs_eight_bytes() -> None:
    assert len(record.blank(8)) == 8
    with pytest.raises(ValueError, match="7 remain"):
        record.blank(7)


@pytest.mark.parametrize("size", [0, 7, 9, 0xFFFFFFFF])
def test_a_blank_record_with_a_wrong_size_is_invalid(size: int) -> None:
    raw = size.to_bytes(4, "big") + record.MAGIC_BLANK.to_bytes(4, "big")
    scan = examine(raw, 0)
    assert isinstance(scan, Invalid)
    assert f"has the size {size}" in scan.reason


def test_a_size_of_zero_marks_unwritten_space() -> None:
    assert examine(bytes(100), 0) == End()
    assert examine(bytes(7), 0) == End()
    assert examine(b"", 0) == End()


def test_examine_returns_why_a_record_is_invalid() -> None:
    raw = plain()
    torn = bytearray(raw)
    torn[record.HEAD_BYTES_V4] ^= 1
    scan = examine(torn, 0)
    assert isinstance(scan, Invalid)
    assert "has CRC" in scan.reason
    assert examine(torn, 0, check_crc=False) == FoundRecord(len(raw))
    assert examine(raw, 0, limit=len(raw) - 1) == Invalid(
        "the bytes at 0 are not a whole record: its size is 111, 110 bytes are left"
    )


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, b"\xff\xff\xff\xff", "its size is 4294967295"),
        (0, b"\0\0\0\x70", "properties length 6 does not match its size 112"),
        (4, b"\xda\xa3\x20\xa8", "magic is 0xdaa320a8"),
        (36, b"\0\0\0\x10", "body length is"),
        (84, b"\xff\xff\xff\xff", "body length is 4294967295"),
        (93, b"\x80", "topic length is 128"),
        (93, b"\x7f", "topic length is 127"),
        (103, b"\xff\xff", "properties length 65535"),
        (103, b"\0\0", "properties length 0"),
    ],
)
def test_lengths_that_do_not_agree_are_refused(at: int, value: bytes, reason: str) -> None:
    raw = bytearray(plain() + b"\0")
    raw[at : at + len(value)] = value
    with pytest.raises(RecordError, match=reason):
        RecordView(raw)


def test_a_record_too_short_for_its_ipv6_hosts_is_refused() -> None:
    raw = bytearray(plain(topic="", body=b"", properties=b""))
    raw[36:40] = b"\0\0\0\x30"
    with pytest.raises(RecordError, match="too small for IPv6 hosts"):
        RecordView(raw)


def test_records_are_read_from_any_kind_of_buffer() -> None:
    raw = plain()
    with mmap.mmap(-1, mmap.PAGESIZE) as mapped:
        mapped[10 : 10 + len(raw)] = raw
        assert examine(mapped, 10) == FoundRecord(len(raw))
        view = RecordView(mapped, 10)
        assert (view.topic, view.body, view.born_host) == ("TopicTest", b"hello", V4_HOST)
        del view
    for buffer in (bytearray(raw), memoryview(raw)):
        view = RecordView(buffer)
        assert (view.topic, view.body, view.born_host) == ("TopicTest", b"hello", V4_HOST)
        assert view.tags is None
        assert view.properties == {"TAGX": "1"}


V4_HOST = ("10.1.2.3", 54321)
