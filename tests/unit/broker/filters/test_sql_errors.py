"""Errors with the texts of RocketMQ: cases that its release 5.3.3 decided."""

from __future__ import annotations

import json
from pathlib import Path

from broker.filters.expressions import EvaluationError, SqlError
from broker.filters.sql import SqlFilter

CASES = json.loads(Path(__file__).with_name("cases_of_5_3_3.json").read_text())


def said(case: dict[str, object]) -> dict[str, str]:
    properties = case["properties"]
    assert isinstance(properties, dict)
    try:
        found = SqlFilter(str(case["expression"]))
    except SqlError as error:
        return {"compile_error": str(error)}
    try:
        value = found.evaluate([properties.get(name) for name in found.names])
    except EvaluationError as error:
        return {"evaluate_error": str(error)}
    return {"outcome": {True: "true", False: "false", None: "null"}[value]}


def test_every_case_ends_as_in_rocketmq_and_with_its_text():
    kinds = {"compile_error": 0, "evaluate_error": 0, "outcome": 0}
    for case in CASES:
        ((kind, text),) = said(case).items()
        assert kind in case, case
        # Java tells the class of an exception, and of those that are its causes, before its text.
        assert case[kind].endswith(text), (case, text)
        kinds[kind] += 1
    assert min(kinds.values()) > 10


def test_a_plus_before_nonsense_is_named_as_javacc_does():
    for text in ("+ = 1", "a = + +", "+ (a = "):
        ((_, error),) = said({"expression": text, "properties": {}}).items()
        assert 'Encountered " "+" "+ ""' in error
