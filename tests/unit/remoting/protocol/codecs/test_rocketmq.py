"""The binary header: repeated fields, truncated codes, empty texts, damage."""

from __future__ import annotations

import struct

import pytest

from remoting.protocol.codecs.rocketmq import decode_header, encode_header
from remoting.protocol.codes import FLAG_RESPONSE, Language, RequestCode, SerializeType
from remoting.protocol.command import Command, Header, header
from remoting.protocol.errors import FrameError, HeaderError
from remoting.protocol.frame import encode
from remoting.protocol.limits import MAX_EXT_FIELDS


@header
class Example(Header):
    """Fields of each kind, some of them optional."""

    topic: str
    remark: str | None = None
    order: bool = False


def head(
    code: int = 10, flag: int = 0, language: int = 0, remark: int = 0, ext: int | None = None
) -> bytes:
    start = struct.pack(">hBhiii", code, language, 399, 1, flag, remark)
    return start if ext is None else start + struct.pack(">i", ext)


def entry(key: bytes, value: bytes) -> bytes:
    return struct.pack(">h", len(key)) + key + struct.pack(">i", len(value)) + value


def with_entries(*entries: bytes) -> bytes:
    return head(ext=sum(map(len, entries))) + b"".join(entries)


def test_a_pop_request_is_the_captured_one() -> None:
    command = Command(
        RequestCode.POP_MESSAGE,
        1,
        language=Language.JAVA,
        version=0,
        serialize=SerializeType.ROCKETMQ,
    )
    assert encode(command).hex() == "00000019010000150d7200000000000001000000000000000000000000"


@pytest.mark.parametrize(
    ("cut_code", "code"),
    [*zip(range(3442, 3449), range(200050, 200057), strict=True), (3543, 200151), (3449, 3449)],
)
def test_pop_requests_are_known_again_by_their_cut_code(cut_code: int, code: int) -> None:
    assert decode_header(head(cut_code, ext=0)).code == code
    assert decode_header(head(cut_code, FLAG_RESPONSE, ext=0)).code == cut_code


def test_codes_are_signed() -> None:
    assert decode_header(head(-1000, FLAG_RESPONSE, ext=0)).code == -1000
    assert decode_header(encode_header(Command(-1006, flag=FLAG_RESPONSE))).code == -1006


def test_repeats_and_order_are_kept_and_the_last_one_wins() -> None:
    command = decode_header(with_entries(entry(b"b", b"1"), entry(b"a", b"2"), entry(b"b", b"3")))
    assert command.pairs == (("b", "1"), ("a", "2"), ("b", "3"))
    assert command.fields == {"b": "3", "a": "2"}


def test_an_empty_remark_and_no_ext_fields_are_none() -> None:
    command = decode_header(head(ext=0))
    assert command.remark is None
    assert command.pairs is None


def test_an_empty_text_is_no_value_for_an_optional_field() -> None:
    entries = (entry(b"topic", b""), entry(b"remark", b""), entry(b"order", b""))
    command = decode_header(with_entries(*entries))
    assert command.read(Example) == Example(topic="", remark=None, order=False)
    assert encode_header(command) == with_entries(*entries)


def test_an_empty_key_is_kept() -> None:
    data = with_entries(entry(b"", b"x"))
    assert encode_header(decode_header(data)) == data


def test_an_unknown_language_is_none_and_written_as_other() -> None:
    command = decode_header(head(language=77, ext=0))
    assert command.language is None
    assert encode_header(command) == head(language=Language.OTHER, ext=0)


def test_bytes_after_the_ext_fields_are_ignored_as_java_does() -> None:
    assert decode_header(with_entries(entry(b"a", b"b")) + b"rest").fields == {"a": "b"}


def test_a_missing_field_is_a_header_error() -> None:
    with pytest.raises(HeaderError, match="Example: the field topic is missing"):
        decode_header(head(ext=0)).read(Example)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        head(),
        head(remark=-1, ext=0),
        head(remark=0x7FFFFFFF, ext=0),
        head(remark=4, ext=0),
        head(remark=1) + b"\xff" + struct.pack(">i", 0),
        head(ext=-1),
        head(ext=1),
        head(ext=5) + b"\x00" * 5,
        head(ext=6) + struct.pack(">hi", -1, 0),
        head(ext=6) + struct.pack(">hi", 1, 0),
        head(ext=6) + struct.pack(">hi", 0, -1),
        head(ext=6) + struct.pack(">hi", 0, 1),
        head(ext=6) + struct.pack(">hi", 0, 0x7FFFFFFF),
        with_entries(entry(b"a", b"b"), b"\x00"),
        with_entries(entry(b"\xff", b"b")),
        with_entries(entry(b"a", b"\xc3")),
    ],
)
def test_damage_is_a_frame_error(data: bytes) -> None:
    with pytest.raises(FrameError):
        decode_header(data)


def test_the_number_of_ext_fields_is_bounded() -> None:
    most = [entry(b"a", b"b")] * MAX_EXT_FIELDS
    assert len(decode_header(with_entries(*most)).pairs or ()) == MAX_EXT_FIELDS
    with pytest.raises(FrameError, match="more than"):
        decode_header(with_entries(*most, entry(b"a", b"b")))


def test_a_key_that_does_not_fit_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="a name of 32768 bytes"):
        encode_header(Command(1, pairs=(("k" * 32768, "v"),)))
