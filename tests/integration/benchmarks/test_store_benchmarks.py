"""The store benchmarks in their smallest size."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import before_after, resting
from benchmarks.before_after import LOADS, Plan
from benchmarks.servers import HERE
from benchmarks.store import scale, sync

pytestmark = pytest.mark.bench


def test_messages_that_wait_together_share_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "FILE_BYTES", 1 << 20)
    # Long enough for many shared syncs even on a slow disk.
    results = sync.measure(rounds=1, seconds=1.6, where=tmp_path)
    assert set(results) == {"disk", "broker", "many"}
    assert sync.shared(results, "broker").median == pytest.approx(1, abs=0.2)
    assert sync.shared(results, "many").median < 0.5


def test_both_trees_are_measured_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "REST_SECONDS", 0.0)
    plan = Plan(pairs=1, seconds=0.3, warm_up=0.1, prefill=2000, where=tmp_path)
    made = before_after.compare(LOADS["pull-1"], {"before": HERE, "after": HERE}, plan)
    assert len(made.before) == len(made.after) == 1
    assert made.ratio("rate").median > 0
    assert made.ratio("cpu").median > 0
    assert not list(tmp_path.iterdir())


def test_a_store_is_filled_and_read_as_it_was_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "SMALL_BYTES", 1 << 20)
    size = 4 << 20
    result = scale.measure(tmp_path, size, queues=8, in_a_row=32, rounds=1)
    assert size * 0.9 < result["log_bytes"] < size * 1.5
    assert result["pulls"]["big"][0]["pulls"] == 8
    assert result["memory"]["after start"]["private_mb"] > 5
    assert "big/small" in scale.text(result)
