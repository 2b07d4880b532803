"""A store is opened by one broker at a time, and only with its file sizes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker.store.engine import GetStatus, MessageStore, PutStatus, StoreError
from broker.store.results import Ack
from tests.unit.broker.store.stores import (
    LOG_FILE,
    QUEUE_FILE,
    bodies,
    message,
    open_files,
    opened,
    small_config,
)


def test_a_second_broker_on_a_store_is_refused_with_a_remedy(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(StoreError, match=r"another broker has the store .* open: stop that one"):
        MessageStore(small_config(tmp_path)).open()
    store.put(message())
    store.close()
    second = opened(tmp_path)
    assert bodies(second) == [b"hello"]
    second.close()


def test_a_broker_of_another_process_is_seen_too(tmp_path: Path) -> None:
    store = opened(tmp_path)
    # What a JVM's tryLock of the first byte comes to.
    script = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)\n"
        "except BlockingIOError: print('held')\n"
    )
    command = [sys.executable, "-c", script, str(store.paths.lock)]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"held\n"
    store.close()
    assert subprocess.run(command, capture_output=True, check=True).stdout == b""


def test_a_lock_of_another_process_is_respected(tmp_path: Path) -> None:
    script = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'w+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX, 1)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(StoreError, match="another broker"):
            MessageStore(small_config(tmp_path)).open()
        other.communicate()
    opened(tmp_path).close()


def test_another_file_size_is_refused_with_the_key_to_set(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message())
    store.close()
    with pytest.raises(StoreError) as refused:
        MessageStore(small_config(tmp_path, mapped_file_size_commit_log=2 * LOG_FILE)).open()
    text = str(refused.value)
    assert "commitlog/00000000000000000000" in text
    assert f"{LOG_FILE} bytes" in text
    assert f"mappedFileSizeCommitLog is {2 * LOG_FILE}" in text
    assert f"set mappedFileSizeCommitLog={LOG_FILE}" in text
    with pytest.raises(StoreError, match=f"set mappedFileSizeConsumeQueue={QUEUE_FILE}"):
        MessageStore(small_config(tmp_path, mapped_file_size_consume_queue=4000)).open()
    # The lock is free again, and the store is as it was.
    store.open()
    assert bodies(store) == [b"hello"]
    store.close()


def test_a_refused_start_leaves_no_trace_of_a_crash(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message())
    store.close()
    with pytest.raises(StoreError):
        MessageStore(small_config(tmp_path, mapped_file_size_commit_log=2 * LOG_FILE)).open()
    assert not store.paths.abort.exists()


def test_a_missing_log_file_in_the_middle_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for _ in range(30):
        store.put(message(b"x" * 2000))
    store.close()
    names = sorted(store.paths.commit_log.iterdir())
    names[1].unlink()
    with pytest.raises(StoreError, match="has no file between"):
        store.open()


@pytest.mark.parametrize("in_the_way", ["store", "", "store/commitlog", "store/consumequeue"])
def test_a_file_where_a_directory_should_be_is_refused(tmp_path: Path, in_the_way: str) -> None:
    root = tmp_path / "outer" / "store"
    file = tmp_path / "outer" / in_the_way
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("a file")
    with pytest.raises(StoreError, match=r"can't be opened .* a file stands where a directory"):
        MessageStore(small_config(root)).open()


def test_a_lock_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(StoreError, match=r"can't be opened .* check the owner"):
        MessageStore(small_config(tmp_path)).open()


def test_a_file_without_its_length_after_a_crash_is_replaced(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message())
    store.close()
    (store.paths.commit_log / f"{LOG_FILE:020d}").touch()
    (store.paths.consume_queues / "TopicTest" / "0" / f"{QUEUE_FILE:020d}").touch()
    store.paths.abort.touch()
    store.open()
    assert bodies(store) == [b"hello"]
    store.close()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message())
    store.close()
    strangers = [
        store.paths.commit_log / "notes.txt",
        store.paths.consume_queues / "..hidden" / "0" / "x",
        store.paths.consume_queues / "TopicTest" / "backup" / "x",
        store.paths.root / "abort.bak",
    ]
    for path in strangers:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("mine")
    store.open()
    store.close()
    assert all(path.read_text() == "mine" for path in strangers)


def test_a_damaged_checkpoint_is_no_obstacle(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message())
    store.close()
    store.paths.checkpoint.write_bytes(b"short")
    store.open()
    assert bodies(store) == [b"hello"]
    store.close()


def test_queues_without_any_log_are_destroyed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message())
    store.close()
    for path in store.paths.commit_log.iterdir():
        path.unlink()
    store.open()
    assert store.queues.topics() == []
    assert store.put(message(b"new")).queue_offset == 0
    assert bodies(store) == [b"new"]
    store.close()


def test_the_log_may_lie_elsewhere(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", commit_log_path=tmp_path / "fast" / "log")
    store.put(message())
    assert [path.name for path in (tmp_path / "fast" / "log").iterdir()] == ["0" * 20]
    store.close()


def test_the_abort_file_marks_a_store_in_use(tmp_path: Path) -> None:
    store = MessageStore(small_config(tmp_path))
    assert store.open().clean
    assert store.paths.abort.exists()
    store.close()
    assert not store.paths.abort.exists()


def test_a_closed_store_refuses_messages_and_reads(tmp_path: Path) -> None:
    store = MessageStore(small_config(tmp_path))
    for _ in range(2):
        assert not store.readable
        assert not store.writable
        for result in (store.put(message()), store.put_batch([message()])):
            assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
            assert "is not open" in result.message
        with pytest.raises(StoreError, match="is not open"):
            store.get("TopicTest", 0, 0, 1)
        results: list[Ack] = []
        store.when_durable(1, results.append)
        assert results == [Ack.FLUSH_DISK_TIMEOUT]
        store.open()
        assert store.readable
        assert store.writable
        store.close()
        store.close()


def test_a_store_is_opened_once(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(StoreError, match="open already"):
        store.open()
    store.close()


def test_a_closed_store_closes_its_descriptors(tmp_path: Path) -> None:
    for _ in range(3):
        store = opened(tmp_path)
        for number in range(100):
            store.put(message(b"x" * 1000, queue_id=number % 5))
        store.log.prepare_next()
        store.close()
        assert open_files(tmp_path) == []


def test_an_empty_store_opens_and_closes(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.get("TopicTest", 0, 0, 1).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert (store.log.start, store.log.end) == (0, 0)
    store.close()
    store.open()
    store.close()
