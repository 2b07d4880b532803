"""Messages found after the last sync are synced: at once, or with the first flush."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.store.engine import MessageStore, PutStatus
from tests.unit.broker.store.crashes import crash, log_files
from tests.unit.broker.store.stores import LOG_FILE, FailingFiles, message, opened


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return opened(tmp_path / "store")


def restarted(store: MessageStore, files: FailingFiles, **changes: Any) -> MessageStore:
    """Another broker on the files that a kill leaves."""
    config = replace(crash(store).config, **changes)
    again = MessageStore(config, files=files)
    again.open()
    return again


def test_messages_visible_after_a_start_in_sync_mode_are_on_the_disk(store: MessageStore) -> None:
    for _ in range(30):
        store.put(message(b"x" * 2000))
    files = FailingFiles()
    again = restarted(store, files, flush_disk_type="SYNC_FLUSH")
    assert set(log_files(again)) <= set(files.syncs)
    again.close()
    store.close()


def test_in_async_mode_found_messages_are_rewritten_and_synced_by_the_first_flush(
    store: MessageStore,
) -> None:
    """After a sync that failed the system may take pages for written that are not."""
    for _ in range(30):
        store.put(message(b"x" * 2000))
    files = FailingFiles()
    again = restarted(store, files)
    end = again.put(message(b"new")).end_offset
    assert not set(log_files(again)) & set(files.syncs)
    written: list[Path] = []
    files.on_write = written.append
    flusher = again.syncer.log
    assert flusher.flushed == 0
    assert flusher.sync()
    assert flusher.flushed == end
    assert set(log_files(again)) <= set(files.syncs) & set(written)
    written.clear()
    again.put(message(b"newer"))
    assert flusher.sync()
    assert not set(log_files(again)) & set(written)
    again.close()
    store.close()


def test_a_clean_stop_soon_after_a_kill_makes_the_next_start_quick(store: MessageStore) -> None:
    for _ in range(30):
        store.put(message(b"x" * 2000))
    again = restarted(store, FailingFiles())
    again.close()
    report = again.open()
    assert (report.quick, report.scanned_records) == (True, 1)
    again.close()
    store.close()


def test_rewriting_found_messages_is_retried_on_a_full_disk(
    store: MessageStore,
) -> None:
    store.put(message())
    files = FailingFiles()
    again = restarted(store, files)
    files.full = True
    flusher = again.syncer.log
    assert not flusher.sync()
    result = again.put(message())
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "no space left" in result.message
    files.full = False
    assert flusher.sync()
    assert flusher.flushed == again.log.end
    again.close()
    store.close()


def test_a_log_that_is_shortened_before_it_was_written_again_ends_the_writing(
    store: MessageStore,
) -> None:
    store.put(message())
    again = restarted(store, FailingFiles())
    os.truncate(log_files(again)[0], LOG_FILE // 2)
    assert not again.syncer.log.sync()
    result = again.put(message())
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "failed to sync" in result.message
    again.close()
    store.close()
