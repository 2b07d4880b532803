"""An opening that is given up, wherever it was, costs nothing but the time of the next one."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker import store_start
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


def given_up_after(looks: int, monkeypatch: pytest.MonkeyPatch) -> OpeningProgress:
    """A progress that is given up once it has been looked at so often."""
    progress, real, count = OpeningProgress(), OpeningProgress.look, 0

    def look(self: OpeningProgress) -> None:
        nonlocal count
        count += 1
        if count > looks:
            self.give_up()
        real(self)

    monkeypatch.setattr(OpeningProgress, "look", look)
    return progress


@pytest.mark.parametrize("knows", [True, False])
def test_a_recovery_given_up_anywhere_is_done_by_the_next_one(
    crashed: MessageStore, monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    if not knows:
        for name in SIDE_FILES:
            (crashed.paths.root / name).unlink()
    looks = 0
    while True:
        with monkeypatch.context() as patch:
            given_up_after(looks, patch)
            store = MessageStore(small_config(crashed.paths.root))
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


def test_a_store_that_was_given_up_stays_closed(crashed: MessageStore) -> None:
    crashed.give_up_opening()
    with pytest.raises(OpeningGivenUp, match="told to stop"):
        crashed.open()
    with pytest.raises(StoreError, match="is not open"):
        _ = crashed.end_offset


class Stubborn(MessageStore):
    """Opens all the same when it is given up, as one does that was nearly done."""

    def __init__(self, config: StoreConfig) -> None:
        super().__init__(config)
        self.opening = threading.Event()
        self.given_up = threading.Event()

    def open(self) -> RecoveryReport:
        self.opening.set()
        assert self.given_up.wait(10)
        return super().open()

    def give_up_opening(self) -> None:
        self.given_up.set()


async def test_a_store_that_opened_while_it_was_given_up_is_closed_cleanly(tmp_path: Path) -> None:
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


async def test_an_opening_that_takes_long_is_told_of(
    crashed: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()
    real = OpeningProgress.look

    def look(self: OpeningProgress) -> None:
        real(self)
        if self is crashed.progress and self.position > LOG_FILE:
            assert told.wait(10)

    def tell(_: str, **facts: int) -> None:
        if facts.get("position", 0) > LOG_FILE:
            places.append((facts["position"], facts["of"]))
            told.set()

    places: list[tuple[int, int]] = []
    monkeypatch.setattr(OpeningProgress, "look", look)
    monkeypatch.setattr(store_start, "TELL_SECONDS", 0.01)
    monkeypatch.setattr(store_start, "_log", SimpleNamespace(info=tell, warning=tell))
    (crashed.paths.root / "pocketmq-checkpoint").unlink()
    await open_store(crashed)
    crashed.close()
    position, end = places[0]
    assert LOG_FILE < position < end
    assert end % LOG_FILE == 0
