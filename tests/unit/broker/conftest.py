"""Fixtures of the broker's unit tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.broker.harness import Bench


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Creates benches with given settings."""
    benches: list[Bench] = []

    def make(root: Path | None = None, **settings: object) -> Bench:
        bench = Bench(root or tmp_path / f"store-{len(benches)}", **settings)
        benches.append(bench)
        return bench

    yield make
    for bench in benches:
        bench.close()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """A bench with default settings."""
    return make_bench()
