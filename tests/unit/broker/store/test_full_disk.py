"""A full disk makes the store read-only with a clear error until there is space."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.store.disk_state import DiskState
from broker.store.engine import MessageStore, PutStatus, StoreError
from broker.store.os_files import Files
from tests.support.clock import ManualClock
from tests.unit.broker.store.simulated_disk import ROOT, SimulatedDisk
from tests.unit.broker.store.stores import LIMITS, FailingFiles, bodies, message, opened


@pytest.fixture
def files() -> FailingFiles:
    return FailingFiles()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, files: FailingFiles, clock: ManualClock) -> Iterator[MessageStore]:
    store = opened(tmp_path, files=files, clock=clock, mapped_file_size_commit_log=1024 * 1024)
    yield store
    files.full = False
    store.close()


def fill(store: MessageStore) -> int:
    """Put until the store refuses; return the number of messages stored."""
    for count in range(10_000):
        if store.put(message(b"x" * 3000)).status is not PutStatus.OK:
            return count
    raise AssertionError("the disk never ran full")


@pytest.mark.parametrize("where", ["commitlog", "consumequeue"])
def test_a_full_disk_refuses_with_path_and_free_space_and_loses_nothing(
    store: MessageStore, files: FailingFiles, clock: ManualClock, where: str
) -> None:
    store.put(message(b"before"))
    files.full, files.full_for = True, where
    # What has been allocated is still filled.
    stored = fill(store) + 1
    refused = store.put(message())
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "no space left to write" in refused.message
    assert where in refused.message
    assert "12345 bytes free" in refused.message
    assert store.why_not_writable == refused.message
    assert not store.writable
    assert len(bodies(store)) == stored
    assert store.queries.max_offset("TopicTest", 0) == stored


def test_a_batch_is_refused_as_a_whole(
    store: MessageStore, files: FailingFiles, clock: ManualClock
) -> None:
    files.full, files.full_for = True, "consumequeue"
    assert store.put_batch([message()] * 3).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.log.end == 0
    files.full = False
    clock.advance(2)
    assert store.put_batch([message()] * 3).status is PutStatus.OK
    assert len(bodies(store)) == 3


def test_a_store_recovers_when_there_is_space_and_tries_once_a_second(
    store: MessageStore, files: FailingFiles, clock: ManualClock
) -> None:
    files.full = True
    assert store.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    files.full = False
    assert store.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    clock.advance(1.01)
    assert store.put(message(b"healed")).status is PutStatus.OK
    assert store.writable
    assert bodies(store) == [b"healed"]


def test_a_store_recovers_without_a_put(tmp_path: Path, files: FailingFiles) -> None:
    store = opened(tmp_path, files=files)
    files.full = True
    assert store.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    for _ in range(3):
        assert store.preallocator.try_step() is False
        assert not store.writable
    files.full = False
    store.preallocator.try_step()
    assert store.writable
    store.close()


def test_a_run_ahead_that_finds_the_disk_full_leaves_it_to_the_appender(
    tmp_path: Path, files: FailingFiles
) -> None:
    files.free = 10**12
    store = opened(tmp_path, files=files)
    store.put(message())
    files.full = True
    assert store.preallocator.try_step() is False
    assert store.writable
    assert store.put(message()).status is PutStatus.OK
    fill(store)
    assert not store.writable
    files.full = False
    store.close()


async def test_the_threads_make_a_store_writable_again(tmp_path: Path, files: FailingFiles) -> None:
    files.full = True
    store = opened(tmp_path, files=files)
    store.start(asyncio.get_running_loop())
    assert store.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    files.full = False
    async with asyncio.timeout(20):
        while not store.writable:  # noqa: ASYNC110 - a thread does it
            await asyncio.sleep(0.01)
    assert store.put(message()).status is PutStatus.OK
    store.close()


def test_a_full_disk_survives_a_restart(tmp_path: Path, files: FailingFiles) -> None:
    store = opened(tmp_path, files=files)
    files.full, files.full_for = True, "commitlog"
    stored = fill(store)
    files.full = False
    store.close()
    store.open()
    assert len(bodies(store)) == stored
    store.close()


@pytest.mark.parametrize("known", [True, False], ids=["safe point", "no safe point"])
@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_store_that_was_killed_on_a_full_disk_opens_and_is_read_only(
    mode: str, known: bool, clock: ManualClock
) -> None:
    # A file of the queue takes more than one block, and has one when the disk is full.
    more: dict[str, Any] = {
        "flush_disk_type": mode,
        "mapped_file_size_consume_queue": 20_000,
        "clock": clock,
    }
    disk = SimulatedDisk(Random(1))
    disk.kept = 1.0
    store = opened(ROOT, files=disk, **more)
    store.put(message(b"x" * 3000))
    store.flush()
    # The disk has these, but their queue has no entries yet when the process is killed.
    count = 1
    disk.full = True
    while store.put(message(b"x" * 3000)).status is PutStatus.OK:
        count += 1
    assert store.syncer.log.sync()
    if not known:
        disk.remove(store.paths.own_checkpoint)
    killed = disk.cut()
    killed.full = True
    again = opened(ROOT, files=killed, **more)
    assert len(bodies(again)) == count > 1
    while (refused := again.put(message(b"x" * 3000))).status is PutStatus.OK:
        count += 1
    assert "no space left to write" in refused.message
    again.flush()
    assert len(bodies(again)) == count
    # Killed once more, with the safe point of two lives ago.
    killed = killed.cut()
    third = opened(ROOT, files=killed, **more)
    assert len(bodies(third)) == count
    assert third.put(message()).queue_offset == count
    third.close()


def test_a_disk_that_fails_at_the_start_for_another_reason_is_a_clear_error() -> None:
    disk = SimulatedDisk(Random(1))
    disk.kept = 1.0
    store = opened(ROOT, files=disk, flush_disk_type="SYNC_FLUSH")
    store.put(message())
    assert store.syncer.log.sync()

    killed = disk.cut()
    killed.faults = {"create": 1.0}
    with pytest.raises(StoreError, match=r"can't be opened .*Input/output error"):
        opened(ROOT, files=killed, flush_disk_type="SYNC_FLUSH")


def test_a_disk_that_is_full_at_the_start_is_a_clear_error(
    tmp_path: Path, files: FailingFiles
) -> None:
    store = opened(tmp_path, files=files)
    store.put(message())
    store.close()
    store.paths.abort.touch()
    for path in (store.paths.consume_queues / "TopicTest" / "0").iterdir():
        path.unlink()
    files.full = True
    with pytest.raises(StoreError, match=r"can't be opened .*No space left.* free space"):
        store.open()
    files.full = False
    assert not store.open().clean
    assert bodies(store) == [b"hello"]
    store.close()


# --- what the log says


def test_the_log_reports_once_that_the_store_is_read_only_and_once_that_it_is_writable(
    store: MessageStore, files: FailingFiles, clock: ManualClock
) -> None:
    for _ in range(2):
        with capture_logs() as logs:
            files.full = True
            fill(store)
            for _ in range(5):
                # Each of them is tried, and finds the disk full.
                clock.advance(1.01)
                refused = store.put(message())
        (logged,) = logs
        assert (logged["log_level"], logged["event"]) == ("error", "the store takes no messages")
        assert "no space left to write" in logged["reason"]
        assert logged["reason"].endswith("free some space and it resumes by itself")
        assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
        with capture_logs() as logs:
            files.full = False
            clock.advance(1.01)
            for _ in range(3):
                assert store.put(message()).status is PutStatus.OK
        assert logs == [{"log_level": "info", "event": "the store takes messages again"}]


def test_the_log_reports_that_a_disk_is_too_full_and_that_it_has_space(clock: ManualClock) -> None:
    disk = DiskState(Files(), clock, LIMITS)
    with capture_logs() as logs:
        for sentence in ("91.0% full", "91.5% full", None, None):
            disk.measured(sentence)
    assert [(log["log_level"], log.get("reason")) for log in logs] == [
        ("error", "91.0% full"),
        ("info", None),
    ]


def test_the_log_says_why_only_a_restart_helps_even_if_nothing_was_taken_before(
    tmp_path: Path, clock: ManualClock
) -> None:
    disk = DiskState(Files(), clock, LIMITS)
    with capture_logs() as logs:
        disk.refused(tmp_path / "file", OSError(errno.ENOSPC, "No space left on device"))
        disk.sync_failed(tmp_path / "log", OSError(errno.EIO, "Input/output error"))
        disk.sync_failed(tmp_path / "log", OSError(errno.EIO, "Input/output error"))
        disk.accepted()
    assert [log["log_level"] for log in logs] == ["error", "error"]
    assert "failed to sync" in logs[1]["reason"]
    assert logs[1]["reason"].endswith("check the disk, then restart the broker")


def test_the_log_reports_that_a_thread_died(clock: ManualClock) -> None:
    disk = DiskState(Files(), clock, LIMITS)
    with capture_logs() as logs:
        disk.thread_died("store-index", RuntimeError("a fault of ours"))
    (logged,) = logs
    assert logged["log_level"] == "error"
    assert logged["reason"].endswith("restart the broker and report this")


def test_other_disk_errors_are_reported_as_they_are(tmp_path: Path, clock: ManualClock) -> None:
    disk = DiskState(Files(), clock, LIMITS)
    sentence = disk.refused(tmp_path / "file", OSError(errno.EIO, "Input/output error"))
    assert "Input/output error" in sentence
    assert "bytes free" in sentence
    gone = disk.refused(tmp_path / "gone" / "file", OSError(errno.ENOSPC, "No space left"))
    assert "free space unknown" in gone
    assert not disk.may_try()
    clock.advance(5)
    assert disk.may_try()


def test_a_final_failure_is_not_replaced_by_a_later_one(tmp_path: Path, clock: ManualClock) -> None:
    disk = DiskState(Files(), clock, LIMITS)
    disk.sync_failed(tmp_path / "log", OSError(errno.EIO, "Input/output error"))
    trouble = disk.trouble
    assert trouble is not None
    assert "failed to sync" in trouble
    assert disk.refused(tmp_path / "file", OSError(errno.ENOSPC, "full")) == trouble
    disk.accepted()
    clock.advance(100)
    assert (disk.trouble, disk.may_try()) == (trouble, False)


def test_nothing_is_allocated_ahead_of_a_store_that_has_failed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    disk = store.disk
    disk.sync_failed(tmp_path, OSError(errno.EIO, "Input/output error"))
    assert store.preallocator.try_step() is False
    assert store.put(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    store.close()
    assert store.paths.abort.exists()
    opened(tmp_path).close()
