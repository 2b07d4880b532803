"""Two sides in turns: above 1 is better for the first one, and a missed bar is named."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import NAMES, QUICK, arguments, plan_of
from benchmarks.beside import PARTS, Beside
from benchmarks.figures import Figures


def rates(*values: float, extra: float = 0) -> list[Figures]:
    return [{"per_s": value, "cpu_us_per": 2.0, "extra": extra} for value in values]


def beside(
    first: list[Figures],
    second: list[Figures],
    *,
    figure: str = "per_s",
    bar: float | None = None,
) -> Beside:
    return Beside(
        name="x",
        text="a load",
        sides=("ours", "theirs"),
        shown={figure: "{:.1f}"},
        bars={} if bar is None else {figure: bar},
        runs={"ours": first, "theirs": second},
    )


def test_a_rate_is_the_first_side_over_the_second() -> None:
    made = beside(rates(300, 200, 100), rates(100, 100, 100), bar=1)
    assert made.ratio("per_s") == (2.0, 1.0, 3.0)
    assert made.line() == (
        "a load: ours 200.0; theirs 100.0; per_s 2.00 (1.00-3.00) times >= 1: met"
    )


def test_a_time_is_the_second_side_over_the_first() -> None:
    seconds: tuple[list[Figures], list[Figures]] = (
        [{"seconds": 0.1}, {"seconds": 0.1}],
        [{"seconds": 0.15}, {"seconds": 0.19}],
    )
    made = beside(*seconds, figure="seconds", bar=2)
    assert made.ratio("seconds") == pytest.approx((1.7, 1.5, 1.9))
    assert made.line().endswith(">= 2: missed")


def test_a_ratio_without_a_bar_has_no_verdict() -> None:
    assert beside(rates(300), rates(100)).line().endswith("per_s 3.00 (3.00-3.00) times")


def test_messages_that_came_twice_are_told() -> None:
    assert beside(rates(300), rates(100, extra=3)).line().endswith("; 3 messages came twice")


def test_sides_alternate_so_that_both_are_first_equally_often() -> None:
    order: list[str] = []
    made = beside([], [])

    def run(side: str) -> Figures:
        order.append(side)
        return {"per_s": 1.0}

    made.measure(3, run)
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert {side: len(runs) for side, runs in made.runs.items()} == {"ours": 3, "theirs": 3}


def test_the_json_has_every_round_by_side() -> None:
    document = beside(rates(3, 2), rates(1, 1)).as_json()
    assert {side: len(runs) for side, runs in document["runs"].items()} == {"ours": 2, "theirs": 2}
    assert document["ratios"] == {"per_s": {"median": 2.5, "low": 2.0, "high": 3.0}}


@pytest.mark.parametrize("name", PARTS)
def test_each_can_be_chosen_by_its_name(name: str) -> None:
    assert name in NAMES
    assert arguments(["--only", name]).only == [name]


def test_quick_takes_fewer_messages() -> None:
    plan = plan_of(arguments(["--quick"]))
    assert plan == QUICK
    assert plan.push_messages < plan_of(arguments([])).push_messages
