"""Typed headers: kinds of fields, refusals, and error messages."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.command import Header, Int, Long, header, wire_names_of
from remoting.protocol.errors import HeaderError
from remoting.protocol.headers.group import UnregisterClientRequestHeader
from remoting.protocol.headers.send import SendMessageRequestHeader, SendMessageRequestHeaderV2


@header
class Example(Header):
    """One field of each kind."""

    topic_name: str
    queue_id: Int
    born_timestamp: Long
    order: bool
    note: str | None = None
    count: Int | None = None
    total: Long | None = None
    flagged: bool | None = None
    batch: bool = False


FIELDS = {"topicName": "t", "queueId": "1", "bornTimestamp": "2", "order": "true"}
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
EXAMPLES = st.builds(
    Example,
    topic_name=st.text(),
    queue_id=INT32,
    born_timestamp=INT64,
    order=st.booleans(),
    note=st.none() | st.text(),
    count=st.none() | INT32,
    total=st.none() | INT64,
    flagged=st.none() | st.booleans(),
    batch=st.booleans(),
)


@given(EXAMPLES)
def test_what_is_written_as_text_is_read_again(example: Example) -> None:
    assert Example.from_fields(dict(example.pairs())) == example


@given(EXAMPLES)
def test_a_copy_has_the_same_values_and_its_own(example: Example) -> None:
    copied = example.copy()
    assert copied == example
    copied.topic_name += "?"
    assert copied != example


@given(EXAMPLES)
def test_what_is_written_as_values_is_read_again(example: Example) -> None:
    assert Example.from_values(example.values()) == example


def test_fields_are_written_as_javas_text_in_declared_order() -> None:
    example = Example(topic_name="t", queue_id=-1, born_timestamp=2, order=True, flagged=False)
    assert example.pairs() == [
        ("topicName", "t"),
        ("queueId", "-1"),
        ("bornTimestamp", "2"),
        ("order", "true"),
        ("flagged", "false"),
        ("batch", "false"),
    ]


def test_absent_fields_have_their_defaults_and_unknown_ones_are_ignored() -> None:
    example = Example.from_fields(FIELDS | {"ReqT": "0"})
    assert example == Example(topic_name="t", queue_id=1, born_timestamp=2, order=True)


@pytest.mark.parametrize("name", FIELDS)
def test_a_missing_required_field_is_named(name: str) -> None:
    ext_fields = {key: text for key, text in FIELDS.items() if key != name}
    with pytest.raises(HeaderError, match=f"^Example: the field {name} is missing$"):
        Example.from_fields(ext_fields)


@pytest.mark.parametrize("name", ["queueId", "bornTimestamp", "order"])
def test_an_empty_text_of_a_binary_header_is_an_absent_number_or_boolean(name: str) -> None:
    with pytest.raises(HeaderError, match=f"the field {name} is missing"):
        Example.from_fields(FIELDS | {name: ""}, empty_is_absent=True)


def test_an_empty_text_is_a_value_unless_the_codec_has_no_other_null() -> None:
    ext_fields = FIELDS | {"topicName": "", "note": "", "flagged": ""}
    json_one = Example.from_fields(ext_fields)
    assert (json_one.topic_name, json_one.note, json_one.flagged) == ("", "", False)
    binary_one = Example.from_fields(ext_fields | {"count": ""}, empty_is_absent=True)
    assert (binary_one.topic_name, binary_one.note) == ("", None)
    assert (binary_one.count, binary_one.flagged) == (None, None)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "1_000", " 5 ", "5\n", "²", "1.0", "0x10", "-", "+", "--1", "1e3", "null"),
        *("2147483648", "-2147483649", "9" * 31, "9" * 5000, "\U0001d7d8", "٣\U0001d7d8"),
    ],
)
def test_only_a_decimal_number_in_range_is_an_integer(text: str) -> None:
    with pytest.raises(HeaderError, match="the field queueId must be a 32-bit integer: '"):
        Example.from_fields(FIELDS | {"queueId": text})


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809", "1_0"])
def test_a_long_has_64_bits(text: str) -> None:
    with pytest.raises(HeaderError, match="the field total must be a 64-bit integer"):
        Example.from_fields(FIELDS | {"total": text})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2147483647", 2147483647),
        ("-2147483648", -2147483648),
        ("+5", 5),
        ("-0", 0),
        ("0" * 100 + "7", 7),
        ("٣", 3),
        ("-1٣\uff10", -130),
    ],
)
def test_what_java_parses_is_parsed(text: str, value: int) -> None:
    assert Example.from_fields(FIELDS | {"queueId": text}).queue_id == value


@pytest.mark.parametrize("text", ["true", "TRUE", "tRuE"])
def test_true_is_case_insensitive(text: str) -> None:
    assert Example.from_fields(FIELDS | {"order": text}).order is True


@pytest.mark.parametrize(
    "text", ["false", "False", "0", "1", "yes", " true", "true ", "t", "", "x"]
)
def test_all_other_words_are_false(text: str) -> None:
    assert Example.from_fields(FIELDS | {"order": text}).order is False


def test_a_long_value_is_cut_in_the_error() -> None:
    with pytest.raises(HeaderError) as caught:
        Example.from_fields(FIELDS | {"queueId": "x" * 10_000})
    assert len(str(caught.value)) < 120


def test_names_that_are_no_camel_case_are_mapped() -> None:
    assert wire_names_of(UnregisterClientRequestHeader)[0] == "clientID"
    assert wire_names_of(SendMessageRequestHeaderV2) == tuple("abcdefghijklmn")


def test_both_send_headers_have_the_same_attributes() -> None:
    def attributes(header_type: type[Any]) -> set[str]:
        return {field.name for field in fields(header_type)}

    assert attributes(SendMessageRequestHeader) == attributes(SendMessageRequestHeaderV2)
