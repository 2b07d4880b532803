"""Brokers with a part exchanged: planted faults, a clock that can be set, a disk without a cache.

``altered`` exchanges classes of the broker for subclasses, for brokers in this process. Server
processes with the variables of ``environment`` load ``altered/sitecustomize.py`` at their start,
which does it there.
"""

from __future__ import annotations

import mmap
import os
import sys
from asyncio import StreamWriter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from types import ModuleType
from typing import Any, Final

import broker.app
import broker.replication.master
import broker.replication.membership
import broker.replication.slave
import broker.state
import broker.store.engine
from broker.delivery.transactions import TransactionEngine
from broker.replication.autoswitch import AutoSwitchSlave
from broker.replication.master import ReplicationServer, SlaveLink
from broker.replication.membership import GroupMembership
from broker.replication.slave import SlaveStream
from broker.replication.stream import REPORT, MasterStream, StreamError
from broker.store.append import EntryDispatcher
from broker.store.consume_queue import ConsumeQueue
from broker.store.follow import LogFollower
from broker.store.os_files import Files, Region
from broker.store.sync import Syncer
from remoting.protocol.disk.files import ENTRY_BYTES
from remoting.protocol.message.view import RecordView
from remoting.runtime.clock import SystemClock
from tests.chaos.recorder import TOPIC
from tests.simulation.broken import OldSetOnly

_VARIABLE: Final = "POCKETMQ_TEST_ALTERATIONS"
_ROOT: Final = Path(__file__).parents[2]

_AHEAD: Final = Struct("<q")

HELD_BACK_BYTES: Final = 16 * 1024


def environment(*alterations: str) -> dict[str, str]:
    """Return the variables of a process with these alterations, each ``name`` or ``name=path``."""
    paths = (Path(__file__).parent / "altered", _ROOT)
    return {"PYTHONPATH": os.pathsep.join(map(str, paths)), _VARIABLE: " ".join(alterations)}


def apply() -> None:
    """Make the alterations that the environment names."""
    _apply(os.environ[_VARIABLE].split())


@contextmanager
def altered(*alterations: str) -> Iterator[None]:
    """Make alterations during the block."""
    before = _apply(alterations)
    try:
        yield
    finally:
        for module, name, kind in before:
            setattr(module, name, kind)


def _apply(alterations: Iterable[str]) -> list[tuple[ModuleType, str, type]]:
    """Exchange classes; return what was there."""
    before = []
    for alteration in alterations:
        kind, _, path = alteration.partition("=")
        if path:
            _PREPARE[kind](Path(path))
        for module, name, replacement in _ALTERATIONS[kind]:
            before.append((module, name, getattr(module, name)))
            setattr(module, name, replacement)
    return before


# --- faults


class EagerMaster(ReplicationServer):
    """Takes every message for replicated."""

    @property
    def replicated(self) -> int:
        return sys.maxsize

    def available(self, end_offset: int) -> bool:
        return True


class GullibleStream(MasterStream):
    """Believes every number that comes over a connection, and keeps it."""

    def receive(self, data: bytes, now: float) -> None:
        with suppress(StreamError):
            super().receive(data, now)
        if self.sent:
            whole = len(data) - len(data) % REPORT.size
            offsets = [offset for (offset,) in REPORT.iter_unpack(data[:whole])]
            self.acked = max([self.acked, *offsets])


class EagerSlave(SlaveStream):
    """Acknowledges what it has received, before it is in the log."""

    def report(self, safe: int, now: float) -> bytes:
        return super().report(max(safe, self.end), now)


class EagerReplica(AutoSwitchSlave):
    """As ``EagerSlave``, in a group."""

    def report(self, safe: int, now: float) -> bytes:
        return super().report(max(safe, self.end), now)


class Keeping(AutoSwitchSlave):
    """Keeps what its new master does not have."""

    def _read_list(self, packed: bytes) -> int:
        size = super()._read_list(packed)
        assert self.plan is not None
        self.plan = self.plan._replace(point=self.begin)
        return size


class CountingForeign(ReplicationServer):
    """Counts an acknowledgement for every connection."""

    def _count(self, group: GroupMembership, link: SlaveLink, writer: StreamWriter) -> None:
        super()._count(group, link, writer)
        for other in self.links:
            if other.replica is not None:
                other.replica.count(link.stream.acked, self._end, self._clock.monotonic())


class Revealing(Syncer):
    """Shows consumers what is not confirmed."""

    @property
    def confirmed(self) -> int:
        return self.safe_end


class LazyFollower(LogFollower):
    """Appends only when it has got a lot."""

    def append(self, data: bytes | bytearray | memoryview, known: int = 0) -> int:
        return super().append(data, known) if len(data) >= HELD_BACK_BYTES else 0


class Reordering(EntryDispatcher):
    """Makes messages visible in pairs, the second one first."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[ConsumeQueue, bytes] = {}

    def publish(self, queue: ConsumeQueue, entries: bytes) -> None:
        if queue.topic == TOPIC and len(entries) == ENTRY_BYTES and queue not in self.held:
            self.held[queue] = entries
            return
        entries = self.held.pop(queue, b"") + entries
        if queue.topic == TOPIC:
            first, second = entries[:ENTRY_BYTES], entries[ENTRY_BYTES : 2 * ENTRY_BYTES]
            entries = second + first + entries[2 * ENTRY_BYTES :]
        super().publish(queue, entries)


class Dropping(EntryDispatcher):
    """Makes every second message visible as the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[ConsumeQueue, bytes] = {}

    def publish(self, queue: ConsumeQueue, entries: bytes) -> None:
        if queue.topic == TOPIC:
            before = self.held.pop(queue, b"")
            if not before:
                self.held[queue] = entries[-ENTRY_BYTES:]
            entries = (before or entries[:ENTRY_BYTES]) + entries[ENTRY_BYTES:]
        super().publish(queue, entries)


class Committing(TransactionEngine):
    """Commits what is rolled back."""

    def end(self, record: RecordView, *, commit: bool) -> None:
        super().end(record, commit=True)


# --- the clock


class SetClock(SystemClock):
    """A clock that is ahead by what a file says: nanoseconds, little-endian, 8 bytes."""

    file: mmap.mmap

    @classmethod
    def use(cls, path: Path) -> None:
        with path.open("rb") as file:
            cls.file = mmap.mmap(file.fileno(), _AHEAD.size, access=mmap.ACCESS_READ)

    def now_ms(self) -> int:
        return super().now_ms() + _AHEAD.unpack(self.file[: _AHEAD.size])[0] // 1_000_000


def set_clock(file: Path, ahead_ns: int) -> None:
    """Set the clock of the brokers that have this file, or make the file."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, _AHEAD.pack(ahead_ns), 0)
    finally:
        os.close(descriptor)


# --- the disk


class CopiedRegion:
    """A region of which a sync copies the content to another file: all that a power cut leaves."""

    def __init__(self, region: Region, copy: Path) -> None:
        self._region = region
        self._copy = copy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._region, name)

    def sync(self) -> None:
        # What is stored during the sync may be on the disk, or not.
        content = bytes(self._region.view)
        self._region.sync()
        _overwrite(self._copy, content)


class CopyingFiles(Files):
    """Files without a cache that survives: a directory has what was synced of the mapped ones.

    Names, lengths and the small files, which are replaced as a whole, count as synced.
    """

    root: Path

    @classmethod
    def use(cls, path: Path) -> None:
        cls.root = path

    def open_mapped(self, path: Path, size: int, *, create: bool) -> Region:
        region = super().open_mapped(path, size, create=create)
        copy = self.root / path.relative_to("/")
        if not copy.exists():
            # What a start finds is on the disk.
            copy.parent.mkdir(parents=True, exist_ok=True)
            _overwrite(copy, bytes(region.view))
        return CopiedRegion(region, copy)

    def sync_filesystem(self, directory: Path) -> bool:
        return False


def _overwrite(file: Path, content: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, content, 0)
    finally:
        os.close(descriptor)


def cut_power(store: Path, copies: Path) -> int:
    """Leave of a killed broker's store what was synced; return the bytes that its log loses."""
    lost = 0
    for path in store.rglob("*"):
        copy = copies / path.relative_to("/")
        if path.is_file() and copy.exists():
            before, after = path.read_bytes(), copy.read_bytes()
            if path.parent.name == "commitlog":
                lost += len(before.rstrip(b"\0")) - len(after.rstrip(b"\0"))
            path.write_bytes(after)
    return lost


_ALTERATIONS: Final[dict[str, list[tuple[ModuleType, str, type]]]] = {
    "eager-master": [(broker.app, "ReplicationServer", EagerMaster)],
    "gullible-master": [(broker.replication.master, "MasterStream", GullibleStream)],
    "eager-slave": [
        (broker.replication.slave, "SlaveStream", EagerSlave),
        (broker.store.engine, "LogFollower", LazyFollower),
    ],
    "eager-replica": [
        (broker.replication.slave, "AutoSwitchSlave", EagerReplica),
        (broker.store.engine, "LogFollower", LazyFollower),
    ],
    "keeping": [(broker.replication.slave, "AutoSwitchSlave", Keeping)],
    "counting-foreign": [(broker.app, "ReplicationServer", CountingForeign)],
    "without-union": [(broker.replication.membership, "InSyncSet", OldSetOnly)],
    "revealing-master": [(broker.store.engine, "Syncer", Revealing)],
    "reordering": [(broker.store.engine, "EntryDispatcher", Reordering)],
    "dropping": [(broker.store.engine, "EntryDispatcher", Dropping)],
    "committing": [(broker.state, "TransactionEngine", Committing)],
    "clock": [(broker.app, "SystemClock", SetClock)],
    "copies": [(broker.app, "Files", CopyingFiles)],
}

_PREPARE: Final = {"clock": SetClock.use, "copies": CopyingFiles.use}
