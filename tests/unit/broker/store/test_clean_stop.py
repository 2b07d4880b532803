"""The record of a clean stop is used only by the next start on exactly the same files."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.store.checkpoint import decode, encode
from broker.store.engine import MessageStore, RecoveryReport, StoreError
from broker.store.limits import StoreLimits
from broker.store.os_files import Files, Region, Stamp
from tests.unit.broker.store.crashes import crash, forget, log_files, overwrite, queue_file
from tests.unit.broker.store.stores import (
    LOG_FILE,
    FailingFiles,
    bodies,
    message,
    opened,
    small_config,
)


class CountingFiles(Files):
    """A disk that records mapped files, and can hide file identities."""

    def __init__(self) -> None:
        self.mapped: list[Path] = []
        self.blind = False
        self.full = False

    def open_mapped(self, path: Path, size: int, *, create: bool) -> Region:
        self.mapped.append(path)
        return super().open_mapped(path, size, create=create)

    def stamp(self, path: Path | str) -> Stamp:
        return [0, 0, 0] if self.blind else super().stamp(path)

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().replace(path, data, backup=backup)


def fill(store: MessageStore, count: int = 40, size: int = 1000) -> None:
    """Put messages in three queues of two topics, over several log files."""
    for number in range(count):
        body = b"%d " % number + b"x" * size
        store.put(message(body, queue_id=number % 2))
        if number % 5 == 0:
            store.put(message(b"other", topic="Other"))
    store.flush()
    store.put(message(b"last"))


def reopen(store: MessageStore) -> RecoveryReport:
    return store.open()


def contents(store: MessageStore) -> list[list[bytes]]:
    return [bodies(store), bodies(store, queue_id=1), bodies(store, "Other")]


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    """A store that was stopped cleanly; ``before`` is what it had."""
    store = opened(tmp_path / "store")
    fill(store)
    store.close()
    return store


def long_way(store: MessageStore) -> list[list[bytes]]:
    """Return the store's contents after a full recovery."""
    root = store.paths.root.parent / "long-way"
    shutil.copytree(store.paths.root, root)
    forget(root / "pocketmq-checkpoint", "stop")
    other = opened(root)
    found = contents(other)
    other.close()
    return found


def test_a_start_after_a_clean_stop_reads_only_the_end_of_the_log(
    store: MessageStore,
) -> None:
    expected = long_way(store)
    report = reopen(store)
    assert (report.clean, report.quick, report.scanned_records) == (True, True, 1)
    assert (report.queues, report.cut_bytes, report.cut_entries) == (3, 0, 0)
    assert contents(store) == expected
    store.close()


def test_a_start_reads_little_after_a_burst(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(100):
        store.put(message(b"%d" % number))
    store.close()
    assert reopen(store).scanned_records == 1
    store.close()


def test_unused_queues_are_not_mapped(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(50):
        store.put(message(queue_id=number))
    store.close()
    files = CountingFiles()
    again = MessageStore(small_config(tmp_path), files=files)
    assert again.open().queues == 50
    assert [path.parent.name for path in files.mapped] == ["commitlog"]
    assert bodies(again, queue_id=49) == [b"hello"]
    assert len(files.mapped) == 2
    again.close()


def test_offsets_continue_after_a_clean_stop(store: MessageStore) -> None:
    for number in range(70):
        report = reopen(store)
        assert report.quick
        end = store.queries.max_offset("TopicTest", 0)
        assert store.put(message(b"%d" % number)).queue_offset == end
        assert store.put(message(b"new", topic="New")).queue_offset == number
        store.close()
    expected = long_way(store)
    assert reopen(store).quick
    assert contents(store) == expected
    store.close()


def test_a_stop_without_a_put_is_enough_too(store: MessageStore) -> None:
    expected = long_way(store)
    for _ in range(3):
        assert reopen(store).quick
        store.close()
    assert reopen(store).quick
    assert contents(store) == expected
    store.close()


def test_store_times_continue_from_the_last_message(store: MessageStore) -> None:
    reopen(store)
    last = store.queries.max_offset("TopicTest", 0) - 1
    stored = store.queries.store_time_at("TopicTest", 0, last)
    store.close()
    reopen(store)
    assert store.writer.last_store_ms == stored
    store.close()


def test_a_deleted_topic_stays_deleted(store: MessageStore) -> None:
    reopen(store)
    store.delete_topic("Other")
    store.close()
    assert reopen(store).quick
    assert store.queues.topics() == ["TopicTest"]
    store.close()


def test_an_open_store_has_no_clean_stop_record(store: MessageStore) -> None:
    assert "stop" in decode(store.paths.own_checkpoint.read_bytes())
    reopen(store)
    assert "stop" not in decode(store.paths.own_checkpoint.read_bytes())
    store.put(message(b"after"))
    crashed = crash(store)
    report = crashed.open()
    assert (report.clean, report.quick) == (False, False)
    assert bodies(crashed)[-1] == b"after"
    crashed.close()
    store.close()


def test_a_crash_is_detected_despite_a_clean_stop_record(store: MessageStore) -> None:
    left = store.paths.own_checkpoint.read_bytes()
    reopen(store)
    store.put(message(b"after"))
    store.paths.own_checkpoint.write_bytes(left)
    crashed = crash(store)
    assert not crashed.open().quick
    assert bodies(crashed)[-1] == b"after"
    assert "stop" not in decode(crashed.paths.own_checkpoint.read_bytes())
    crashed.close()
    store.close()


def test_a_copied_store_is_recovered_in_full(store: MessageStore) -> None:
    expected = long_way(store)
    copy = store.paths.root.parent / "copy"
    shutil.copytree(store.paths.root, copy)
    other = MessageStore(small_config(copy))
    assert not other.open().quick
    assert contents(other) == expected
    other.close()


def test_writes_of_another_broker_in_between_are_detected(store: MessageStore) -> None:
    left = store.paths.own_checkpoint.read_bytes()
    reopen(store)
    store.put(message(b"between"))
    store.close()
    # Another one than ours would not have touched it.
    store.paths.own_checkpoint.write_bytes(left)
    report = reopen(store)
    assert (report.clean, report.quick) == (True, False)
    assert bodies(store)[-1] == b"between"
    store.close()


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    shutil.copy2(path, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def change(path: Path) -> None:
    status = path.stat()
    with path.open("r+b") as file:
        file.write(file.read(1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("act", [remove, replace, change])
@pytest.mark.parametrize("which", ["first of the log", "last of the log", "last of a queue"])
def test_a_file_removed_replaced_or_changed_is_noticed(
    store: MessageStore, which: str, act: Callable[[Path], None]
) -> None:
    logs = log_files(store)
    path = {
        "first of the log": logs[0],
        "last of the log": logs[-1],
        "last of a queue": queue_file(store),
    }[which]
    act(path)
    assert not reopen(store).quick
    store.close()


def test_an_added_or_removed_queue_is_noticed(store: MessageStore) -> None:
    topic = store.paths.consume_queues / "TopicTest"
    shutil.rmtree(topic / "1")
    assert not reopen(store).quick
    store.close()
    shutil.copytree(topic / "0", topic / "7")
    assert not reopen(store).quick
    # A lost queue is rebuilt; an added one belongs to no topic, and stays.
    assert store.queues.queue_ids("TopicTest") == [0, 1, 7]
    store.close()


@pytest.mark.parametrize("damage", [b"", b"{}", encode({}), encode({"format": 2}), b"\xff" * 99])
def test_what_cannot_be_read_is_ignored(store: MessageStore, damage: bytes) -> None:
    expected = long_way(store)
    store.paths.own_checkpoint.write_bytes(damage)
    assert not reopen(store).quick
    assert contents(store) == expected
    store.close()


def test_a_flipped_bit_is_noticed(store: MessageStore) -> None:
    data = bytearray(store.paths.own_checkpoint.read_bytes())
    data[len(data) // 2] ^= 1
    store.paths.own_checkpoint.write_bytes(data)
    assert not reopen(store).quick
    store.close()


def blind(store: MessageStore) -> MessageStore:
    """The same store on a disk without file identities."""
    files = CountingFiles()
    files.blind = True
    return MessageStore(small_config(store.paths.root), files=files)


def test_the_end_of_the_log_is_always_read(store: MessageStore) -> None:
    store = blind(store)
    store.open()
    fill(store)
    end = store.log.end
    store.close()
    overwrite(store, end - 20, b"!")
    report = store.open()
    assert not report.quick
    assert store.log.end < end
    store.close()


def test_a_record_after_the_end_is_always_noticed(store: MessageStore) -> None:
    store = blind(store)
    store.open()
    store.put(message(b"one"))
    begin = store.log.end
    store.close()
    left = store.paths.own_checkpoint.read_bytes()
    assert store.open().quick
    store.put(message(b"two"))
    assert store.log.end > begin
    store.close()
    store.paths.own_checkpoint.write_bytes(left)
    assert not store.open().quick
    assert bodies(store)[-2:] == [b"one", b"two"]
    store.close()


def test_another_file_size_is_refused_as_ever(store: MessageStore) -> None:
    with pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
        MessageStore(
            small_config(store.paths.root, mapped_file_size_commit_log=2 * LOG_FILE)
        ).open()
    assert reopen(store).quick
    store.close()


def test_a_stop_saves_no_checkpoint_while_an_entry_is_missing(store: MessageStore) -> None:
    reopen(store)
    queue = store.queues.get_or_create("TopicTest", 0)
    queue.next_offset += 1
    store.close()
    assert "stop" not in decode(store.paths.own_checkpoint.read_bytes())
    report = reopen(store)
    assert (report.clean, report.quick) == (True, False)
    store.close()


def test_a_stop_that_cannot_save_the_checkpoint_is_still_clean(tmp_path: Path) -> None:
    files = CountingFiles()
    store = opened(tmp_path, files=files)
    store.put(message())
    files.full = True
    store.close()
    files.full = False
    report = store.open()
    assert (report.clean, report.quick) == (True, False)
    assert bodies(store) == [b"hello"]
    store.close()


def test_a_stop_syncs_many_queues_together(tmp_path: Path) -> None:
    files = FailingFiles()
    limits = StoreLimits(queues_synced_together=50)
    store = opened(tmp_path, files=files, limits=limits)
    for number in range(49):
        store.put(message(topic=f"topic{number}"))
    store.flush()
    assert sum(path.parts[-3].startswith("topic") for path in files.syncs) >= 49
    for number in range(100):
        store.put(message(topic=f"topic{number}"))
    files.syncs.clear()
    store.close()
    assert tmp_path / "consumequeue" in files.syncs
    assert not [path for path in files.syncs if "topic" in str(path)]
    assert store.open().quick
    assert [len(bodies(store, f"topic{number}")) for number in (0, 99)] == [2, 1]
    store.close()


def test_a_stop_whose_sync_of_many_queues_fails_is_not_clean(tmp_path: Path) -> None:
    files = FailingFiles()

    def fail(path: Path) -> None:
        if path.name == "consumequeue":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    files.on_sync = fail
    store = opened(tmp_path, files=files, limits=StoreLimits(queues_synced_together=2))
    for number in range(3):
        store.put(message(topic=f"topic{number}"))
    store.close()
    files.on_sync = lambda _: None
    assert not store.open().clean
    assert [bodies(store, f"topic{number}") for number in range(3)] == [[b"hello"]] * 3
    store.close()


def test_an_empty_store_is_started_either_way(tmp_path: Path) -> None:
    opened(tmp_path).close()
    store = MessageStore(small_config(tmp_path))
    assert store.open().clean
    store.put(message())
    store.close()
