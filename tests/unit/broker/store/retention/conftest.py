"""Fixtures of the retention tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.engine import MessageStore
from broker.store.limits import StoreLimits
from tests.support.clock import ManualClock
from tests.unit.broker.store.retention.forgetful import Disk, kept
from tests.unit.broker.store.stores import opened


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, disk: Disk, clock: ManualClock) -> Iterator[MessageStore]:
    store = opened(
        tmp_path,
        files=disk,
        clock=clock,
        retention=kept(),
        limits=StoreLimits(pressed_seconds=0.01),
    )
    yield store
    store.close()
