"""The ext fields by which peers ask for the size of a range, and tell it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.byte_range import ByteAnswer, ByteQuestion
from remoting.protocol.errors import HeaderError

NUMBERS = st.integers(0, 2**63 - 1)


@given(NUMBERS, NUMBERS, st.none() | NUMBERS)
def test_a_question_arrives_as_it_was_asked(one: int, other: int, limit: int | None) -> None:
    question = ByteQuestion(min(one, other), max(one, other), limit)
    assert ByteQuestion.of(question.fields()) == question


@given(NUMBERS, NUMBERS, st.none() | NUMBERS)
def test_an_answer_arrives_as_it_was_given(size: int, reached: int, following: int | None) -> None:
    answer = ByteAnswer(size, reached, following)
    assert ByteAnswer.of(answer.fields()) == answer


def test_what_says_nothing_of_bytes_is_neither() -> None:
    assert ByteQuestion.of({"topic": "T", "queueId": "0"}) is None
    assert ByteAnswer.of({"offset": "7"}) is None


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1.5", "0x10", " 7", "7\n", "٣", "9" * 19, "9" * 20]
)
@pytest.mark.parametrize("name", ["pmqBytesFrom", "pmqBytesUntil", "pmqBytesLimit"])
def test_what_is_no_number_is_an_error_that_names_the_field(name: str, text: str) -> None:
    with pytest.raises(HeaderError, match=rf"{name} is to be a number from 0 to \d+, not "):
        ByteQuestion.of(ByteQuestion(0, 0, 0).fields() | {name: text})


@pytest.mark.parametrize("name", ["pmqBytes", "pmqBytesReached", "pmqBytesNext"])
def test_the_same_goes_for_answers(name: str) -> None:
    with pytest.raises(HeaderError, match=name):
        ByteAnswer.of(ByteAnswer(0, 0, 0).fields() | {name: "many"})


@pytest.mark.parametrize(
    ("fields", "lacking"),
    [
        ({"pmqBytesFrom": "0"}, "pmqBytesUntil"),
        ({"pmqBytesUntil": "0"}, "pmqBytesFrom"),
        ({"pmqBytesLimit": "0"}, "pmqBytesUntil"),
    ],
)
def test_half_a_question_is_an_error(fields: dict[str, str], lacking: str) -> None:
    with pytest.raises(HeaderError, match=f"{lacking} is missing"):
        ByteQuestion.of(fields)


def test_a_range_that_ends_before_it_begins_is_an_error() -> None:
    with pytest.raises(HeaderError, match="says 3, which is behind pmqBytesUntil, 2"):
        ByteQuestion.of({"pmqBytesFrom": "3", "pmqBytesUntil": "2"})
