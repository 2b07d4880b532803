"""Ratios of two commits, and the bars of each load."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchmarks import before_after, resting
from benchmarks.before_after import DEFAULT_LOADS, LOADS, Comparison, bars, order
from benchmarks.environments import Environment
from benchmarks.figures import Figures
from benchmarks.tools import BenchmarkError


def figures(rate: float, p50: float, p99: float, cpu: float) -> Figures:
    return {
        "per_s": rate,
        "p50_us": p50,
        "p99_us": p99,
        "cpu_us_per": cpu,
        "cpu_us_at_once": cpu / 2 + 1,
    }


@pytest.fixture
def slower() -> Comparison:
    """A fifth slower in the median, a tenth more CPU time, in three pairs."""
    return Comparison(
        LOADS["send-1x1"],
        before=[figures(100, 10, 20, 10)] * 3,
        after=[figures(80, 10, 20, 11), figures(70, 10, 20, 11), figures(95, 10, 20, 10)],
    )


def test_every_ratio_is_after_over_before(slower: Comparison) -> None:
    assert slower.ratio("rate") == (0.8, 0.7, 0.95)
    assert slower.ratio("cpu") == (1.1, 1.0, 1.1)
    assert slower.ratio("p50") == (1.0, 1.0, 1.0)
    assert slower.under_load.median == pytest.approx(6.5 / 6)


def test_a_missed_bar_is_named_and_a_kept_one_is_not(slower: Comparison) -> None:
    assert slower.missed == ["cpu 1.100, not <= 1.05", "rate 0.800, not >= 0.9"]
    assert "missed: cpu 1.100, not <= 1.05" in before_after.table([slower])
    same = Comparison(slower.scenario, before=slower.before, after=slower.before)
    assert same.missed == []
    text = before_after.table([same])
    assert "kept" in text
    assert text.endswith("1.000")


def test_cpu_time_has_a_bar_everywhere_and_a_paced_load_none_on_its_rate() -> None:
    assert bars(LOADS["send-4x64"]) == {"cpu": 1.05, "rate": 0.9, "p99": 1 / 0.9}
    assert bars(LOADS["long-poll"]) == {"cpu": 1.05, "p50": 1 / 0.9}
    assert set(DEFAULT_LOADS) <= set(LOADS)


def test_runs_go_a_b_b_a_and_each_process_pair_starts_with_the_other_commit() -> None:
    first = [side for pair in (0, 1) for side in order(pair, 0)]
    second = [side for pair in (2, 3) for side in order(pair, 1)]
    assert first == ["before", "after", "after", "before"]
    assert second == ["after", "before", "before", "after"]


def test_cpu_time_is_that_of_the_process() -> None:
    before = resting.cpu_seconds(os.getpid())
    assert before == pytest.approx(time.process_time(), abs=0.1)


def test_different_cores_are_compared_only_on_request() -> None:
    sides = {
        side: Environment(Path("python"), (), core)
        for side, core in (("before", "python"), ("after", "compiled"))
    }
    with pytest.raises(BenchmarkError, match="'python', after 'compiled': --different-cores"):
        before_after.check_cores(sides, allowed=False)
    before_after.check_cores(sides, allowed=True)
    before_after.check_cores({**sides, "after": sides["before"]}, allowed=False)
