"""An aborted opening, at any point, costs only the time of the next one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.store.engine import MessageStore, RecoveryReport, StoreConfig
from broker.store.results import OpeningGivenUp, OpeningProgress, StoreError
from broker.store_start import open_store
from tests.unit.broker.store.crashes import crash, queue_file
from tests.unit.broker.store.stores import LOG_FILE, bodies, message, opened, small_config

SIDE_FILES = ("checkpoint", "pocketmq-checkpoint")


@pytest.fixture
def crashed(tmp_path: Path) -> MessageStore:
    """A store of a few files with two queues, one of which has lost its last file."""
    store = opened(tmp_path / "store")
    for number in range(200):
        store.put(message(b"%d" % number * 100, queue_id=number % 2))
    store.flush()
    left = crash(store)
    store.close()
    queue_file(left, 1000).unlink()
    return left


class GivenUp(OpeningProgress):
    """An opening that is aborted after its progress was read a number of times."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def check(self) -> None:
        self.looks -= 1
        if self.looks < 0:
            self.give_up()
        super().check()


@pytest.mark.parametrize("knows", [True, False])
def test_a_recovery_aborted_anywhere_is_completed_by_the_next_start(
    crashed: MessageStore, knows: bool
) -> None:
    if not knows:
        for name in SIDE_FILES:
            (crashed.paths.root / name).unlink()
    looks = 0
    while True:
        store = MessageStore(small_config(crashed.paths.root), progress=GivenUp(looks))
        try:
            store.open()
        except OpeningGivenUp:
            assert not store.readable
            assert (store.paths.root / "abort").exists()
        else:
            break
        looks += 1
    assert looks > 5
    assert not store.recovery.clean
    for queue_id in (0, 1):
        wanted = [b"%d" % number * 100 for number in range(200) if number % 2 == queue_id]
        assert bodies(store, queue_id=queue_id) == wanted
    store.close()


def test_a_store_whose_opening_was_aborted_stays_closed(crashed: MessageStore) -> None:
    crashed.progress.give_up()
    with pytest.raises(OpeningGivenUp, match="told to stop"):
        crashed.open()
    with pytest.raises(StoreError, match="is not open"):
        _ = crashed.log.end


class LateProgress(OpeningProgress):
    """Aborts nothing any more, because the opening was nearly complete."""

    def __init__(self) -> None:
        super().__init__()
        self.given_up = threading.Event()

    def give_up(self) -> None:
        self.given_up.set()


class Stubborn(MessageStore):
    """An opening that succeeds despite the abort."""

    def __init__(self, config: StoreConfig) -> None:
        self.late = LateProgress()
        super().__init__(config, progress=self.late)
        self.opening = threading.Event()

    def open(self, *, cut: int | None = None) -> RecoveryReport:
        self.opening.set()
        assert self.late.given_up.wait(10)
        return super().open(cut=cut)


async def test_a_store_that_opens_during_an_abort_is_closed_cleanly(tmp_path: Path) -> None:
    store = Stubborn(small_config(tmp_path / "store"))
    task = asyncio.ensure_future(open_store(store))
    await asyncio.to_thread(store.opening.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not store.readable
    assert not (tmp_path / "store" / "abort").exists()
    again = opened(tmp_path / "store")
    again.close()


class Watched(OpeningProgress):
    """An opening that continues after the first file only when its progress has been logged."""

    def __init__(self, logged: list[MutableMapping[str, Any]]) -> None:
        super().__init__()
        self.logged = logged

    def places(self) -> list[tuple[int, int]]:
        """Positions and ends behind the first file."""
        entries = [entry for entry in self.logged if entry.get("position", 0) > LOG_FILE]
        return [(entry["position"], entry["of"]) for entry in entries]

    def check(self) -> None:
        super().check()
        deadline = time.monotonic() + 10
        while self.position > LOG_FILE and not self.places() and time.monotonic() < deadline:
            time.sleep(0.001)


async def test_a_slow_opening_logs_its_progress(crashed: MessageStore) -> None:
    (crashed.paths.root / "pocketmq-checkpoint").unlink()
    with capture_logs() as logged:
        progress = Watched(logged)
        store = MessageStore(small_config(crashed.paths.root), progress=progress)
        await open_store(store, log_seconds=0.01)
        store.close()
    position, end = progress.places()[0]
    assert LOG_FILE < position < end
    assert end % LOG_FILE == 0
