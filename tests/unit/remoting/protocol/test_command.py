"""Commands: requests, replies, and reading typed headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.codes import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    VERSION,
    Language,
    RequestCode,
    ResponseCode,
    SerializeType,
)
from remoting.protocol.command import Command, free_opaque, natural
from remoting.protocol.errors import HeaderError
from remoting.protocol.headers.pull import (
    GetMaxOffsetRequestHeader,
    OffsetResponseHeader,
    SearchOffsetRequestHeader,
)

HEADER = GetMaxOffsetRequestHeader(topic="t", queue_id=1)


def test_a_request_is_ours() -> None:
    request = Command.request(RequestCode.GET_MAX_OFFSET, HEADER, body=b"x", extra={"a": "b"})
    assert (request.code, request.flag, request.body) == (30, 0, b"x")
    assert (request.language, request.version) == (Language.PYTHON, VERSION)
    assert request.fields == {"topic": "t", "queueId": "1", "a": "b"}
    assert not request.is_response
    assert not request.is_oneway


def test_a_oneway_request_says_so() -> None:
    request = Command.request(40, oneway=True)
    assert request.flag == FLAG_ONEWAY
    assert request.is_oneway
    assert request.pairs is None
    assert request.fields == {}
    assert request.all_pairs() is None


def test_a_reply_has_the_requests_opaque_and_codec() -> None:
    request = Command(30, 77, FLAG_ONEWAY, Language.GO, 399, serialize=SerializeType.MSGPACK)
    reply = request.reply(header=OffsetResponseHeader(offset=5), extra=[("a", "b")])
    assert (reply.code, reply.opaque, reply.flag) == (ResponseCode.SUCCESS, 77, FLAG_RESPONSE)
    assert (reply.language, reply.version) == (Language.JAVA, VERSION)
    assert reply.serialize is SerializeType.MSGPACK
    assert reply.is_response
    assert list(reply.all_pairs() or ()) == [("offset", "5"), ("a", "b")]
    assert request.reply(ResponseCode.SYSTEM_BUSY, "later").remark == "later"


def test_a_decoded_command_is_read_typed_and_the_last_repeat_wins() -> None:
    command = Command(30, pairs=(("queueId", "1"), ("topic", "t"), ("queueId", "2")))
    assert command.read(GetMaxOffsetRequestHeader) == GetMaxOffsetRequestHeader(
        topic="t", queue_id=2
    )
    with pytest.raises(HeaderError, match="SearchOffsetRequestHeader: the field timestamp is"):
        command.read(SearchOffsetRequestHeader)


def test_a_command_of_ours_is_read_without_coding() -> None:
    request = Command.request(30, HEADER)
    assert request.read(GetMaxOffsetRequestHeader) is HEADER
    with pytest.raises(HeaderError):
        request.read(SearchOffsetRequestHeader)


def test_a_command_without_fields_lacks_all_of_them() -> None:
    with pytest.raises(HeaderError, match="topic is missing"):
        Command(30).read(GetMaxOffsetRequestHeader)


@given(st.integers(0, 2**63 - 1), st.sampled_from(["{}", "+{}", "000{}"]))
def test_a_number_from_a_peer_is_read_as_java_reads_it(number: int, form: str) -> None:
    assert natural(form.format(number), 7) == number


@pytest.mark.parametrize("text", ["", "-1", "1.5", " 1", "1_0", "x", "²", str(2**63), "9" * 5000])
def test_what_is_no_such_number_is_replaced(text: str) -> None:
    assert natural(text, 7) == 7


def test_opaques_wrap_within_int32_and_avoid_those_in_use() -> None:
    assert free_opaque(0, {}) == 0
    assert free_opaque(0x7FFF_FFFF, {}) == 0x7FFF_FFFF
    assert free_opaque(0x7FFF_FFFF + 1, {}) == 0
    assert free_opaque(0x7FFF_FFFF, {0x7FFF_FFFF: 1, 0: 1}) == 1
