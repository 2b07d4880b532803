"""Measurements whose figures nobody compares need no memory that is full."""

from __future__ import annotations

import pytest

from benchmarks import page_cache


@pytest.fixture(autouse=True)
def _memory_stays_free(monkeypatch: pytest.MonkeyPatch) -> None:
    # Filling it reads as many bytes as are free, which takes longer than these tests.
    monkeypatch.setattr(page_cache, "settle", lambda: None)
