"""The msgpack header: its exact form, growth by appending, strictness."""

from __future__ import annotations

import contextlib
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.codecs.msgpack import decode_header, encode_header
from remoting.protocol.codes import Language, SerializeType
from remoting.protocol.command import Command, Header, Int, Long, header
from remoting.protocol.errors import FrameError, HeaderError
from remoting.protocol.limits import MAX_EXT_FIELDS


@header
class Old(Header):
    """A header class of an older peer."""

    topic: str
    queue_id: Int
    offset: Long | None = None
    order: bool = False
    note: str | None = None


@header
class New(Header):
    """The same with a field more."""

    topic: str
    queue_id: Int
    offset: Long | None = None
    order: bool = False
    note: str | None = None
    limit: Int | None = None


def packed(*, fields: object = None, extra: object = None, **changes: object) -> bytes:
    parts = {"code": 10, "flag": 0, "opaque": 7, "language": 3, "version": 407, "remark": None}
    return bytes(msgpack.packb([*(parts | changes).values(), fields, extra]))


def read(fields: list[object]) -> Old:
    return decode_header(packed(fields=fields)).read(Old)


def test_the_form_is_an_array_of_eight() -> None:
    command = Command.request(10, Old(topic="t", queue_id=3, order=True), extra={"x": "y"})
    command.opaque = 7
    assert msgpack.unpackb(encode_header(command)) == [
        *(10, 0, 7, 3, 407, None),
        ["t", 3, None, True],
        {"x": "y"},
    ]
    assert msgpack.unpackb(encode_header(Command(34, language=None, remark="r"))) == [
        *(34, 0, 0, None, 407, "r"),
        *(None, None),
    ]


def test_values_and_extra_fields_round_trip() -> None:
    command = decode_header(packed(fields=["t", 3], extra={"x": "y"}, remark="r"))
    assert command == Command(
        10,
        7,
        remark="r",
        language=Language.PYTHON,
        values=("t", 3),
        pairs=(("x", "y"),),
        serialize=SerializeType.MSGPACK,
    )
    assert command.fields == {"x": "y"}
    assert command.read(Old) == Old(topic="t", queue_id=3)
    assert encode_header(command) == packed(fields=["t", 3], extra={"x": "y"}, remark="r")


def test_an_older_and_a_newer_peer_understand_each_other() -> None:
    new = New(topic="t", queue_id=1, offset=2, note="n", limit=5)
    assert decode_header(encode_header(Command(1, header=new))).read(Old) == Old(
        topic="t", queue_id=1, offset=2, note="n"
    )
    old = Old(topic="t", queue_id=1, offset=2, note="n")
    read_as_new = decode_header(encode_header(Command(1, header=old))).read(New)
    assert read_as_new == New(topic="t", queue_id=1, offset=2, note="n", limit=None)


def test_fields_sent_as_text_are_read_as_from_any_codec() -> None:
    command = decode_header(packed(extra={"topic": "t", "queueId": "3"}))
    assert command.read(Old) == Old(topic="t", queue_id=3)


def test_an_unknown_language_is_none() -> None:
    assert decode_header(packed(language=None)).language is None
    assert decode_header(packed(language=99)).language is None


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ([], "topic"),
        ([None, 1], "topic"),
        (["t"], "queueId"),
        (["t", None, 5], "queueId"),
        ([5, 1], "topic"),
        ([True, 1], "topic"),
        (["t", "1"], "queueId"),
        (["t", True], "queueId"),
        (["t", 1.0], "queueId"),
        (["t", 1 << 31], "queueId"),
        (["t", 1, 1 << 63], "offset"),
        (["t", 1, -(1 << 63) + 0.0], "offset"),
        (["t", 1, 2, 1], "order"),
        (["t", 1, 2, "true"], "order"),
    ],
)
def test_a_missing_or_wrong_value_is_a_header_error(fields: list[object], name: str) -> None:
    with pytest.raises(HeaderError, match=f"Old: the field {name} "):
        read(fields)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.lists(VALUES, min_size=7, max_size=9), st.lists(VALUES, max_size=5))
def test_any_values_are_a_command_or_an_error_of_the_peer(
    parts: list[object], fields: list[object]
) -> None:
    for data in (msgpack.packb(parts), packed(fields=fields), packed(extra=parts[0])):
        with contextlib.suppress(FrameError, HeaderError):
            decode_header(data).read(Old)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xc0",
        packed()[:-1],
        packed() + b"\x00",
        msgpack.packb([10, 0, 7, 3, 407, None, None]),
        msgpack.packb([10, 0, 7, 3, 407, None, None, None, None]),
        msgpack.packb({"code": 10}),
        packed(code=True),
        packed(code=1.0),
        packed(code=None),
        packed(code=1 << 31),
        packed(opaque="7"),
        packed(language="JAVA"),
        packed(remark=b"bytes"),
        packed(fields={"topic": "t"}),
        packed(fields=[[]]),
        packed(fields=[{}]),
        packed(fields=[b"bytes"]),
        packed(fields=[msgpack.ExtType(4, b"x")]),
        packed(fields=[msgpack.Timestamp(1, 2)]),
        packed(fields=[None] * (MAX_EXT_FIELDS + 1)),
        packed(extra=["a"]),
        packed(extra={"a": 1}),
        packed(extra={1: "a"}),
        packed(extra={str(number): "" for number in range(MAX_EXT_FIELDS + 1)}),
        packed(remark="x").replace(b"\xa1x", b"\xa1\xff"),
        packed()[:-2] + b"\xdd\xff\xff\xff\xff",
        packed()[:-2] + b"\xc0\xdf\xff\xff\xff\xff",
        packed()[:-2] + b"\xdb\xff\xff\xff\xff",
        packed()[:-2] + b"\x91" * 100_000,
        b"\x91" * 100_000,
    ],
)
def test_anything_else_is_a_frame_error(data: bytes) -> None:
    with pytest.raises(FrameError, match="msgpack header"):
        decode_header(data)


@pytest.mark.parametrize("empty", [b"\x90", b"\x80"], ids=["lists", "maps"])
def test_a_header_of_nested_values_is_refused_before_it_is_built(empty: bytes) -> None:
    """A mebibyte of them would be 60 MiB of objects."""
    row = b"\xdc\x01\xff" + empty * 511
    data = b"\xdc\x02\x00" + row * 511
    tracemalloc.start()
    with pytest.raises(FrameError, match="msgpack header"):
        decode_header(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(data)
