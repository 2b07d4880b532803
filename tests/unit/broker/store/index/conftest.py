"""Fixtures of the tests of the message index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.engine import MessageStore
from remoting.protocol import core
from tests.support.core import LACKING
from tests.unit.broker.store.index.indexed import SMALL
from tests.unit.broker.store.stores import SettableClock, opened


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def store(tmp_path: Path, clock: SettableClock) -> Iterator[MessageStore]:
    store = opened(tmp_path / "store", clock=clock, **SMALL)
    yield store
    # A failed test must leave no thread to the tests that count threads.
    store.close()


@pytest.fixture(params=["python", "compiled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both implementations of reading keys from the log."""
    if request.param == "compiled" and LACKING:
        pytest.skip(LACKING)
    monkeypatch.setattr(core, "KIND", request.param)
    return str(request.param)
