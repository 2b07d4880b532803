"""What the steps of a message are, by the records of its trace."""

from __future__ import annotations

import pytest

from client import TraceRecord
from pocketmq.cli.message_trace import TraceStep, steps


def only(*records: TraceRecord) -> TraceStep:
    [step] = steps(records, ())
    return step


def test_a_call_without_its_end_has_no_result_yet():
    step = only(TraceRecord(kind="SubBefore", request_id="q", time_ms=5, group="g", retries=2))
    assert (step.step, step.at_ms, step.group, step.retries) == ("consumed", 5, "g", 2)
    assert (step.result, step.took_ms) == (None, None)


def test_a_call_without_its_begin_begins_by_its_duration():
    step = only(TraceRecord(kind="SubAfter", request_id="q", time_ms=50, cost_ms=8, group="g"))
    assert (step.at_ms, step.took_ms, step.group, step.retries) == (42, 8, "g", None)


def test_calls_of_two_clients_are_two_even_with_the_same_request_id():
    calls = [TraceRecord(kind="SubBefore", request_id="q", client_host=host) for host in ("a", "b")]
    assert [step.client for step in steps(calls, ())] == ["a", "b"]


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (1, "timed out"),
        (2, "raised an exception"),
        (3, "returned null"),
        (4, "failed"),
        (9, "failed"),
    ],
)
def test_a_failed_call_says_how_it_failed(result: int, says: str):
    assert only(TraceRecord(kind="SubAfter", success=False, result=result)).result == says


def test_a_result_that_is_not_an_error_is_ok():
    # Java's consumers time out and succeed.
    assert only(TraceRecord(kind="SubAfter", success=True, result=1)).result == "ok"


@pytest.mark.parametrize(
    ("record", "step", "result"),
    [
        (TraceRecord(kind="Pub"), "sent", "ok"),
        (TraceRecord(kind="Pub", message_type=1), "half sent", "ok"),
        (TraceRecord(kind="Pub", success=False), "sent", "less durable than configured"),
        (TraceRecord(kind="EndTransaction", state="COMMIT_MESSAGE"), "committed", "ok"),
        (
            TraceRecord(kind="EndTransaction", state="UNKNOW", from_check=True),
            *("undecided", "asked by the broker"),
        ),
        (TraceRecord(kind="Recall"), "recalled", "ok"),
        (TraceRecord(kind="Recall", success=False), "recalled", "failed"),
    ],
)
def test_what_producers_did(record: TraceRecord, step: str, result: str):
    found = only(record)
    assert (found.step, found.result) == (step, result)
