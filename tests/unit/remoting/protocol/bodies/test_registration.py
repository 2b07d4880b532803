"""A broker's registration in its three forms."""

from __future__ import annotations

import contextlib
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.protocol.bodies import encode
from remoting.protocol.bodies.registration import (
    RegisterBrokerBody,
    body_crc32,
    body_crc_matches,
    decode_registration,
    encode_compressed,
)
from remoting.protocol.bodies.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.errors import BodyError

INFLATED = bytes.fromhex(
    "000000277b22636f756e746572223a332c2274696d657374616d70223a313630303030303030303030307d"
    "000000010000001a546f706963546573742034203420362053494e474c455f544147000000025b5d"
)
"""What 4.9.8 writes for one topic."""
WRAPPER = TopicConfigSerializeWrapper(
    {"TopicTest": TopicConfig("TopicTest", 4, 4, 6)}, DataVersion(1600000000000, 3)
)


def counted(*texts: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(text)) + text for text in texts)


def compressed(lines: list[bytes], *, count: int | None = None, rest: bytes = b"") -> bytes:
    number = struct.pack(">i", len(lines) if count is None else count)
    parts = counted(b'{"timestamp":1}') + number + counted(*lines, b"[]") + rest
    return zlib.compress(parts)


def test_the_compressed_form_is_that_of_java() -> None:
    body = decode_registration(zlib.compress(INFLATED), compressed=True)
    assert body == RegisterBrokerBody(WRAPPER)
    assert zlib.decompress(encode_compressed(body)) == INFLATED


def test_the_plain_form_is_json() -> None:
    body = RegisterBrokerBody(WRAPPER, ["10.0.0.1:1"])
    assert decode_registration(encode(body)) == body


def test_the_oldest_brokers_send_nothing_but_their_topics() -> None:
    body = decode_registration(encode(WRAPPER), version=36)
    assert body == RegisterBrokerBody(WRAPPER)


def test_attributes_of_5x_are_kept() -> None:
    line = b'T 1 2 6 SINGLE_TAG {"+message.type":"a b"}'
    body = decode_registration(compressed([line]), compressed=True)
    topic = body.topic_config_serialize_wrapper.topic_config_table["T"]
    assert topic.attributes == {"+message.type": "a b"}
    assert line in zlib.decompress(encode_compressed(body))


def test_what_5x_appends_is_ignored() -> None:
    body = decode_registration(compressed([], rest=b"\0\0\0\1more"), compressed=True)
    assert body.topic_config_serialize_wrapper.data_version == DataVersion(1)


def test_filter_servers_are_kept() -> None:
    body = RegisterBrokerBody(WRAPPER, ["a:1", "b:2"])
    assert decode_registration(encode_compressed(body), compressed=True) == body


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"T 1 2 6",
        b"T one 2 6 SINGLE_TAG",
        b"T 4294967296 2 6 SINGLE_TAG",
        b"\xff 1 2 6 SINGLE_TAG",
        b"T 1 2 6 SINGLE_TAG {",
        b"T 1 2 6 SINGLE_TAG []",
        b"T 1 2 6 SINGLE_TAG {a:1} x",
    ],
)
def test_a_wrong_line_is_named(line: bytes) -> None:
    with pytest.raises(BodyError, match=r"^RegisterBrokerBody, compressed: a topic's line"):
        decode_registration(compressed([line]), compressed=True)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "announced"),
        (b"not zlib", "can't be inflated"),
        (zlib.compress(b""), "announced"),
        (zlib.compress(b"\0\0\0\xff{}"), "255 bytes are announced at byte 4 of 6"),
        (zlib.compress(struct.pack(">i", -1)), "-1 bytes are announced"),
        (zlib.compress(INFLATED)[:-20], "announced"),
        (compressed([], count=-1), "announces -1 topics"),
        (compressed([], count=2**31 - 1), "announces 2147483647 topics"),
        (zlib.compress(counted(b"{") + b"\0\0\0\0" + counted(b"[]")), "DataVersion: "),
        (zlib.compress(counted(b"{}") + b"\0\0\0\0" + counted(b"{}")), "Expected `array`"),
    ],
)
def test_a_damaged_stream_is_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(BodyError, match=f"^RegisterBrokerBody, compressed: .*{sentence}"):
        decode_registration(data, compressed=True)


def test_a_decompression_bomb_is_refused_while_it_inflates() -> None:
    with pytest.raises(BodyError, match="inflates to more than 10000 bytes"):
        decode_registration(
            zlib.compress(bytes(10_001)), compressed=True, max_inflated_bytes=10_000
        )
    with pytest.raises(BodyError, match="DataVersion: the body is empty"):
        decode_registration(
            zlib.compress(bytes(10_000)), compressed=True, max_inflated_bytes=10_000
        )


def test_the_checksum_is_that_of_java() -> None:
    assert body_crc32(b"hello") == 907060870
    assert body_crc32(b"Hello RocketMQ") == 1774740973


def test_a_checksum_that_is_absent_or_zero_is_not_checked() -> None:
    assert body_crc_matches(b"hello", None)
    assert body_crc_matches(b"hello", 0)
    assert body_crc_matches(memoryview(b"hello"), 907060870)
    assert not body_crc_matches(b"hellO", 907060870)


@settings(deadline=None)
@given(st.binary(), st.booleans())
def test_arbitrary_bytes_raise_nothing_but_a_body_error(data: bytes, is_stream: bool) -> None:
    with pytest.raises(BodyError):
        decode_registration(zlib.compress(data) if is_stream else data, compressed=True)


@settings(deadline=None)
@given(st.integers(0, len(INFLATED) - 1), st.binary(min_size=1, max_size=4))
def test_damaged_parts_raise_nothing_but_a_body_error(place: int, part: bytes) -> None:
    damaged = INFLATED[:place] + part + INFLATED[place + len(part) :]
    with contextlib.suppress(BodyError):
        encode_compressed(decode_registration(zlib.compress(damaged), compressed=True))
