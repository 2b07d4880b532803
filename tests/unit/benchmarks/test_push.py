"""Push consumers compared with Java's: more is better, and duplicates are reported."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import NAMES, QUICK, arguments, plan_of
from benchmarks.figures import Figures
from benchmarks.push import COMPARISONS, Comparison, Result
from benchmarks.push import QUICK as QUICK_AMOUNTS

BY_NAME = {comparison.name: comparison for comparison in COMPARISONS}


def rates(*values: float, extra: float = 0) -> list[Figures]:
    return [{"per_s": value, "cpu_us_per": 2.0, "extra": extra} for value in values]


def latencies(*values: float) -> list[Figures]:
    return [
        {"p50_us": value, "p99_us": 2 * value, "cpu_us_per": 90.0, "extra": 0} for value in values
    ]


def test_a_rate_is_the_first_side_over_the_second() -> None:
    result = Result(BY_NAME["push-concurrent"], rates(300, 200, 100), rates(100, 100, 100))
    assert result.ratio() == (2.0, 1.0, 3.0)
    assert "2.00 (1.00-3.00) >= 1: reached" in result.text()


def test_a_latency_is_the_second_side_over_the_first() -> None:
    result = Result(BY_NAME["push-latency"], latencies(100, 100), latencies(150, 190))
    assert result.ratio() == pytest.approx((1.7, 1.5, 1.9))
    assert result.text().endswith(">= 2: below")


def test_messages_that_came_twice_are_told() -> None:
    result = Result(BY_NAME["push-batch"], rates(300), rates(100, extra=3))
    assert result.text().endswith("reached; 3 messages came twice")


def test_the_json_has_every_round_by_side() -> None:
    document = Result(BY_NAME["push-java"], rates(3, 2), rates(1, 1)).as_json()
    assert len(document["on PocketMQ's broker"]) == len(document["on Java's"]) == 2
    assert document["ratio"] == {"median": 2.5, "low": 2.0, "high": 3.0}


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda comparison: comparison.name)
def test_each_can_be_chosen_by_its_name(comparison: Comparison) -> None:
    assert comparison.name in NAMES
    assert arguments(["--only", comparison.name]).only == [comparison.name]


def test_quick_takes_fewer_messages() -> None:
    assert plan_of(arguments(["--quick"])).push is QUICK.push is QUICK_AMOUNTS
