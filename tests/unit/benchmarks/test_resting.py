"""Loads that are measured until their broker is idle again."""

from __future__ import annotations

import pytest

from benchmarks import resting
from benchmarks.before_after import LOADS
from benchmarks.tools import Target


def test_cpu_time_after_a_load_counts_for_the_measured_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([10.0, 10.3])
    monkeypatch.setattr(resting, "cpu_seconds", lambda _: next(clock))
    monkeypatch.setattr(resting, "rest", lambda *_: None)
    monkeypatch.setattr(resting.tools, "load", lambda *_, **__: {"n": 100_000.0, "cpu_us_per": 8.0})
    target = Target(nameserver="", broker="", pid=1)
    figures = resting.load(LOADS["send-4x64"], target, seconds=2.0, warm=1.0)
    assert figures["cpu_us_at_once"] == 8.0
    assert figures["cpu_us_per"] == pytest.approx(10.0)
