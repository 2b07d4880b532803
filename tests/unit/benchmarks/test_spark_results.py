"""The rows of the Spark benchmarks."""

from __future__ import annotations

import pytest

from benchmarks.figures import spread
from benchmarks.spark.results import Plan, Result, rates, table


@pytest.mark.parametrize(
    ("bar", "at_most", "reached"),
    [(None, False, True), (2.0, False, True), (3.0, False, False), (2.0, True, True)],
)
def test_the_median_decides(bar: float | None, at_most: bool, reached: bool):
    result = Result("tcp", "rows/s", spread([1.0, 2.0, 9.0]), bar, at_most=at_most)
    assert result.reached is reached


def test_an_upper_bar_is_missed_from_above():
    assert not Result("idle", "requests/s", spread([3.0]), 2.0, at_most=True).reached


def test_a_row_shows_range_bar_and_verdict():
    rows = table(
        [
            Result("tcp, 100 B", "rows/s", spread([250_000.0, 450_000.0]), 300_000.0),
            Result("idle", "requests/s", spread([3.0]), 2.0, at_most=True),
            Result("alone", "rows/s", spread([0.5])),
        ]
    ).splitlines()
    assert "350,000 (250,000-450,000)" in rows[1]
    assert rows[1].endswith(">= 300,000  reached, 1.17 of it")
    assert rows[2].endswith("<= 2.00     MISSED, 1.50 of it")
    assert rows[3].split() == ["alone", "0.50", "(0.50-0.50)", "rows/s"]


def test_programs_get_the_same():
    output = Result("tcp", "rows/s", spread([1.0, 3.0]), 1.5).as_json()
    assert (output["median"], output["low"], output["high"], output["reached"]) == (
        2.0,
        1.0,
        3.0,
        True,
    )


def test_the_first_round_is_a_warm_up():
    given = iter([1.0, 5.0, 9.0])
    (result,) = rates(2, {"tcp, 100 B": lambda: {"spark": next(given)}}, {"tcp, 100 B, spark": 6.0})
    assert (result.name, result.values, result.reached) == (
        "tcp, 100 B, spark",
        (7.0, 5.0, 9.0),
        True,
    )


def test_a_quarter_as_many_messages_are_large():
    assert Plan(rounds=1, messages=1000, batches=1, idle=1.0).counts(16) == {100: 992, 1024: 240}
