"""After a start that had to walk over much, the next one need not, however soon it comes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.store import flush
from broker.store.limits import FIRST_TURNS
from broker.store.message_store import MessageStore
from broker.store.safe_point import SafePoint, SafePointFile
from tests.unit.broker.store.crashes import crash
from tests.unit.broker.store.stores import bodies, message, opened, small_config

NEVER_MS = 3_600_000
MESSAGES = 100


@pytest.fixture
def crashed(tmp_path: Path) -> MessageStore:
    """A store that was killed before it had a safe point, which will not take a turn by itself."""
    store = opened(tmp_path / "store")
    for number in range(MESSAGES):
        store.put(message(b"%d" % number))
    left = crash(store)
    store.close()
    return MessageStore(small_config(left.paths.root, flush_interval_consume_queue_ms=NEVER_MS))


async def test_a_safe_point_is_made_at_once_when_much_was_walked_over(
    crashed: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "SAFE_POINT_BYTES", 1000)
    loop = asyncio.get_running_loop()
    written: asyncio.Future[SafePoint] = loop.create_future()
    real = SafePointFile.write

    def write(self: SafePointFile, point: SafePoint) -> None:
        real(self, point)
        if point.end == crashed.end_offset and not written.done():
            loop.call_soon_threadsafe(written.set_result, point)

    assert crashed.open().scanned_records == MESSAGES
    monkeypatch.setattr(SafePointFile, "write", write)
    crashed.start(loop)
    point = await asyncio.wait_for(written, 10)
    assert point.numbers == {"TopicTest": {0: MESSAGES}}

    again = crash(crashed)
    crashed.close()
    report = again.open()
    assert not report.clean
    assert report.scanned_records <= 1
    assert len(bodies(again)) == MESSAGES
    again.close()


async def test_a_disk_that_refuses_it_is_not_asked_for_ever(
    crashed: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "SAFE_POINT_BYTES", 1000)
    monkeypatch.setattr(flush, "FIRST_TURN_SECONDS", 0.001)
    loop = asyncio.get_running_loop()
    crashed.open()
    turns = 0
    enough = asyncio.Event()
    flusher = crashed._opened().queue_flusher

    def turn() -> None:
        nonlocal turns
        turns += 1
        if turns == FIRST_TURNS:
            loop.call_soon_threadsafe(enough.set)

    monkeypatch.setattr(flusher, "turn", turn)
    crashed.start(loop)
    await asyncio.wait_for(enough.wait(), 10)
    crashed.close()
    assert turns == FIRST_TURNS
