"""A store's files are changed while it is open or before the start: a clear error each."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path

import pytest

from broker.store.engine import GetStatus, MessageStore, PutStatus
from broker.store.results import Ack, StoreError
from remoting.protocol.disk.files import Checkpoint
from tests.unit.broker.store.crashes import crash, log_files, overwrite, queue_file
from tests.unit.broker.store.stores import (
    LOG_FILE,
    FailingFiles,
    SettableClock,
    bodies,
    message,
    opened,
    small_config,
)


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return opened(tmp_path / "store")


# --- under a running broker


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_a_truncated_file_is_an_error_and_not_a_signal(store: MessageStore, kind: str) -> None:
    for number in range(10):
        store.put(message(b"%d" % number))
    store.put(message(queue_id=1))
    path = log_files(store)[0] if kind == "log" else queue_file(store)
    os.truncate(path, 0)
    result = store.put(message())
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "it was shortened to 0 bytes of" in result.message
    assert store.why_not_writable == result.message
    assert store.get("TopicTest", 0, 0, 10).status is not GetStatus.FOUND
    if kind == "log":
        assert not store.flush()
        assert store.get("TopicTest", 1, 0, 10).status is not GetStatus.FOUND
    store.close()
    assert store.paths.abort.exists()


def test_a_sync_finds_that_a_file_was_shortened(store: MessageStore) -> None:
    end = store.put(message()).end_offset
    os.truncate(log_files(store)[0], 0)
    outcomes: list[Ack] = []
    store.when_durable(end, outcomes.append)
    assert outcomes == [Ack.FLUSH_DISK_TIMEOUT]
    assert "it was shortened to 0 bytes of" in str(store.why_not_writable)
    store.close()


async def test_a_removed_file_stops_acknowledgements(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", flush_disk_type="SYNC_FLUSH")
    store.start(asyncio.get_running_loop())
    assert store.put(message()).status is PutStatus.OK
    log_files(store)[0].unlink()
    answer: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
    store.when_durable(store.put(message()).end_offset, answer.set_result)
    assert await asyncio.wait_for(answer, 10) is Ack.FLUSH_DISK_TIMEOUT
    refused = store.put(message())
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "it was removed while it was in use" in refused.message
    store.close()


# --- brought before a start


@pytest.fixture
def filled(store: MessageStore) -> MessageStore:
    """A store of five files, killed."""
    for number in range(30):
        store.put(message(b"%2d" % number + b"x" * 2000))
    store.flush()
    killed = crash(store)
    store.close()
    return killed


@pytest.mark.parametrize("believed", [True, False], ids=["with", "without"])
def test_swapped_files_are_refused_and_left_as_they_are(
    filled: MessageStore, believed: bool
) -> None:
    if not believed:
        filled.paths.own_checkpoint.unlink()
    first, second = log_files(filled)[1:3]
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    shutil.rmtree(filled.paths.consume_queues)
    with pytest.raises(StoreError, match=r"holds the records of \d+: it was swapped"):
        filled.open()
    assert (first.read_bytes(), second.read_bytes()) == contents[::-1]
    first.write_bytes(contents[0])
    second.write_bytes(contents[1])
    filled.open()
    assert len(bodies(filled)) == 30
    filled.close()


@pytest.mark.parametrize("believed", [True, False], ids=["with", "without"])
def test_a_copied_file_after_the_last_one_is_detected(filled: MessageStore, believed: bool) -> None:
    last = log_files(filled)[-1]
    copy = last.with_name(f"{int(last.name) + LOG_FILE:020d}")
    shutil.copy(last, copy)
    if believed:
        filled.open()
    else:
        filled.paths.own_checkpoint.unlink()
        with pytest.raises(StoreError, match="it was swapped or copied"):
            filled.open()
        copy.unlink()
        filled.open()
    assert len(bodies(filled)) == 30
    assert log_files(filled)[-1] == last
    filled.close()


def test_a_zeroed_file_costs_its_own_messages_alone(filled: MessageStore) -> None:
    shutil.rmtree(filled.paths.consume_queues)
    overwrite(filled, LOG_FILE, bytes(LOG_FILE))
    report = filled.open()
    assert report.damaged_records == 1
    numbers = [int(body[:2]) for body in bodies(filled)]
    assert numbers == [*range(7), *range(14, 30)]
    assert filled.put(message()).queue_offset == 30
    filled.close()


def test_a_checkpoint_from_the_future_keeps_no_torn_record(filled: MessageStore) -> None:
    filled.paths.checkpoint.write_bytes(Checkpoint(2**62, 2**62, 2**62).encode())
    last = log_files(filled)[-1]
    overwrite(filled, int(last.name) + 100, b"torn")
    filled.paths.own_checkpoint.unlink()
    filled.open()
    assert set(bodies(filled)) <= {b"%2d" % number + b"x" * 2000 for number in range(30)}
    assert filled.put(message()).status is PutStatus.OK
    filled.close()


def test_a_clock_that_went_back_costs_nothing(tmp_path: Path) -> None:
    clock = SettableClock()
    store = opened(tmp_path / "store", clock=clock)
    expected = []
    for number in range(30):
        if number == 10:
            clock.set_back(3600)
        expected.append(b"%2d" % number + b"x" * 2000)
        store.put(message(expected[-1]))
        clock.advance(0.1)
    store.flush()
    for knows in (True, False):
        found = crash(store)
        if not knows:
            found.paths.own_checkpoint.unlink()
        found.open()
        assert bodies(found) == expected
        found.close()
    store.close()


def test_a_file_of_another_owner_is_a_clear_error(tmp_path: Path) -> None:
    files = FailingFiles()
    store = opened(tmp_path / "store", files=files)
    store.put(message())
    store.close()
    path = log_files(store)[0]
    files.open_error = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    with pytest.raises(StoreError, match=rf"{path}: Permission denied\): check the owner"):
        store.open()


@pytest.mark.parametrize("where", ["", "commitlog", "consumequeue", "consumequeue/loop"])
def test_a_symlink_loop_is_a_clear_error(tmp_path: Path, where: str) -> None:
    link = tmp_path / "store" / where
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(link.name)
    store = MessageStore(small_config(tmp_path / "store"))
    if where == "consumequeue/loop":
        seed = opened(tmp_path / "seed")
        seed.put(message())
        seed.close()
        shutil.copytree(seed.paths.commit_log, store.paths.commit_log)
    with pytest.raises(StoreError, match="can't be opened"):
        store.open()
