"""Valid entries of a damaged queue are read, and its range reports what is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.log_view import LogEnd
from broker.store.results import StoreError
from broker.storetools.view import QueueRange, StoreView
from remoting.protocol.disk.files import ENTRY, FILLER
from tests.unit.broker.store.stores import LOG_FILE, QUEUE_FILE
from tests.unit.broker.store.views import COUNT, copied, filled, overwrite, positions_of, unsynced


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """Four log files and four queue files that no store has open."""
    store = filled(tmp_path / "store")
    yield copied(store)
    store.close()


def queue_path(root: Path, start: int = 0) -> Path:
    return root / "consumequeue" / "TopicTest" / "0" / f"{start:020d}"


def test_a_queue_that_lost_its_last_entries_ends_before_them(root: Path) -> None:
    files = sorted(queue_path(root).parent.iterdir())
    data = bytearray(files[-1].read_bytes())
    used = len(bytes(data).rstrip(b"\0"))
    files[-1].write_bytes(bytes(data[: used - 30]) + bytes(len(data) - used + 30))
    assert StoreView(root).queue_range("TopicTest", 0).max_offset < COUNT // 2


def test_entries_whose_message_never_reached_the_log_are_torn(root: Path) -> None:
    unsynced(root)
    positions = positions_of(root)
    overwrite(root, positions[-6], bytes(positions[-1] - positions[-6] + 200))
    view = StoreView(root)
    assert view.queue_range("TopicTest", 0) == QueueRange(0, COUNT // 2 - 3, 3)
    assert view.queue_range("TopicTest", 1) == QueueRange(0, COUNT // 2 - 3, 3)
    assert view.log_end() == LogEnd(positions[-6], None)


def test_a_half_written_entry_is_not_counted(root: Path) -> None:
    files = sorted(queue_path(root).parent.iterdir())
    data = bytearray(files[-1].read_bytes())
    at = COUNT // 2 * 20 % QUEUE_FILE
    data[at : at + 20] = ENTRY.pack(12345, 0, 0)
    files[-1].write_bytes(data)
    assert StoreView(root).queue_range("TopicTest", 0) == QueueRange(0, COUNT // 2, 0)


def test_a_missing_queue_file_is_reported(root: Path) -> None:
    queue_path(root, QUEUE_FILE).unlink()
    queue = StoreView(root).queue("TopicTest", 0)
    with pytest.raises(StoreError, match=r"has nothing at 1000: .* put it back from a copy"):
        list(queue.entries(0, COUNT // 2))


def test_a_shortened_queue_file_ends_where_its_bytes_end(root: Path) -> None:
    files = sorted(queue_path(root).parent.iterdir())
    os.truncate(files[-1], 47)
    start = int(files[-1].name) // 20
    assert StoreView(root).queue_range("TopicTest", 0).max_offset == start + 2


def test_messages_whose_log_file_is_deleted_are_not_in_the_queue(root: Path) -> None:
    positions = positions_of(root)
    (root / "commitlog" / f"{0:020d}").unlink()
    first = next(n for n, at in enumerate(positions) if at >= LOG_FILE)
    view = StoreView(root)
    assert view.queue_range("TopicTest", 0) == QueueRange((first + 1) // 2, COUNT // 2, 0)
    assert view.queue_range("TopicTest", 1) == QueueRange(first // 2, COUNT // 2, 0)
    assert view.queue("TopicTest", 0).offset_of_time(0) == (first + 1) // 2


def test_fillers_before_the_first_message_are_passed(root: Path) -> None:
    path = queue_path(root)
    path.write_bytes(FILLER * 7 + path.read_bytes()[140:])
    assert StoreView(root).queue_range("TopicTest", 0).min_offset == 7


def test_a_queue_whose_messages_are_all_deleted_is_empty(root: Path) -> None:
    for path in sorted((root / "commitlog").iterdir())[:-1]:
        path.unlink()
    positions = positions_of(root)
    for position in positions:
        overwrite(root, position, bytes(200))
    view = StoreView(root)
    assert view.queue_range("TopicTest", 0).torn > 0
    low, high, _ = view.queue_range("TopicTest", 0)
    assert low == high


def test_fillers_may_end_a_queue_and_stand_between_messages(root: Path) -> None:
    """Numbers of lost messages are not given again."""
    files = sorted(queue_path(root).parent.iterdir())
    data = bytearray(files[-1].read_bytes())
    used = len(bytes(data).rstrip(b"\0")) // 20 * 20
    data[used - 20 : used + 20] = FILLER * 2
    files[-1].write_bytes(data)
    path = queue_path(root)
    path.write_bytes(path.read_bytes()[:40] + FILLER * 3 + path.read_bytes()[100:])
    queue = StoreView(root).queue("TopicTest", 0)
    end = int(files[-1].name) // 20 + used // 20 + 1
    assert queue.range() == QueueRange(0, end, 0)
    assert queue.last_position(end) == 0
    assert queue.offset_of_time(0) == 0
    assert queue.offset_of_time(2**60) == end - 2


def test_an_entry_that_points_nowhere_does_not_stop_a_search_by_time(root: Path) -> None:
    path = queue_path(root, QUEUE_FILE)
    data = bytearray(path.read_bytes())
    for at in range(0, QUEUE_FILE, 20):
        data[at : at + 20] = ENTRY.pack(10**12, 200, 0)
    path.write_bytes(data)
    assert StoreView(root).queue("TopicTest", 0).offset_of_time(0) == 0


def test_a_queue_file_created_ahead_is_passed(root: Path) -> None:
    files = sorted(queue_path(root).parent.iterdir())
    following = int(files[-1].name) + QUEUE_FILE
    queue_path(root, following).write_bytes(bytes(QUEUE_FILE))
    queue_path(root, following + QUEUE_FILE).touch()
    assert StoreView(root).queue_range("TopicTest", 0) == QueueRange(0, COUNT // 2, 0)
    for path in files:
        path.unlink()
    low, high, torn = StoreView(root).queue_range("TopicTest", 0)
    assert (low, torn) == (high, 0)


def test_a_queue_without_a_log_has_nothing(root: Path) -> None:
    for path in (root / "commitlog").iterdir():
        path.unlink()
    view = StoreView(root)
    assert view.queue_range("TopicTest", 0) == QueueRange(0, 0, 0)
    assert view.log_end() == LogEnd(0, None)
