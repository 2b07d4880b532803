"""Small stores for tests, and disks that fail on demand."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker.store.config import StorePaths
from broker.store.disk_state import DiskState, StoreContext
from broker.store.engine import GetStatus, MessageStore, PendingMessage, StoreConfig
from broker.store.limits import StoreLimits
from broker.store.os_files import Files, Region
from broker.store.results import StoreStats
from remoting.protocol.message.tags import tags_code
from remoting.protocol.message.view import RecordView, iter_records
from remoting.runtime.clock import Clock, SystemClock
from tests.support.clock import ManualClock

LOG_FILE = 16 * 1024
QUEUE_FILE = 20 * 50
LIMITS = StoreLimits()
NOTHING_HOT = StoreLimits(hot_log_bytes=0, trusted_memory_ratio=0)
"""Limits with which a record counts as old as soon as another is appended."""

BORN_HOST = b"\x0a\x01\x02\x03\x00\x00\xd4\x31"


class SettableClock(ManualClock):
    """A clock whose wall time can be set back."""

    __slots__ = ()

    def set_back(self, seconds: float) -> None:
        self._now_ms -= round(seconds * 1000)


class _EveryCode(frozenset[int]):
    def __contains__(self, code: object) -> bool:
        return True


EVERY_CODE = _EveryCode()
"""A filter that every message passes, and that the store has to look at."""


def small_config(root: Path, **changes: Any) -> StoreConfig:
    """Return a configuration with files so small that they roll often."""
    values: dict[str, Any] = {
        "root": root,
        "mapped_file_size_commit_log": LOG_FILE,
        "mapped_file_size_consume_queue": QUEUE_FILE,
        "max_hash_slots": 50,
        "max_index_entries": 100,
        "store_host": ("10.9.8.7", 10911),
    }
    return StoreConfig(**(values | changes))


def opened(
    root: Path, *, files: Any = None, clock: Clock | None = None, **changes: Any
) -> MessageStore:
    """Return an open small store."""
    store = MessageStore(small_config(root, **changes), files=files, clock=clock)
    store.open()
    return store


def context(root: Path, files: Files | None = None, **changes: Any) -> StoreContext:
    """Return the context for parts of a small store, without a whole store."""
    config = small_config(root, **changes)
    files, clock = files or Files(), SystemClock()
    disk = DiskState(files, clock, config.limits)
    return StoreContext(config, StorePaths.of(config), files, clock, disk, StoreStats())


def message(
    body: bytes = b"hello",
    *,
    topic: str = "TopicTest",
    queue_id: int = 0,
    tag: str = "",
    **more: Any,
) -> PendingMessage:
    """Return a message as the send processor creates it."""
    properties = f"TAGS\x01{tag}".encode() if tag else b""
    values: dict[str, Any] = {
        "properties": properties,
        "tags_code": tags_code(tag),
        "born_timestamp_ms": 1_600_000_000_000,
        "born_host": BORN_HOST,
    }
    return PendingMessage(topic, queue_id, body, **(values | more))


def read_all(store: MessageStore, topic: str = "TopicTest", queue_id: int = 0) -> list[RecordView]:
    """Read every message of a queue in small portions."""
    found: list[RecordView] = []
    offset = store.queries.min_offset(topic, queue_id)
    while True:
        result = store.get(topic, queue_id, offset, 7)
        if result.status is GetStatus.FOUND:
            for run in result.records:
                found.extend(iter_records(run))
        elif result.status not in {
            GetStatus.NO_MATCHED_MESSAGE,
            GetStatus.MESSAGE_WAS_REMOVING,
            GetStatus.OFFSET_FOUND_NULL,
        }:
            return found
        offset = result.next_offset


def bodies(store: MessageStore, topic: str = "TopicTest", queue_id: int = 0) -> list[bytes]:
    """Return the bodies of a queue's messages."""
    return [record.body for record in read_all(store, topic, queue_id)]


def thread_names() -> list[str]:
    """Return the names of the store's running threads."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("store-")]


def open_files(root: Path) -> list[str]:
    """Return a path for each descriptor of this process that is open below a directory.

    Other descriptors don't count: those that another test left to the garbage collector are
    closed at any time.
    """
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            target = path.readlink()
            if target.is_relative_to(root):
                found.append(str(target))
    return found


class FailingRegion:
    """A region whose writes and syncs fail as the disk is set."""

    def __init__(self, region: Region, path: Path, disk: FailingFiles) -> None:
        self._region = region
        self._path = path
        self._disk = disk

    @property
    def view(self) -> memoryview:
        return self._region.view

    def write(self, position: int, data: bytes | memoryview) -> None:
        self._disk.before_write(self._path)
        self._region.write(position, data)

    def allocate(self, position: int, length: int) -> bool:
        self._disk.before_write(self._path)
        return self._region.allocate(position, length)

    def extents(self, position: int) -> Iterator[tuple[int, int]]:
        return self._region.extents(position)

    def sync(self) -> None:
        # A new file is synced for its name and length; no message waits for that.
        if next(self._region.extents(0), None) is not None:
            self._disk.before_sync(self._path)
        self._region.sync()

    def is_whole(self) -> bool:
        return self._region.is_whole()

    def is_cached(self, position: int, length: int) -> bool | None:
        return self._region.is_cached(position, length)

    def fetch(self, position: int, length: int) -> None:
        self._region.fetch(position, length)

    def read_ahead(self, position: int, length: int) -> None:
        self._region.read_ahead(position, length)


class FailingFiles(Files):
    """The real file system, with injected faults."""

    def __init__(self) -> None:
        self.full = False
        self.full_for = ""
        self.free = 12345
        self.sync_error: OSError | None = None
        self.open_error: OSError | None = None
        self.syncs: list[Path] = []
        self.on_sync: Callable[[Path], None] = lambda _: None
        self.on_write: Callable[[Path], None] = lambda _: None

    def open_mapped(self, path: Path, size: int, *, create: bool) -> Region:
        if self.open_error is not None:
            raise self.open_error
        if create:
            self.before_write(path)
        return FailingRegion(super().open_mapped(path, size, create=create), path, self)

    def before_write(self, path: Path) -> None:
        self.on_write(path)
        if self.full and self.full_for in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def before_sync(self, path: Path) -> None:
        self.syncs.append(path)
        self.on_sync(path)
        if self.sync_error is not None:
            raise self.sync_error

    def sync_filesystem(self, directory: Path) -> bool:
        self.before_sync(directory)
        super().sync_filesystem(directory)
        return True

    def free_bytes(self, path: Path) -> int:
        return self.free


class SlowDisk(FailingFiles):
    """A disk whose syncs wait until released."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Semaphore(0)

    def before_sync(self, path: Path) -> None:
        if "commitlog" in str(path):
            self.begun.release()
            self.gate.wait(30)
        super().before_sync(path)

    @property
    def log_syncs(self) -> int:
        return sum("commitlog" in str(path) for path in self.syncs)
