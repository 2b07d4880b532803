"""The disk's own latency, and how the broker's share is computed from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.store import sync
from benchmarks.store.sync import RECORD_BYTES, Appender, Row


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "FILE_BYTES", 1 << 20)


def row(p50: float, each: float) -> Row:
    return {"n": 10, "p50_us": p50, "p99_us": 2 * p50, "syncs_per_message": each}


RESULTS = {
    "disk": [{"n": 10, "p50_us": p50, "p99_us": 900.0} for p50 in (100.0, 200.0, 300.0)],
    "broker": [row(250, 1.0), row(360, 1.0), row(700, 1.0)],
    "many": [row(900, 0.01), row(900, 0.02), row(900, 0.5)],
}


def test_each_append_is_a_record_after_the_last_one(tmp_path: Path) -> None:
    with sync.by_write(tmp_path / "file") as append:
        figures = Appender(append).run(0.1)
    content = (tmp_path / "file").read_bytes()
    assert len(content) == 1 << 20
    assert content.count(b"x") == RECORD_BYTES * min(int(figures["n"]), 1024)
    assert 0 < figures["p50_us"] <= figures["p99_us"]


def test_the_difference_is_taken_within_a_round() -> None:
    assert sync.added(RESULTS) == (160.0, 150.0, 400.0)
    assert sync.shared(RESULTS, "many") == (0.02, 0.01, 0.5)


def test_each_bar_stands_beside_its_figure() -> None:
    lines = sync.text(RESULTS).splitlines()
    assert lines[-2:] == [
        "broker p50 - disk p50, us: 160 <= 200: yes",
        "syncs per message at 4 x 64: 0.02 <= 0.1: yes",
    ]
    late = {**RESULTS, "broker": [row(1000, 1.0)] * 3}
    assert "800 <= 200: NO" in sync.text(late)
