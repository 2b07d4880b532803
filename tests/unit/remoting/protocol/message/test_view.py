"""A view decodes fields on first use, and caches them."""

from __future__ import annotations

import zlib

import pytest

from remoting.protocol.errors import BodyError, RecordError
from remoting.protocol.limits import MAX_INFLATED_MESSAGE_BYTES
from remoting.protocol.message import properties
from remoting.protocol.message import record as sys_flag
from remoting.protocol.message.record import encode_record, host_bytes
from remoting.protocol.message.view import RecordView, iter_records

HOST = host_bytes("127.0.0.1", 10911)


def view_of(body: bytes = b"", text: bytes = b"", flags: int = 0) -> RecordView:
    return RecordView(
        encode_record(
            topic="T",
            body=body,
            properties=text,
            born_host=HOST,
            store_host=HOST,
            sys_flag=flags,
            queue_id=3,
            queue_offset=7,
            physical_offset=4096,
        )
    )


def test_an_empty_body_is_empty_bytes_and_no_properties_are_an_empty_map() -> None:
    view = view_of()
    assert view.body == b""
    assert view.properties == {}
    assert (view.tags, view.keys, view.unique_id) == (None, [], None)


def test_an_empty_body_under_the_compressed_bit_is_empty() -> None:
    assert view_of(flags=sys_flag.COMPRESSED).body == b""


def test_tag_keys_and_id_are_read_without_the_map() -> None:
    text = properties.encode({"KEYS": "k1  k2 ", "TAGS": "标签", "UNIQ_KEY": "ABC"})
    view = view_of(text=text)
    assert view.tags == "标签"
    assert view.keys == ["k1", "k2"]
    assert view.unique_id == view.message_id == "ABC"
    assert view.offset_id == "7F00000100002A9F0000000000001000"


def test_a_message_without_unique_id_is_known_by_its_offset_id() -> None:
    assert view_of().message_id == view_of().offset_id


def test_the_map_and_the_body_are_decoded_once() -> None:
    packed = zlib.compress(b"x" * 100)
    view = view_of(body=packed, text=b"a\x011", flags=sys_flag.COMPRESSED)
    assert view.body == b"x" * 100
    assert view.body is view.body
    assert view.properties is view.properties


def test_what_is_not_utf_8_is_replaced() -> None:
    view = view_of(text=b"TAGS\x01\xff\x02a\xc3\x01b")
    assert view.tags == "\ufffd"
    assert view.properties == {"TAGS": "\ufffd", "a\ufffd": "b"}


def test_a_body_that_inflates_beyond_the_limit_is_refused() -> None:
    bomb = zlib.compress(bytes(MAX_INFLATED_MESSAGE_BYTES + 1))
    with pytest.raises(BodyError, match="inflates to more than"):
        _ = view_of(body=bomb, flags=sys_flag.COMPRESSED).body


def test_the_raw_record_and_the_name_of_a_view() -> None:
    raw = view_of(b"body").raw
    assert RecordView(raw).raw == raw
    assert "T/3 offset 7" in repr(RecordView(raw))


def test_records_follow_one_another() -> None:
    one, two = view_of(b"one").raw, view_of(b"two").raw
    assert [view.body for view in iter_records(bytes(one) + bytes(two))] == [b"one", b"two"]
    assert list(iter_records(b"")) == []


def test_records_before_the_damage_are_returned() -> None:
    one = bytes(view_of(b"one").raw)
    views = iter_records(one + one[:-1])
    assert next(views).body == b"one"
    with pytest.raises(RecordError, match=f"bytes at {len(one)} "):
        next(views)
