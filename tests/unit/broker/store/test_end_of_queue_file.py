"""The end of a queue file, when the next one has no blocks or no map."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue
from broker.store.engine import MessageStore, PutStatus
from broker.store.os_files import Files, Region
from tests.support.clock import ManualClock
from tests.unit.broker.store.stores import (
    QUEUE_FILE,
    FailingFiles,
    FailingRegion,
    bodies,
    message,
    opened,
)

ENTRIES = QUEUE_FILE // 20
NEXT_FILE = f"{QUEUE_FILE:020d}"


class DiskWithoutBlocks(FailingFiles):
    """A full disk that still creates files, but allocates no blocks."""

    def open_mapped(self, path: Path, size: int, *, create: bool) -> Region:
        return FailingRegion(Files.open_mapped(self, path, size, create=create), path, self)


def put(store: MessageStore, first: int, end: int) -> None:
    for number in range(first, end):
        assert store.put(message(b"%d" % number)).status is PutStatus.OK


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def queue_of(store: MessageStore) -> ConsumeQueue:
    queue = store.queues.get(("TopicTest", 0))
    assert queue is not None
    return queue


def test_a_queue_file_without_blocks_gets_no_entries_of_the_previous_file(
    tmp_path: Path,
) -> None:
    clock, files = ManualClock(), DiskWithoutBlocks()
    store = opened(tmp_path, files=files, clock=clock, mapped_file_size_commit_log=1 << 20)
    put(store, 0, ENTRIES - 4)
    files.full, files.full_for = True, NEXT_FILE
    batch = [message(b"%d" % number) for number in range(5)]
    assert store.put_batch(batch).status is PutStatus.SERVICE_NOT_AVAILABLE
    store.close()
    next_file = tmp_path / "consumequeue" / "TopicTest" / "0" / NEXT_FILE
    assert next_file.stat().st_blocks == 0

    store = opened(tmp_path, clock=clock, mapped_file_size_commit_log=1 << 20)
    put(store, ENTRIES - 4, ENTRIES - 1)
    assert not any(next_file.read_bytes())
    put(store, ENTRIES - 1, ENTRIES + 7)
    assert bodies(store) == numbers(ENTRIES + 7)
    store.close()

    store = opened(tmp_path, clock=clock, mapped_file_size_commit_log=1 << 20)
    assert bodies(store) == numbers(ENTRIES + 7)
    store.close()


def test_a_batch_over_two_files_is_refused_when_the_second_cannot_be_mapped(
    tmp_path: Path,
) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files, mapped_file_size_commit_log=1 << 20)
    put(store, 0, ENTRIES - 2)
    queue = queue_of(store)
    queue.prepare(5)
    queue.files[-1].unmap()
    end = store.log.end
    batch = [message(b"%d" % (ENTRIES - 2 + number)) for number in range(5)]

    files.open_error = OSError(errno.EIO, os.strerror(errno.EIO))
    assert store.put_batch(batch).status is PutStatus.SERVICE_NOT_AVAILABLE
    files.open_error = None
    # Every record of the log has its queue entry.
    assert store.log.end == end
    assert queue.next_offset == queue.max_offset == ENTRIES - 2
    store.close()


@pytest.mark.parametrize("together", [False, True], ids=["one", "batch"])
def test_a_queue_whose_map_was_closed_stores_the_message_or_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, together: bool
) -> None:
    files = FailingFiles()
    store = opened(tmp_path, files=files)
    put(store, 0, 3)
    queue = queue_of(store)
    reserve = CommitLog.reserve

    def roll(log: CommitLog, size: int) -> int:
        queue.files[-1].unmap()
        return reserve(log, size)

    files.open_error = OSError(errno.EIO, os.strerror(errno.EIO))
    with monkeypatch.context() as broken:
        broken.setattr(CommitLog, "reserve", roll)
        result = store.put_batch([message()] * 2) if together else store.put(message())
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    files.open_error = None
    assert queue.next_offset == queue.max_offset == 3
    assert bodies(store) == numbers(3)
    store.close()
