"""The reader and writer of Java's JSON dialect."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import tracemalloc
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from remoting.protocol.bodies import relaxed_json
from remoting.protocol.bodies.relaxed_json import MAX_NUMBER_DIGITS, ObjectKey, dumps, loads
from remoting.protocol.errors import BodyError
from remoting.protocol.limits import MAX_JSON_DEPTH
from remoting.protocol.queue import MessageQueue


def key(**members: Any) -> ObjectKey:
    made = ObjectKey.of(members)
    assert made is not None
    return made


ACCEPTED = {
    "{0:'a',1:'b'}": {0: "a", 1: "b"},
    "{-7:1}": {-7: 1},
    "{ 12 : 1 }": {12: 1},
    '{"0":1}': {"0": 1},
    "{name:1,$a_1:2,中文:3}": {"name": 1, "$a_1": 2, "中文": 3},
    "{true:true}": {"true": True},
    '{{"b":1,"a":"x"}:2}': {key(a="x", b=1): 2},
    "{{a:null,b:true}:[],{}:{}}": {key(a=None, b=True): [], key(): {}},
    "'it\\'s'": "it's",
    "'a \"quote\"'": 'a "quote"',
    '"it\'s"': "it's",
    "'\\x41\\0\\7\\v\\F\\q'": "A\0\7\v\fq",
    "'\\\"\\\\\\/\\b\\f\\n\\r\\t'": '"\\/\b\f\n\r\t',
    "'\\u4e2d\\u4E2D'": "中中",
    "'\\\\u12'": "\\u12",
    '"line\nbreak\ttab"': "line\nbreak\ttab",
    "['😀','\\ud83d\\ude00']": ["😀", "😀"],
    '"\\ud83d"': "\ufffd",
    "'\\ude00\\ud83d!'": "\ufffd\ufffd!",
    "[01,-0,'']": [1, 0, ""],
    "[1.5,-2e3,1E-2,'']": [1.5, -2000.0, 0.01, ""],
    " \t\r\n\f\b{ } ": {},
    "[ 'x' , null , false ]": ["x", None, False],
    "{'a':1,'a':2}": {"a": 2},
    '{"a":1,"a":2}': {"a": 2},
    '{"a":"1,{[","b":[]}': {"a": "1,{[", "b": []},
}
REFUSED = [
    "",
    "  ",
    "{",
    "[",
    "}",
    "[1,]",
    "[1 2]",
    "{,}",
    "{a}",
    "{a:}",
    "{a:1,}",
    "{a:1 b:2}",
    "{1.5:1}",
    "{-:1}",
    "{[]:1}",
    "{1}",
    "{{a:[1]}:2}",
    "{{a:{}}:2}",
    "{{1:2}:3}",
    "{{a:1}}",
    "'open",
    '"open',
    '"open\\"',
    "'\\u12'",
    "'\\u12\\n34'",
    "'\\xg1'",
    "'trailing\\",
    "nul",
    "NaN",
    "Infinity",
    "undefined",
    "-",
    "+1",
    ".5",
    "1e400",
    "'a' 'b'",
    "1 2",
    "[1]]",
    "{\ufeff}",
    "٣",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_it_reads_what_java_reads(text: str) -> None:
    value = loads(text.encode())
    assert value == ACCEPTED[text]
    assert relaxed_json.RelaxedReader(text).read() == ACCEPTED[text]


@pytest.mark.parametrize("text", REFUSED)
def test_it_refuses_with_what_and_where(text: str) -> None:
    with pytest.raises(BodyError, match=r"character \d+"):
        loads(text.encode())


def test_any_kind_of_buffer_is_read() -> None:
    assert loads(bytearray(b"[1]")) == loads(memoryview(b"[1]")) == [1]


def test_integer_keys_stay_integers_only_without_quotes() -> None:
    assert [type(k) for k in loads(b'{1:0,"2":0}')] == [int, str]  # type: ignore[union-attr]  # a dict


def test_integers_are_exact_at_any_size() -> None:
    for digits in ("9223372036854775808", "-18446744073709551617", "-" + "1" * MAX_NUMBER_DIGITS):
        assert loads(digits.encode()) == int(digits)
        assert loads(b"{" + digits.encode() + b":''}") == {int(digits): ""}


@pytest.mark.parametrize("form", ["%b", "[%b,'']", "{%b:1}", "[%b.5,'']"])
def test_a_number_of_too_many_digits_is_refused(form: str) -> None:
    digits = b"9" * (MAX_NUMBER_DIGITS + 1)
    with pytest.raises(BodyError, match="number"):
        loads(form.encode() % digits)


def test_bytes_that_are_not_utf_8_are_refused_with_their_position() -> None:
    with pytest.raises(BodyError, match="not UTF-8 at byte 3"):
        loads(b"'ab\xff'")


def nested(text: str, depth: int, closing: str) -> bytes:
    return (text * depth + "1" + closing * depth).encode()


NESTINGS = [("[", "]"), ('{"a":', "}"), ("{1:", "}"), ("['',", "]")]


@pytest.mark.parametrize(("opening", "closing"), NESTINGS)
def test_nesting_is_accepted_up_to_its_limit_and_not_beyond(opening: str, closing: str) -> None:
    loads(nested(opening, MAX_JSON_DEPTH, closing))
    with pytest.raises(BodyError, match=f"deeper than {MAX_JSON_DEPTH} levels"):
        loads(nested(opening, MAX_JSON_DEPTH + 1, closing))


@pytest.mark.parametrize("bomb", [b"[", b"{", b'{"a":', b"{1:", b"{{", b'[{"a":['])
@pytest.mark.parametrize("count", [65, 1_000, 100_000, 1_000_000])
def test_a_nesting_bomb_is_refused(bomb: bytes, count: int) -> None:
    with pytest.raises(BodyError, match=r"nests deeper|more than"):
        loads(bomb * count)


def test_a_wide_text_is_not_taken_for_a_deep_one() -> None:
    wide = {"a": [[{}] for _ in range(100)], "b": {str(n): {} for n in range(100)}}
    assert loads(json.dumps(wide).encode()) == wide
    assert loads(b'"' + b"[" * 100 + b'"') == "[" * 100


def test_the_number_of_values_is_bounded() -> None:
    assert loads(b"[" + b"1," * 98 + b"1]", max_nodes=100) == [1] * 99
    for text in (b"[" + b"1," * 99 + b"1]", b"[" + b"[]," * 50 + b"[]]", b"{1:[" * 51):
        with pytest.raises(BodyError, match="more than 100 values"):
            loads(text, max_nodes=100)


def test_values_that_are_too_many_take_no_memory() -> None:
    text = b"[" + b'"",' * 100_000 + b'""]'
    tracemalloc.start()
    try:
        with pytest.raises(BodyError, match="more than 1000 values"):
            loads(text, max_nodes=1_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(text)


def test_marks_within_strings_are_not_counted_as_values() -> None:
    marks = ",[{" * 100 + "\\\"'"
    assert loads(json.dumps([marks, marks]).encode(), max_nodes=100) == [marks, marks]
    assert loads(b"{'" + b"{," * 100 + b"\\'':1}", max_nodes=100) == {"{," * 100 + "'": 1}


@pytest.mark.parametrize("size", [1_000_000])
@pytest.mark.parametrize("part", [b"'\\'", b'"\\"', b"\\", b'\\"', b"1", b" ", b"\\u0041", b"a"])
def test_no_pattern_takes_quadratic_time(part: bytes, size: int) -> None:
    # The limit on a test's time is what fails here.
    for opening in (b"", b'"', b"'", b"{", b"["):
        with pytest.raises(BodyError):
            loads(opening + part * size + b"?,,," + part * size)


def test_a_stack_that_is_nearly_used_up_is_no_recursion_error() -> None:
    deep = nested("{1:", MAX_JSON_DEPTH, "}")

    def at_depth(frames: int) -> object:
        return loads(deep) if frames == 0 else at_depth(frames - 1)

    room = sys.getrecursionlimit() - len_of_stack() - 30
    with pytest.raises(BodyError, match="too deep for the stack"):
        at_depth(room)


def len_of_stack() -> int:
    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        depth += 1
    return depth


class Color(StrEnum):
    RED = "red"


class Level(IntEnum):
    ONE = 1


def test_it_writes_the_forms_of_java() -> None:
    tree = {
        "z": [1, -2, True, False, None],
        "doubles": [0.0, 1.5, -0.25],
        "map": {0: "a", 1: "b"},
        "text": 'a"b\\c\n中',
        "empty": [{}, []],
        "absent": None,
    }
    assert dumps(tree).decode() == (
        '{"z":[1,-2,true,false,null],"doubles":[0.0,1.5,-0.25],"map":{0:"a",1:"b"},'
        '"text":"a\\"b\\\\c\\n中","empty":[{},[]]}'
    )


def test_objects_as_keys_are_written_raw() -> None:
    tree = {key(b=1, a="x"): 2, MessageQueue("T", "br", 3): 4}
    assert dumps(tree) == b'{{"a":"x","b":1}:2,{"brokerName":"br","queueId":3,"topic":"T"}:4}'


def test_standard_json_quotes_sorts_and_escapes() -> None:
    tree = {"b": "中", "a": {10: 1, 9: 2}, "c": {MessageQueue("T", "b", 0): 1, "x": 2}}
    text = dumps(tree, standard=True)
    assert text == (
        b'{"a":{"9":2,"10":1},"b":"\\u4e2d",'
        b'"c":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":0,\\"topic\\":\\"T\\"}":1,"x":2}}'
    ), text


def test_pretty_text_is_broken_where_fastjson_breaks_it() -> None:
    tree = {"a": {}, "b": [], "c": {1: {"d": 2}, 3: [4]}, "e": {}}
    assert dumps(tree, pretty=True).decode() == (
        '{\n\t"a":{},\n\t"b":[],\n\t"c":{1:{\n\t\t\t"d":2\n\t\t},3:[\n\t\t\t4\n\t\t]\n\t},'
        '\n\t"e":{}\n}'
    )


def test_standard_pretty_text_is_read_by_any_reader() -> None:
    tree = {"a": {1: {MessageQueue("T", "b", 0): 2}}}
    assert json.loads(dumps(tree, standard=True, pretty=True)) == {
        "a": {"1": {'{"brokerName":"b","queueId":0,"topic":"T"}': 2}}
    }


def test_numbers_that_json_lacks_become_null() -> None:
    assert dumps([math.nan, math.inf, -math.inf]) == b"[null,null,null]"


def test_text_that_utf_8_lacks_becomes_a_question_mark() -> None:
    assert dumps("a\ud800b") == b'"a?b"'


def test_related_types_are_written_as_what_they_are() -> None:
    assert dumps([Color.RED, Level.ONE, (1, 2), {3}, frozenset({4})]) == b'["red",1,[1,2],[3],[4]]'
    assert dumps(MappingProxyType({Color.RED: 1, Level.ONE: 2})) == b'{"red":1,1:2}'


@pytest.mark.parametrize("value", [b"bytes", object(), {1.5: 1}, {True: 1}, {None: 1}, {(1,): 1}])
def test_what_has_no_json_form_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="no JSON form"):
        dumps(value)


scalars = (
    st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
object_keys = st.dictionaries(st.text(), scalars | st.none(), max_size=3).map(lambda m: key(**m))
keys = st.text() | st.integers(-(10**25), 10**25) | object_keys
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner | st.none()) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(trees, st.booleans())
def test_what_was_written_is_read_again(tree: object, pretty: bool) -> None:
    # A null within a key is lost as any other.
    assert shape(loads(dumps(tree, pretty=pretty))) == shape(without_null_in_keys(tree))


@settings(deadline=None)
@given(trees, st.booleans())
def test_standard_json_is_read_by_any_reader(tree: object, pretty: bool) -> None:
    text = dumps(tree, standard=True, pretty=pretty)
    assert text.isascii()
    assert shape(json.loads(text)) == shape(loads(text)) == shape(with_text_keys(tree))


@settings(deadline=None)
@given(trees)
def test_strict_json_is_read_the_same_by_both_readers(tree: object) -> None:
    text = dumps(tree, standard=True)
    assert shape(relaxed_json.RelaxedReader(text.decode()).read()) == shape(loads(text))


@settings(deadline=None)
@given(st.binary(max_size=200) | st.text("{}[]:,'\"\\u019aetrl-. \n", max_size=100).map(str.encode))
@example(b"{{'':{}}")
@example(b"[{'\\u")
def test_arbitrary_bytes_raise_nothing_but_a_body_error(data: bytes) -> None:
    with contextlib.suppress(BodyError):
        dumps(loads(data))  # whatever was read can be written


def shape(value: object) -> object:
    """A value in which 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return {shape(k): shape(v) for k, v in value.items()}
    if isinstance(value, list):
        return ["list", *map(shape, value)]
    if isinstance(value, ObjectKey):
        return ("key", *((name, shape(member)) for name, member in value))
    return type(value), repr(value)


def without_null_in_keys(value: object) -> object:
    if isinstance(value, dict):
        return {without_null_in_keys(k): without_null_in_keys(v) for k, v in value.items()}
    if isinstance(value, list):
        return [without_null_in_keys(item) for item in value]
    if isinstance(value, ObjectKey):
        return ObjectKey((name, member) for name, member in value if member is not None)
    return value


def with_text_keys(value: object) -> object:
    if isinstance(value, dict):
        pairs = sorted(value.items(), key=lambda pair: str(pair[0]))
        return {k if isinstance(k, str) else dumps(k).decode(): with_text_keys(v) for k, v in pairs}
    if isinstance(value, list):
        return [with_text_keys(item) for item in value]
    return value
