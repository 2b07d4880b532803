"""A whole store is read while its broker writes it; other directories are refused."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.engine import MessageStore
from broker.store.log_view import Damage, LogEnd
from broker.store.raw_files import ViewLimits
from broker.store.results import StoreError
from broker.storetools.view import QueueRange, StoreView
from remoting.protocol.disk.files import ENTRY
from remoting.protocol.message.view import RecordView
from tests.unit.broker.store.stores import LOG_FILE, message, opened
from tests.unit.broker.store.views import BODY, COUNT, copied, filled, found_by, numbers


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """Four log files and four queue files, still open."""
    store = filled(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def root(store: MessageStore) -> Path:
    """A copy of the files that no store has open."""
    return copied(store)


# --- whole stores


def test_an_open_store_is_read_whole(store: MessageStore) -> None:
    view = StoreView(store.paths.root)
    records, damage = found_by(view)
    assert numbers(records) == list(range(COUNT))
    assert not damage
    assert view.log_end() == LogEnd(store.log.end, None)
    assert view.topics() == ["TopicTest"]
    assert view.queues("TopicTest") == [0, 1]
    assert view.queue_range("TopicTest", 1) == QueueRange(0, COUNT // 2, 0)
    store.put(message(b"later"))
    assert view.queue_range("TopicTest", 0) == QueueRange(0, COUNT // 2 + 1, 0)
    assert view.log_end() == LogEnd(store.log.end, None)


def test_entries_lead_to_their_messages(store: MessageStore) -> None:
    view = StoreView(store.paths.root)
    found: list[RecordView] = []
    for run in view.queue("TopicTest", 1).entries(3, COUNT // 2):
        assert run.offset == 3 + len(found)
        for position, size, _ in ENTRY.iter_unpack(run.entries):
            record = view.log.record_at(position)
            assert record is not None
            assert record.size == size
            found.append(record)
    assert numbers(found) == list(range(7, COUNT, 2))


def test_records_written_meanwhile_are_read_as_a_complete_prefix(tmp_path: Path) -> None:
    ready, stop = threading.Event(), threading.Event()

    def write() -> None:
        store = opened(tmp_path / "store", mapped_file_size_commit_log=256 * 1024)
        number = 0
        while not stop.is_set() and number < 40_000:
            store.put(message(BODY + b"%03d" % (number % 1000), queue_id=number % 2))
            number += 1
            if number == 10:
                ready.set()
        ready.set()
        store.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        ready.wait(30)
        before = 0
        for _ in range(15):
            view = StoreView(tmp_path / "store")
            low, high, torn = view.queue_range("TopicTest", 0)
            records, damage = found_by(view)
            assert not damage
            assert numbers(records) == [number % 1000 for number in range(len(records))]
            assert all(record.check_crc() for record in records)
            assert len(records) >= before
            assert (low, torn) == (0, 0)
            assert len(records) >= high * 2 - 1
            before = len(records)
    finally:
        stop.set()
        writer.join()


def test_an_empty_store_has_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    view = StoreView(tmp_path / "store")
    assert view.topics() == []
    assert view.queues("TopicTest") == []
    assert view.queue_range("TopicTest", 0) == QueueRange(0, 0, 0)
    assert view.log_end() == LogEnd(0, None)
    assert found_by(view) == ([], [])
    store.close()


def test_a_log_over_several_disks_is_one_log(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "disk2"
    other.mkdir()
    shutil.move(root / "commitlog" / f"{LOG_FILE:020d}", other)
    view = StoreView(root, commit_log=f"{root / 'commitlog'},{other}")
    assert numbers(found_by(view)[0]) == list(range(COUNT))
    assert numbers(found_by(StoreView(root, commit_log=[other, root / "commitlog"]))[0])


def test_more_files_than_are_kept_open_are_read(root: Path) -> None:
    view = StoreView(root, limits=ViewLimits(open_files=2))
    assert numbers(found_by(view)[0]) == list(range(COUNT))
    assert sum(file.is_open for file in view.log.files) == 2


def test_a_record_larger_than_a_chunk_is_one_chunk(store: MessageStore) -> None:
    view = StoreView(store.paths.root)
    chunks = list(view.log.walk(0, view.log_end().position, chunk_bytes=50))
    assert len(chunks) == COUNT
    assert all(not isinstance(chunk, Damage) and chunk.starts == [0] for chunk in chunks)


# --- no store


def test_a_path_without_a_store_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no store at .*absent \(No such file"):
        StoreView(tmp_path / "absent")
    with pytest.raises(StoreError, match="there is no commit log at"):
        StoreView(tmp_path)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(StoreError, match="there is no store at"):
        StoreView(loop)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a\0b"])
def test_a_topic_name_never_leaves_the_store(root: Path, topic: str) -> None:
    with pytest.raises(StoreError, match="is not the name of a topic"):
        StoreView(root).queues(topic)


def test_dangling_links_are_no_topics(root: Path) -> None:
    (root / "consumequeue" / "Loop").symlink_to(root / "consumequeue" / "Loop")
    (root / "consumequeue" / "notes.txt").write_text("by hand")
    (root / "consumequeue" / "TopicTest" / "lost+found").mkdir()
    view = StoreView(root)
    assert view.topics() == ["TopicTest"]
    assert view.queues("TopicTest") == [0, 1]
