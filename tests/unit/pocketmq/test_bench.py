"""The bench's latencies: bounded memory, quantiles exact to a percent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pocketmq.bench import BenchResult, Latencies


@given(st.lists(st.integers(0, 10**12), min_size=1), st.sampled_from([0.01, 0.5, 0.99, 1.0]))
def test_a_quantile_is_right_to_a_percent(values: list[int], share: float) -> None:
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    rank = next(number for number in range(1, len(values) + 1) if number >= share * len(values))
    exact = sorted(values)[rank - 1] / 1e6
    found = latencies.quantile_ms(share)
    assert found is not None
    assert exact * 0.99 <= found <= exact


def test_no_more_buckets_than_widths_however_many_are_added() -> None:
    latencies = Latencies()
    for value in range(0, 10**9, 9973):
        latencies.add(value)
    assert len(latencies.counts) < 30 * 128
    assert latencies.total == len(range(0, 10**9, 9973))


def test_a_result_of_nothing_is_a_row_without_latencies() -> None:
    row = BenchResult("produce").row()
    assert row["per_s"] == 0
    assert row["p50_ms"] is None
