"""Tags hash as Java strings do, and expressions are parsed as in RocketMQ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.message import properties
from remoting.protocol.message.tags import TagExpression, java_hash, tags_code, tags_code_of

GOLDEN = json.loads((Path(__file__).parents[4] / "golden/hashes.json").read_text("utf-8"))
WITH_TAGS = [c for c in GOLDEN["tag_subscriptions"] if "throws" not in c["result"]]
WITHOUT = [c for c in GOLDEN["tag_subscriptions"] if "throws" in c["result"]]


def by_definition(text: str) -> int:
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@pytest.mark.parametrize("case", GOLDEN["string_hash"], ids=lambda c: ascii(c["string"])[:20])
def test_a_string_hashes_as_in_java(case: dict[str, Any]) -> None:
    assert java_hash(case["string"]) == case["hashCode"]
    assert tags_code(case["string"]) == case["tagsCode_long"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("*", 42),
        ("", 0),
        ("中文", 646394),
        ("polygenelubricants", -2147483648),
        ("a", 97),
        ("%RETRY%g1", -1978266836),
    ],
)
def test_the_documented_hashes(text: str, expected: int) -> None:
    assert java_hash(text) == expected


@given(st.text(max_size=900))
def test_the_hash_follows_its_definition(text: str) -> None:
    assert java_hash(text) == by_definition(text)


@pytest.mark.parametrize("length", [255, 256, 257, 512, 513, 1000])
def test_long_texts_hash_in_pieces(length: int) -> None:
    assert java_hash("Tag" * length) == by_definition("Tag" * length)
    assert java_hash("标签🚀" * length) == by_definition("标签🚀" * length)


def test_no_tag_and_an_empty_tag_have_code_0() -> None:
    assert tags_code(None) == tags_code("") == tags_code_of(b"KEYS\x01k") == 0


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x02"), max_size=200))
def test_the_code_is_the_same_from_a_tag_and_from_a_text(tag: str) -> None:
    text = properties.encode({"KEYS": "k", "TAGS": tag})
    assert tags_code_of(text) == tags_code(tag)


def test_a_tag_that_is_not_utf_8_has_the_code_of_what_is_read() -> None:
    assert tags_code_of(b"TAGS\x01\xff") == tags_code("\ufffd")
    assert tags_code_of(b"TAGS\x01" + b"\xff" * 200) == tags_code("\ufffd" * 200)


@pytest.mark.parametrize("case", WITH_TAGS, ids=lambda c: ascii(c["expression"]))
def test_an_expression_is_read_as_java_reads_it(case: dict[str, Any]) -> None:
    expression, java = TagExpression.parse(case["expression"]), case["result"]
    assert expression.text == java["subString"]
    assert expression.tags == set(java["tagsSet"])
    assert expression.codes == set(java["codeSet"])
    assert expression.is_all == (java["subString"] == "*")


@pytest.mark.parametrize("text", [c["expression"] for c in WITHOUT] + ["||||", " || ", "   "])
def test_an_expression_without_a_tag_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names no tag"):
        TagExpression.parse(text)


def test_all_matches_everything() -> None:
    expression = TagExpression.parse("*")
    assert expression.matches(None)
    assert expression.matches("TagA")


def test_tags_match_exactly_and_codes_by_hash() -> None:
    expression = TagExpression.parse("Aa||TagB")
    assert expression.matches("Aa")
    assert not expression.matches("BB")
    assert not expression.matches(None)
    assert java_hash("BB") in expression.codes


def test_only_what_java_trims_is_trimmed() -> None:
    assert TagExpression.parse("\ta\x00 || \u3000b").tags == {"a", "\u3000b"}
