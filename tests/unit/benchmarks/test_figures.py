"""Ratios always mean "more is better for PocketMQ", and a missed bar is named."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks import chart, machine, report
from benchmarks.__main__ import FULL, NAMES, QUICK, arguments, plan_of
from benchmarks.figures import Outcome
from benchmarks.scenarios import SCENARIOS, Scenario

SEND = Scenario(name="send", text="send", mode="send", options={}, bars={"rate": 1.5, "p99": 3.0})


def figures(rate: float, p50: float, p99: float, cpu: float) -> dict[str, float]:
    return {"per_s": rate, "p50_us": p50, "p99_us": p99, "cpu_us_per": cpu, "errs": 0}


@pytest.fixture
def outcome() -> Outcome:
    """Three rounds; twice the rate, half the latency and a third of the CPU time in the median."""
    return Outcome(
        SEND,
        ours=[figures(300, 10, 50, 5), figures(200, 10, 50, 5), figures(100, 10, 50, 5)],
        theirs=[figures(100, 30, 100, 15), figures(100, 20, 100, 15), figures(100, 10, 100, 15)],
        memory={"ours": 20.0, "theirs": 800.0},
    )


def test_a_rate_is_ours_over_theirs_and_all_else_theirs_over_ours(outcome: Outcome) -> None:
    assert outcome.ratio("rate") == (2.0, 1.0, 3.0)
    assert outcome.ratio("p50") == (2.0, 1.0, 3.0)
    assert outcome.ratio("p99") == (2.0, 2.0, 2.0)
    assert outcome.ratio("cpu") == (3.0, 3.0, 3.0)


def test_a_missed_bar_is_named_and_a_reached_one_is_not(outcome: Outcome) -> None:
    assert SEND.all_bars == {"rate": 1.5, "p99": 3.0, "cpu": 2.0}
    assert outcome.below == ["p99 2.00 < 3"]
    assert "missed: p99 2.00 < 3" in report.table([outcome])
    assert "2.00 (1.00-3.00) >= 1.5" in report.table([outcome])
    outcome.scenario = Scenario(name="x", text="x", mode="send", options={}, bars={"rate": 2.0})
    assert report.table([outcome]).endswith("met")


def test_requests_that_were_refused_are_told(outcome: Outcome) -> None:
    outcome.theirs[1] = {**outcome.theirs[1], "errs": 7.0}
    assert report.table([outcome]).endswith("; Apache refused 7 requests")


def test_the_json_has_every_round(outcome: Outcome) -> None:
    document = outcome.as_json()
    assert len(document["pocketmq"]) == len(document["apache"]) == 3
    assert document["ratios"]["rate"] == {"median": 2.0, "low": 1.0, "high": 3.0}


def test_the_chart_is_svg_with_a_row_a_scenario(outcome: Outcome) -> None:
    tree = ElementTree.fromstring(chart.svg([outcome, outcome], "on <this> machine"))
    texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count(SEND.text) == 2
    assert "on <this> machine" in texts


def test_every_scenario_has_a_unique_name_and_a_bar_for_charted_figures() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert all(scenario.headline in scenario.bars for scenario in SCENARIOS)


def test_options_beat_the_plan_that_quick_makes() -> None:
    plan = plan_of(arguments(["--quick", "--rounds", "5"]))
    assert (plan.rounds, plan.seconds) == (5, QUICK.seconds)
    assert plan_of(arguments([])) == FULL


def test_the_machine_says_whether_the_interpreter_is_profile_guided() -> None:
    assert isinstance(machine.is_profile_guided(), bool)
    assert machine.calibration_ms() > 0
