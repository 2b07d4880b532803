"""What expressions mean: the cases that 4.9.7 and 5.3.3 decided."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.filters.expressions import EvaluationError, SqlError
from broker.filters.sql import SqlFilter

GOLDEN = Path(__file__).parents[3] / "golden"
CASES = json.loads((GOLDEN / "sql92.json").read_text())
OF_5 = CASES["cases_of_expressions_that_differ_in_5_3_3"]
DIFFERENT = {case["expression"] for case in OF_5}
OF_BOTH = [case for case in CASES["cases"] if case["expression"] not in DIFFERENT]


def outcome(expression: str, properties: dict[str, str]) -> str:
    try:
        found = SqlFilter(expression)
    except SqlError:
        return "compile_error"
    try:
        value = found.evaluate([properties.get(name) for name in found.names])
    except EvaluationError:
        return "evaluate_error"
    return {True: "true", False: "false", None: "null"}[value]


def test_every_case_of_4_9_7_that_5_3_3_decides_alike():
    wrong = [
        (case, found)
        for case in OF_BOTH
        if (found := outcome(case["expression"], case["properties"])) != case["outcome"]
    ]
    assert not wrong
    assert len(OF_BOTH) == 1_206


def test_every_case_that_5_3_3_decides_in_its_own_way():
    wrong = [
        (case, found)
        for case in OF_5
        if (found := outcome(case["expression"], case["properties"])) != case["outcome"]
    ]
    assert not wrong
    assert len(OF_5) == 38


def test_errors_of_evaluation_have_the_texts_of_rocketmq():
    for case in (*OF_BOTH, *OF_5):
        if case["outcome"] == "evaluate_error":
            found = SqlFilter(case["expression"])
            with pytest.raises(EvaluationError) as error:
                found.evaluate([case["properties"].get(name) for name in found.names])
            assert case["error"].endswith(str(error.value))


def test_errors_of_wrong_values_have_the_texts_of_rocketmq():
    """Those that list tokens differ between the versions; see ``test_sql_errors``."""
    told = 0
    for case in (*OF_BOTH, *OF_5):
        if case["outcome"] == "compile_error" and "Was expecting" not in case["error"]:
            with pytest.raises(SqlError) as error:
                SqlFilter(case["expression"])
            message = case["error"].removeprefix("MQFilterException: ").partition(" <- ")[0]
            assert str(error.value) == message
            told += 1
    assert told > 30
