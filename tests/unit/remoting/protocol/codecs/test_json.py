"""The JSON header: what is accepted, refused and written."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.codecs.json import decode_header, encode_header
from remoting.protocol.codes import Language
from remoting.protocol.command import Command
from remoting.protocol.errors import FrameError
from remoting.protocol.limits import MAX_EXT_FIELDS, MAX_JSON_DEPTH


def decode(text: str) -> Command:
    return decode_header(text.encode())


def test_missing_keys_have_defaults_and_unknown_ones_are_ignored() -> None:
    command = decode('{"unknown": {"a": [1, {"b": "c"}]}}')
    assert command == Command(0, language=Language.JAVA, version=0)


def test_null_counts_as_missing() -> None:
    command = decode('{"code":null,"flag":null,"remark":null,"extFields":null,"language":null}')
    assert (command.code, command.flag, command.remark, command.pairs) == (0, 0, None, None)
    assert command.language is None


def test_any_order_and_white_space_are_read() -> None:
    text = ' { "version" : 399 ,\n"extFields" : { "b" : "1" , "a" : "2" } , "code" : 105 } '
    command = decode(text)
    assert (command.version, command.code) == (399, 105)
    assert command.pairs == (("b", "1"), ("a", "2"))


def test_bare_numbers_and_booleans_become_text_and_null_is_no_field() -> None:
    command = decode('{"extFields":{"n":-12,"d":1.5,"t":true,"f":false,"z":null,"s":"x"}}')
    assert command.pairs == (("n", "-12"), ("d", "1.5"), ("t", "true"), ("f", "false"), ("s", "x"))


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ('"GO"', Language.GO),
        ('"KLINGON"', None),
        ("9", Language.GO),
        ("99", None),
    ],
)
def test_an_unknown_language_is_none(text: str, language: Language | None) -> None:
    assert decode(f'{{"language":{text}}}').language is language


@pytest.mark.parametrize(
    "text",
    [
        '{"extFields":{"a":"1","b":"2","a":"3"}}',
        '{"extFields" : { "a" : "1", "b" : "2", "a" : "3" } }',
        '{"remark":"ends with \\\\","extFields":{"a":"1","b":"2","a":"3"}}',
        '{"remark":"\\"quoted\\"","extFields":{"a":"1","b":"2","\\u0061":"3"}}',
        '{"x":{"a":[]},"extFields":{"a":1,"b":2,"a":3}}',
    ],
)
def test_repeated_ext_fields_are_kept_in_order(text: str) -> None:
    command = decode(text)
    assert command.pairs == (("a", "1"), ("b", "2"), ("a", "3"))
    assert command.fields == {"a": "3", "b": "2"}


def test_of_repeated_ext_field_objects_the_last_one_counts() -> None:
    assert decode('{"extFields":{"a":"1"},"extFields":{"b":"2"}}').pairs == (("b", "2"),)
    assert decode('{"extFields":{"a":"1"},"extFields":null}').pairs is None


texts = st.text(alphabet='ab"\\:{}[],é\u0001 ', max_size=6)
members = st.lists(st.tuples(texts, texts), max_size=6)


def written(pairs: list[tuple[str, str]], indent: bool) -> str:
    between = " : " if indent else ":"
    return (
        "{" + ",".join(json.dumps(name) + between + json.dumps(text) for name, text in pairs) + "}"
    )


@given(members, members, st.booleans())
def test_pairs_are_those_of_the_text_whatever_it_holds(
    ext_fields: list[tuple[str, str]], others: list[tuple[str, str]], indent: bool
) -> None:
    around = written([(f"-{name}", text) for name, text in others], indent)
    text = f'{around[:-1]}{"," if others else ""}"extFields":{written(ext_fields, indent)}}}'
    assert decode(text).pairs == tuple(ext_fields)


@pytest.mark.parametrize(
    "header",
    [
        [],
        "text",
        None,
        {"code": "ten"},
        {"opaque": "2147483648"},
        {"flag": ""},
        {"code": True},
        {"code": 1.0},
        {"code": 1 << 31},
        {"opaque": -(1 << 31) - 1},
        {"flag": []},
        {"version": {}},
        {"language": ["JAVA"]},
        {"language": True},
        {"remark": 5},
        {"remark": ["x"]},
        {"extFields": []},
        {"extFields": "x"},
    ],
)
def test_a_wrong_type_is_a_frame_error(header: Any) -> None:
    with pytest.raises(FrameError):
        decode(json.dumps(header))


def test_the_headers_own_numbers_may_be_texts() -> None:
    command = decode('{"code":"+105","flag":"2","opaque":"-7","version":"0453"}')
    assert (command.code, command.flag, command.opaque, command.version) == (105, 2, -7, 453)


def test_ext_fields_that_hold_lists_or_objects_are_ignored() -> None:
    text = json.dumps({"extFields": {"a": [1, ["x"]], "b": {"c": "d"}, "e": 1.5, "f": False}})
    assert decode(text).fields == {"e": "1.5", "f": "false"}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
KEYS = st.sampled_from(["code", "flag", "opaque", "version", "language", "remark", "extFields"])


@given(st.dictionaries(KEYS, JSON_VALUES, max_size=4))
def test_any_value_anywhere_is_a_command_or_a_frame_error(header: dict[str, Any]) -> None:
    try:
        command = decode(json.dumps(header))
    except FrameError:
        return
    assert decode_header(encode_header(command)).fields == command.fields


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"code":NaN}',
        b'{"remark":"\xff"}',
        b'{"remark":"\\ud800"}',
        b'{"extFields":{"a":"1","a":"\\udfff"}}',
        b"\xef\xbb\xbf{}",
        b"{'code':1}",
        b'{"code":1}{}',
        b'{"x":' + b"[" * 100_000,
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x":"' + b'\\"' * 1000,
    ],
)
def test_unreadable_text_is_a_frame_error(data: bytes) -> None:
    with pytest.raises(FrameError, match="can't be read"):
        decode_header(data)


def test_depth_is_bounded() -> None:
    def nested(levels: int) -> str:
        return '{"x":' + "[" * levels + "]" * levels + "}"

    assert decode(nested(MAX_JSON_DEPTH - 1)).code == 0
    with pytest.raises(FrameError, match="nests deeper than"):
        decode(nested(MAX_JSON_DEPTH))


def test_brackets_in_texts_and_side_by_side_are_no_depth() -> None:
    remark = '{["\\' * 200
    text = json.dumps({"remark": remark, "x": [[], {}] * 200})
    assert decode(text).remark == remark


def test_the_number_of_ext_fields_is_bounded() -> None:
    fields = {str(number): "x" for number in range(MAX_EXT_FIELDS)}
    assert len(decode(json.dumps({"extFields": fields})).fields) == MAX_EXT_FIELDS
    fields["one more"] = "x"
    with pytest.raises(FrameError, match="ext fields are above"):
        decode(json.dumps({"extFields": fields}))


def test_the_nesting_of_a_repeated_read_is_bounded_too() -> None:
    deep = sys.getrecursionlimit() * 50
    with pytest.raises(FrameError):
        decode('{"extFields":{"a":"1","a":"2"},"x":' + "[" * deep + "]" * deep + "}")


def test_a_part_without_fields_is_written_as_an_empty_object() -> None:
    assert b'"extFields":{}' in encode_header(Command(34, pairs=()))
    assert b"extFields" not in encode_header(Command(34))


def test_an_unknown_language_and_a_missing_remark_are_omitted() -> None:
    header = encode_header(Command(34, language=None))
    assert b"language" not in header
    assert b"remark" not in header


def test_text_is_written_raw() -> None:
    header = encode_header(Command(1, remark="中文 \u0001\x7f"))
    assert '"remark":"中文 \\u0001\x7f"'.encode() in header


def test_text_that_cannot_be_utf_8_is_a_value_error() -> None:
    with pytest.raises((TypeError, ValueError)):
        encode_header(Command(1, remark="\ud800"))
