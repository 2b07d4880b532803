"""The comparison of clients: its computations, without any server."""

from __future__ import annotations

import asyncio
import json

import pytest

from benchmarks.clients import figures, foreign
from benchmarks.clients.figures import OURS, PHASES, Run
from benchmarks.clients.lanes import measuring
from benchmarks.clients.lanes.measuring import Deliveries, Reading, Work

WORK = Work(
    address="127.0.0.1:1",
    topic="t",
    partitions=4,
    messages=100,
    body_bytes=64,
    deliveries=3,
    per_second=500,
)


def rates(*per_second: float) -> list[Run]:
    return [Run(rate, 1.0, None, None) for rate in per_second]


def latencies(*p50_us: float) -> list[Run]:
    return [Run(500.0, 100.0, p50, 3 * p50) for p50 in p50_us]


def runs_of(name: str, scale: float) -> dict[str, dict[str, list[Run]]]:
    return {
        name: {
            "produce": rates(100 * scale, 200 * scale, 300 * scale),
            "consume": rates(400 * scale, 400 * scale, 400 * scale),
            "deliver": latencies(150 / scale, 160 / scale, 170 / scale),
        }
    }


def test_a_run_has_rate_cpu_and_percentiles() -> None:
    run = Run.of(1000, 2.0, 0.004, [number / 1e6 for number in range(100, 0, -1)])
    assert run.rate == 500
    assert run.cpu_us == pytest.approx(4.0)
    assert run.p50_us == pytest.approx(51)
    assert run.p99_us == pytest.approx(100)


def test_a_run_without_latencies_has_no_percentiles() -> None:
    assert Run.of(1, 1.0, 0.0, []) == Run(1.0, 0.0, None, None)


def test_ratios_are_taken_within_a_round_not_between_medians() -> None:
    runs = {
        OURS: {"produce": rates(100, 900, 120)},
        "aiokafka": {"produce": rates(50, 300, 40)},
    }
    (comparison,) = figures.compare(runs)
    assert comparison.ratios == (2.0, 3.0, 3.0)
    assert "3.00 (2.00-3.00)" in comparison.line()


def test_a_shorter_latency_is_a_ratio_over_one() -> None:
    runs = {OURS: {"deliver": latencies(100)}, "aiokafka": {"deliver": latencies(250)}}
    (comparison,) = figures.compare(runs)
    assert comparison.ratios == (2.5,)
    assert comparison.met is True


def test_a_bar_is_met_by_the_median_alone() -> None:
    runs = {
        OURS: {"produce": rates(290, 300, 900)},
        "aiokafka": {"produce": rates(100, 100, 100)},
    }
    (comparison,) = figures.compare(runs)
    assert comparison.bar == 3.0
    assert comparison.met is True
    assert "bar 3: met" in comparison.line()


def test_a_missed_bar_says_so() -> None:
    runs = {OURS: {"consume": rates(84)}, "confluent-kafka": {"consume": rates(100)}}
    (comparison,) = figures.compare(runs)
    assert comparison.met is False
    assert "MISSED" in comparison.line()


def test_a_client_without_a_bar_is_compared_too() -> None:
    comparisons = figures.compare({**runs_of(OURS, 2), **runs_of("nats-py", 1)})
    assert [comparison.phase for comparison in comparisons] == list(PHASES)
    assert {comparison.met for comparison in comparisons} == {None}


def test_without_ours_nothing_is_compared() -> None:
    runs = runs_of("aiokafka", 1)
    assert figures.compare(runs) == []
    assert "ours" not in figures.table(runs, {"aiokafka": "acks=1"})


def test_the_table_has_every_client_with_its_guarantee() -> None:
    runs = {**runs_of(OURS, 2), **runs_of("confluent-kafka", 1)}
    text = figures.table(runs, {OURS: "in the log", "confluent-kafka": "acks=1"})
    ours, theirs = text.splitlines()[1:3]
    assert ours.startswith(OURS)
    assert ours.endswith("in the log")
    assert "400 (200 to 600)" in ours
    assert "160 / 480" in theirs
    assert text.count("bar") == len(PHASES)


def test_the_report_is_json_with_every_run() -> None:
    document = figures.report({**runs_of(OURS, 2), **runs_of("aiokafka", 1)})
    read = json.loads(json.dumps(document))
    assert [run["rate"] for run in read["runs"][OURS]["produce"]] == [200, 400, 600]
    assert read["comparisons"][0] == {
        "client": "aiokafka",
        "phase": "produce",
        "ratios": [2, 2, 2],
        "median": 2,
        "bar": 3,
        "met": False,
    }


def test_every_bar_is_about_a_phase_that_is_measured() -> None:
    assert {phase for _, phase in figures.BARS} == set(PHASES)


def test_a_reading_counts_from_its_second_batch() -> None:
    reading = Reading(100)
    reading.took(40)
    assert reading.left == 60
    reading.took(60)
    assert reading.left == 0
    assert reading.figures().messages == 60


def test_a_reading_that_stalls_reports_its_progress() -> None:
    reading = Reading(100)
    reading.took(40)
    with pytest.raises(TimeoutError, match="after 40 of 100"):
        reading.took(0)


def test_the_first_deliveries_do_not_count() -> None:
    deliveries = Deliveries(WORK)
    while not deliveries.complete:
        deliveries.came(WORK.stamped())
    latencies = deliveries.figures().latencies
    assert len(latencies) == WORK.deliveries
    assert all(0 <= latency < 60 for latency in latencies)


def test_a_stamped_body_has_the_size_of_the_others() -> None:
    assert len(WORK.stamped()) == len(WORK.body) == WORK.body_bytes


def test_a_phase_is_a_command_that_carries_its_work() -> None:
    *_, lane, phase, work = measuring.command("pocketmq_lane", "produce", WORK)
    assert (lane, phase) == ("benchmarks.clients.lanes.pocketmq_lane", "produce")
    assert Work(**json.loads(work)) == WORK


async def test_windows_hold_at_most_two_of_them_in_flight() -> None:
    in_flight = most = offered = 0

    async def acknowledged() -> None:
        nonlocal in_flight
        await asyncio.sleep(0)
        in_flight -= 1

    async def offer(number: int) -> list[asyncio.Task[None]]:
        nonlocal in_flight, most, offered
        offered += number
        in_flight += number
        most = max(most, in_flight)
        return [asyncio.create_task(acknowledged()) for _ in range(number)]

    await measuring.in_windows(25, 10, offer)
    assert (offered, in_flight) == (25, 0)
    assert most <= 20


def test_the_foreign_clients_are_pinned_apart_from_ours() -> None:
    assert {"confluent-kafka", "aiokafka", "nats-py"} <= set(foreign.versions())
