"""Expressions that are too long, too deep, or nonsense: an error at once, and never a crash."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.filters.expressions import EvaluationError, SqlError
from broker.filters.sql import SqlFilter, compiled
from broker.limits import MAX_FILTER_DEPTH, MAX_FILTER_OPERANDS, MAX_SUBSCRIPTION_LENGTH


def refusal(expression: str) -> str:
    with pytest.raises(SqlError) as error:
        SqlFilter(expression)
    return str(error.value)


def test_an_expression_of_64_kib_is_refused():
    assert refusal("a = 1 OR " * 7_300 + "a = 1") == (
        f"an expression has at most {MAX_SUBSCRIPTION_LENGTH} characters, not 65705"
    )


def test_a_long_expression_within_the_limit_is_served():
    count = MAX_FILTER_OPERANDS // 2
    found = SqlFilter(" OR ".join(f"a = {number}" for number in range(count)))
    assert found.evaluate([str(count - 1)]) is True
    assert found.evaluate([str(count)]) is False
    texts = [f"'{number:04}'" for number in range(MAX_SUBSCRIPTION_LENGTH // 8)]
    found = SqlFilter(f"a IN ({','.join(texts)})")
    assert found.evaluate(["0999"]) is True
    assert found.evaluate(["999"]) is False


def test_an_expression_of_thousands_of_conditions_is_refused():
    assert refusal("a = 1 OR " * (MAX_FILTER_OPERANDS // 2) + "a = 1") == (
        f"the expression has more than {MAX_FILTER_OPERANDS} literals and properties: use IN for "
        "many texts, or filter by fewer conditions"
    )


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 10_000 + "a = 1" + ")" * 10_000,
        "(" * 10_000,
        "NOT " * 8_000 + "a",
        "-" * 10_000 + "1 = a",
        "+" * 10_000 + "a",
        "a" + " = 1" * 8_000,
        "a" + " IS NULL" * 4_000,
        "a = (" * 6_000,
        "NOT (" * 6_000,
    ],
    ids=lambda expression: expression[:12],
)
def test_what_is_nested_thousands_of_levels_deep_is_refused(expression):
    assert refusal(expression).startswith(
        f"the expression is nested more than {MAX_FILTER_DEPTH} levels deep"
    )


def test_so_deep_as_the_limit_is_served():
    depth = MAX_FILTER_DEPTH
    found = SqlFilter("(" * depth + "a = 1" + ")" * depth)
    assert found.evaluate(["1"]) is True
    assert SqlFilter("NOT " * (depth - 2) + "a").evaluate(["x"]) is False


def test_nested_chains_are_one_chain():
    expression = "a = 0"
    for number in range(1, 200):
        expression = f"({expression} OR a = {number})"
    found = SqlFilter(expression)
    assert found.evaluate(["199"]) is True
    assert found.evaluate(["200"]) is False
    expression = "a = 0"
    for number in range(1, 100):
        expression = f"({expression} OR a = {number}) AND b <> {number}"
    found = SqlFilter(expression)
    assert found.evaluate(["99", "100"]) is True
    assert found.evaluate(["99", "99"]) is False
    assert found.evaluate(["99", None]) is None


def test_nested_operands_of_between_are_evaluated_and_written_once():
    expression = "a BETWEEN 1 AND 2"
    for _ in range(100):
        expression = f"-({expression}) BETWEEN 1 AND 2"
    assert SqlFilter(expression).evaluate(["1"]) is None
    with pytest.raises(EvaluationError):
        SqlFilter(expression).evaluate(["x"])
    assert len(refusal(f"({expression}) > 5")) < 5_000


def test_two_minus_signs_are_a_comment_up_to_the_end_of_a_line_and_signs_without_one():
    assert SqlFilter("a = -- 2\n1").evaluate(["1"]) is True
    assert SqlFilter("-- x\r\na = --1").evaluate(["1"]) is True
    assert SqlFilter("a = ---1").evaluate(["-1"]) is True


def test_unknown_functions_and_operators_are_no_grammar():
    # What follows a complete expression is ignored: these are the property, as a boolean.
    for text in ("abs(a) = 1", "a LIKE 'x%'", "a REGEXP 'x'"):
        assert SqlFilter(text).evaluate(["1"]) is False
    assert "Lexical error" in refusal("a * 2 = 2")
    assert "Was expecting" in refusal("a NOT LIKE 'x'")


@pytest.mark.parametrize(
    "expression",
    [
        "'" + "a" * 30_000,
        "/*" + "*" * 30_000,
        "-- " * 10_000,
        " OR ".join(["a=" + "-" * 240 + "1"] * 132),
        "a IN (" + "'x'," * 8_000,
        "a " * 10_000 + "'",
        "0" * 30_000 + " = a = ",
        "9" * 30_000,
        "1" * 30_000 + ".0 = a",
        "\U0001f600" * 10_000,
        "a = '" + "''" * 15_000,
    ],
    ids=lambda expression: expression[:12],
)
def test_long_nonsense_ends_in_an_error_or_a_filter(expression):
    with contextlib.suppress(SqlError):
        SqlFilter(expression)


@given(
    st.one_of(
        st.text(max_size=80),
        st.lists(
            st.sampled_from(
                [
                    *("a", "b", "1", "2.5", "'x'", "''", "NULL", "TRUE", "(", ")", ",", "-", "+"),
                    *("=", "<>", "<", ">=", "AND", "OR", "NOT", "IN", "BETWEEN", "IS"),
                    *("CONTAINS", "STARTSWITH", "ENDSWITH", "/* */", "--", "\n", "\U0001f600"),
                ]
            ),
            max_size=20,
        ).map(" ".join),
    ),
    st.lists(st.none() | st.text(max_size=6), min_size=8, max_size=8),
)
def test_any_text_is_a_filter_or_an_error(text, values):
    with contextlib.suppress(SqlError, EvaluationError):
        found = SqlFilter(text)
        outcome = found.evaluate((values * len(found.names))[: len(found.names)])
        assert outcome in {True, False, None}


def test_an_expression_is_compiled_once():
    assert compiled("once = 1") is compiled("once = 1")
    long = "once = '" + "x" * 1_000 + "'"
    assert compiled(long) is compiled(long)
    for _ in range(2):
        with pytest.raises(SqlError, match="Was expecting"):
            compiled("once =")
