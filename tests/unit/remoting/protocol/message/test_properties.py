"""Properties are encoded and decoded as in RocketMQ, including malformed text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.message import properties

GOLDEN = json.loads((Path(__file__).parents[4] / "golden/messages.json").read_text("utf-8"))

NAME = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1)
VALUE = st.text(st.characters(codec="utf-8", exclude_characters="\x02"), min_size=1)
JUNK = st.lists(st.sampled_from([b"\x01", b"\x02", b"a", b"TAGS", b"x", b"\xff"])).map(b"".join)


@pytest.mark.parametrize("case", GOLDEN["properties_to_string"], ids=json.dumps)
def test_a_map_is_written_as_java_writes_it(case: dict[str, Any]) -> None:
    text = properties.encode(case["properties"], trailing=case["version"] == "5.3.3")
    assert text.hex() == case["utf8_hex"]


@pytest.mark.parametrize("case", GOLDEN["string_to_properties"], ids=json.dumps)
def test_a_text_is_read_as_java_reads_it(case: dict[str, Any]) -> None:
    assert properties.decode(case["string"].encode()) == case["properties"]
    assert properties.decode(memoryview(case["string"].encode())) == case["properties"]


def test_the_documented_junk_is_dropped() -> None:
    assert properties.decode(b"a\x02b\x011\x02\x02c\x0122") == {"b": "1", "c": "22"}


@given(st.dictionaries(NAME, VALUE), st.booleans())
def test_what_was_written_is_read(entries: dict[str, str], trailing: bool) -> None:
    assert properties.decode(properties.encode(entries, trailing=trailing)) == entries


@given(JUNK, st.sampled_from([b"a", b"TAGS", b"x"]))
def test_find_agrees_with_decode_on_any_text(text: bytes, name: bytes) -> None:
    value = properties.find(text, name)
    expected = properties.decode(text).get(name.decode())
    assert (None if value is None else value.decode("utf-8", "replace")) == expected


@given(JUNK, st.sampled_from([b"a", b"TAGS", b"x"]))
def test_remove_takes_one_name_and_nothing_else(text: bytes, name: bytes) -> None:
    left = properties.decode(properties.remove(text, name))
    expected = properties.decode(text)
    expected.pop(name.decode(), None)
    assert left == expected


@given(JUNK)
def test_append_adds_or_replaces_one_entry(text: bytes) -> None:
    expected = properties.decode(text) | {"a": "1"}
    assert properties.decode(properties.append(text, b"a", b"1")) == expected


def test_append_puts_a_separator_only_where_one_is_needed() -> None:
    assert properties.append(b"", b"a", b"1") == b"a\x011"
    assert properties.append(b"x\x011", b"a", b"1") == b"x\x011\x02a\x011"
    assert properties.append(b"x\x011\x02", b"a", b"1") == b"x\x011\x02a\x011"
    assert properties.join(b"x\x011", b"") == b"x\x011"


def test_remove_keeps_the_other_bytes() -> None:
    assert properties.remove(b"WAIT\x01true\x02b\x012", b"WAIT") == b"b\x012"
    assert properties.remove(b"a\x011\x02WAIT\x01true", b"WAIT") == b"a\x011\x02"
    assert properties.remove(b"a\x011\x02WAIT\x01true\x02", b"WAIT") == b"a\x011\x02"
    assert properties.remove(b"NOWAIT\x01true", b"WAIT") == b"NOWAIT\x01true"
    assert properties.remove(b"a\x011", b"WAIT") == b"a\x011"


def test_find_takes_the_last_of_equal_names_that_has_a_value() -> None:
    assert properties.find(b"a\x011\x02a\x012\x02ba\x013\x02a\x01", b"a") == b"2"
    assert properties.find(b"a\x011\x02", b"a") == b"1"
    assert properties.find(b"ba\x011", b"a") is None


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"": "x"}, "empty name"),
        ({"a\x01": "x"}, "holds 0x01 or 0x02"),
        ({"a\x02": "x"}, "holds 0x01 or 0x02"),
        ({"a": "x\x02y"}, "value of the property 'a' holds 0x02"),
    ],
)
def test_ambiguous_properties_are_refused(entries: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        properties.encode({"b": "1"} | entries)


def test_a_value_may_hold_0x01() -> None:
    assert properties.decode(properties.encode({"a": "1\x012"})) == {"a": "1\x012"}
