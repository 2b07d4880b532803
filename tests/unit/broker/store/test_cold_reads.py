"""Messages that are not in memory are read in a thread while the event loop runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.filters.sql import SqlFilter
from broker.store import cold_reads, reader
from broker.store.engine import GetResult, GetStatus, MessageStore, StoreError
from broker.store.limits import StoreLimits
from broker.store.os_files import Files, Region
from broker.store.results import FileRange, StoreBusy
from remoting.protocol.message.view import iter_records
from tests.support.clock import ManualClock
from tests.unit.broker.store.stores import LIMITS, FailingRegion, bodies, message, opened

QUEUE = ("TopicTest", 0)
LITTLE_HOT = StoreLimits(hot_log_bytes=1024, hot_queue_entries=4)


class SlowRegion(FailingRegion):
    """A region of which only fetched parts are in memory."""

    _disk: SlowFiles

    def is_cached(self, position: int, length: int) -> bool | None:
        return self._disk.is_cached(self._path, position, position + length)

    def fetch(self, position: int, length: int) -> None:
        self._disk.fetch(self._path, position, position + length)
        super().fetch(position, length)

    def read_ahead(self, position: int, length: int) -> None:
        self._disk.ahead.append((self._path, position, length))


class SlowFiles(Files):
    """A disk whose pages are cold, and whose reads wait until released."""

    def __init__(self, *, can_tell: bool = True) -> None:
        self.can_tell = can_tell
        self.cold = False
        self.let = threading.Event()
        self.let.set()
        self.error: OSError | None = None
        self.probes = 0
        self.fetched: list[tuple[Path, int, int]] = []
        self.ahead: list[tuple[Path, int, int]] = []
        self.threads: set[str] = set()
        self.at_work = self.most_at_work = 0
        self._lock = threading.Lock()

    def open_mapped(self, path: Path, size: int, *, create: bool) -> Region:
        region = super().open_mapped(path, size, create=create)
        return SlowRegion(region, path, self)

    # What a region asks before it writes or syncs.
    def before_write(self, path: Path) -> None: ...

    def before_sync(self, path: Path) -> None: ...

    def is_cached(self, path: Path, start: int, end: int) -> bool | None:
        self.probes += 1
        if not self.can_tell:
            return None
        return not self.cold or any(
            path == where and first <= start and end <= behind
            for where, first, behind in self.fetched
        )

    def fetch(self, path: Path, start: int, end: int) -> None:
        with self._lock:
            self.at_work += 1
            self.most_at_work = max(self.most_at_work, self.at_work)
        self.let.wait(10)
        with self._lock:
            self.at_work -= 1
        self.threads.add(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        self.fetched.append((path, start, end))


@pytest.fixture
def disk() -> SlowFiles:
    return SlowFiles()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> StoreLimits:
    """Limits, with those in a test's parameters."""
    return replace(LITTLE_HOT, **getattr(request, "param", {}))


@pytest.fixture
def store(
    tmp_path: Path, disk: SlowFiles, clock: ManualClock, limits: StoreLimits
) -> Iterator[MessageStore]:
    """A store whose messages are older than its opening, and only on disk."""
    before = opened(tmp_path)
    for number in range(120):
        before.put(message(b"%d" % number, queue_id=number % 3))
    before.close()
    store = opened(tmp_path, files=disk, clock=clock, limits=limits)
    disk.cold = True
    yield store
    disk.let.set()
    store.close()


def numbers(result: GetResult) -> list[int]:
    return [int(record.body) for run in result.records for record in iter_records(run)]


def expected(queue_id: int, first: int, count: int) -> list[int]:
    return list(range(queue_id, 120, 3))[first : first + count]


def unhurried(store: MessageStore, offset: int = 0, count: int = 10, **more: Any) -> GetResult:
    return store.get(*QUEUE, offset, count, wait=False, **more)


# --- what counts as cold


def test_a_get_that_may_wait_is_never_cold(store: MessageStore, disk: SlowFiles) -> None:
    assert numbers(store.get(*QUEUE, 0, 10)) == expected(0, 0, 10)
    assert disk.probes <= 1


def test_cold_entries_are_detected_before_the_map_is_touched(store: MessageStore) -> None:
    result = unhurried(store)
    assert (result.status, result.count, result.records) == (GetStatus.COLD, 0, ())
    assert (result.next_offset, result.min_offset, result.max_offset) == (0, 0, 40)
    (where,) = result.cold
    assert (where.file.path.name, where.start, where.end) == ("0" * 20, 0, 40 * 20)


async def test_cold_records_are_detected_before_the_map_is_touched(
    store: MessageStore, disk: SlowFiles
) -> None:
    (queue_file,) = unhurried(store).cold
    disk.fetched.append((queue_file.file.path, 0, queue_file.file.size))
    result = unhurried(store)
    assert (result.status, result.count) == (GetStatus.COLD, 10)
    assert {where.file.path.parent.name for where in result.cold} == {"commitlog"}
    assert store.stats.got_messages == 0


def test_recently_appended_pages_are_not_queried(store: MessageStore, disk: SlowFiles) -> None:
    store.put(message(b"120"))
    before = disk.probes
    result = unhurried(store, 40)
    assert numbers(result) == [120]
    assert disk.probes == before


def test_pages_appended_long_ago_are_queried(store: MessageStore) -> None:
    for number in range(120, 200):
        store.put(message(b"%d" % number))
    assert unhurried(store, 40).status is GetStatus.COLD
    assert unhurried(store, 119).status is GetStatus.FOUND


def test_pages_in_memory_are_queried_once_a_second(
    store: MessageStore, disk: SlowFiles, clock: ManualClock
) -> None:
    disk.cold = False
    assert numbers(unhurried(store)) == expected(0, 0, 10)
    asked = disk.probes
    assert numbers(unhurried(store, 10)) == expected(0, 10, 10)
    assert disk.probes == asked
    clock.advance(LIMITS.resident_seconds)
    assert numbers(unhurried(store)) == expected(0, 0, 10)
    assert disk.probes > asked


@pytest.mark.parametrize("limits", [{"max_probes": 0}], indirect=True)
def test_a_get_with_too_many_queries_counts_as_cold(store: MessageStore, disk: SlowFiles) -> None:
    disk.cold = False
    assert unhurried(store).status is GetStatus.COLD


@pytest.mark.parametrize("limits", [{"max_resident_blocks": 1}], indirect=True)
def test_remembered_ranges_are_bounded(store: MessageStore, disk: SlowFiles) -> None:
    disk.cold = False
    for offset in (0, 10, 0):
        assert numbers(unhurried(store, offset)) == expected(0, offset, 10)


# --- reading patiently


async def test_cold_messages_are_read_in_a_thread(store: MessageStore, disk: SlowFiles) -> None:
    result = await store.cold_reads.get("me", *QUEUE, 0, 10)
    assert numbers(result) == expected(0, 0, 10)
    assert disk.threads
    assert all(name.startswith("store-cold-read") for name in disk.threads)
    assert store.stats.cold_gets == 1
    assert store.stats.cold_bytes > 0


async def test_the_loop_runs_while_a_thread_reads(store: MessageStore, disk: SlowFiles) -> None:
    disk.let.clear()
    reading = asyncio.ensure_future(store.cold_reads.get("me", *QUEUE, 0, 10))
    for number in range(100):
        await asyncio.sleep(0)
        assert store.put(message(b"%d" % number, topic="Other")).queue_offset == number
    assert not reading.done()
    disk.let.set()
    assert numbers(await asyncio.wait_for(reading, 10)) == expected(0, 0, 10)


async def test_a_disk_that_cannot_tell_is_read_in_a_thread_too(
    store: MessageStore, disk: SlowFiles
) -> None:
    disk.can_tell = False
    assert unhurried(store).status is GetStatus.COLD
    result = await store.cold_reads.get("me", *QUEUE, 0, 10)
    assert numbers(result) == expected(0, 0, 10)
    # The queue's file is known now; the records are, block by block, when they are many.
    assert unhurried(store).cold[0].file.path.parent.name == "commitlog"


async def test_filtered_messages_are_read_as_well(store: MessageStore) -> None:
    result = await store.cold_reads.get("me", *QUEUE, 0, 10, codes=frozenset({1}))
    assert result.status is GetStatus.NO_MATCHED_MESSAGE


async def test_what_a_filter_looks_into_is_read_in_a_thread(
    store: MessageStore, disk: SlowFiles
) -> None:
    assert unhurried(store, records=SqlFilter("a = 1")).status is GetStatus.COLD
    result = await store.cold_reads.get("me", *QUEUE, 0, 10, records=SqlFilter("a IS NULL"))
    assert numbers(result) == expected(0, 0, 10)
    assert result.next_offset == 10
    assert threading.current_thread().name not in disk.threads
    result = await store.cold_reads.get("me", *QUEUE, 5, 10, records=SqlFilter("a = 1"))
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 40)


async def test_a_filter_stops_where_the_disk_would_have_to_be_waited_for(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MIN_TURN_MESSAGES", 4)
    # What is read for the first turn is in memory; the next one is the next pull's.
    result = await store.cold_reads.get("me", *QUEUE, 0, 4, records=SqlFilter("a = 1"))
    assert result.status is GetStatus.NO_MATCHED_MESSAGE
    assert result.next_offset == 4
    result = await store.cold_reads.get("me", *QUEUE, 4, 4, records=SqlFilter("a IS NULL"))
    assert numbers(result) == expected(0, 4, 4)


async def test_a_replay_uses_the_systems_read_ahead(store: MessageStore, disk: SlowFiles) -> None:
    await store.cold_reads.get("me", *QUEUE, 0, 10)
    path, position, length = disk.ahead[-1]
    assert path.parent.name == "commitlog"
    assert position == 0
    assert length > LIMITS.read_ahead_bytes


async def test_a_disk_that_cannot_be_read_is_an_error_of_this_get_alone(
    store: MessageStore, disk: SlowFiles
) -> None:
    disk.error = OSError(5, "Input/output error")
    with pytest.raises(StoreError, match="messages can't be read"):
        await store.cold_reads.get("me", *QUEUE, 0, 10)
    disk.error = None
    assert numbers(await store.cold_reads.get("me", *QUEUE, 0, 10)) == expected(0, 0, 10)


# --- bounds


async def test_no_more_threads_than_allowed_read_at_a_time(
    store: MessageStore, disk: SlowFiles
) -> None:
    disk.let.clear()
    gets = [
        asyncio.ensure_future(store.cold_reads.get(owner, *QUEUE, owner, 1)) for owner in range(30)
    ]
    await asyncio.sleep(0)
    disk.let.set()
    results = await asyncio.wait_for(asyncio.gather(*gets), 10)
    assert [numbers(result) for result in results] == [expected(0, n, 1) for n in range(30)]
    assert disk.most_at_work <= LIMITS.cold_readers


async def test_one_busy_reader_does_not_starve_another(
    store: MessageStore, disk: SlowFiles
) -> None:
    disk.let.clear()
    order: list[str] = []

    async def get(owner: str, queue_id: int, offset: int) -> None:
        await store.cold_reads.get(owner, "TopicTest", queue_id, offset, 1)
        order.append(owner)

    greedy = [asyncio.ensure_future(get("greedy", 0, number)) for number in range(36)]
    await asyncio.sleep(0)
    modest = asyncio.ensure_future(get("modest", 1, 0))
    await asyncio.sleep(0)
    disk.let.set()
    await asyncio.wait_for(asyncio.gather(*greedy, modest), 10)
    assert order.index("modest") < 30


@pytest.mark.parametrize("limits", [{"max_cold_reads": 2}], indirect=True)
async def test_too_many_that_wait_are_refused(store: MessageStore, disk: SlowFiles) -> None:
    disk.let.clear()
    gets = [
        asyncio.ensure_future(store.cold_reads.get("me", *QUEUE, number, 1))
        for number in range(LIMITS.cold_readers + 2)
    ]
    await asyncio.sleep(0)
    with pytest.raises(StoreBusy, match="try again"):
        await store.cold_reads.get("me", *QUEUE, 0, 1)
    disk.let.set()
    await asyncio.wait_for(asyncio.gather(*gets), 10)


async def test_a_cancelled_request_causes_no_read(store: MessageStore, disk: SlowFiles) -> None:
    disk.let.clear()
    gets = [
        asyncio.ensure_future(store.cold_reads.get("me", *QUEUE, number, 1))
        for number in range(LIMITS.cold_readers)
    ]
    gone = asyncio.ensure_future(store.cold_reads.get("gone", "TopicTest", 1, 0, 1))
    await asyncio.sleep(0)
    gone.cancel()
    disk.let.set()
    await asyncio.wait_for(asyncio.gather(*gets, return_exceptions=True), 10)
    assert not any("/1/" in str(path) for path, _, _ in disk.fetched)


async def test_closing_waits_for_running_reads_and_refuses_waiting_ones(
    store: MessageStore, disk: SlowFiles
) -> None:
    disk.let.clear()
    gets = [
        asyncio.ensure_future(store.cold_reads.get("me", *QUEUE, number, 1))
        for number in range(LIMITS.cold_readers + 3)
    ]
    await asyncio.sleep(0)
    disk.let.set()
    store.close()
    assert disk.at_work == 0
    ended = await asyncio.wait_for(asyncio.gather(*gets, return_exceptions=True), 10)
    assert all(isinstance(end, StoreError) for end in ended)
    store.open()


def test_the_file_system_reports_pages_in_memory_or_that_it_cannot(tmp_path: Path) -> None:
    region = Files().open_mapped(tmp_path / "file", 3 * LIMITS.block_bytes, create=True)
    region.write(0, bytes(3 * LIMITS.block_bytes))
    assert region.is_cached(100, 2 * LIMITS.block_bytes) in {True, None}
    region.read_ahead(0, 10 * LIMITS.block_bytes)
    region.fetch(0, 3 * LIMITS.block_bytes)
    assert region.is_cached(0, 3 * LIMITS.block_bytes) in {True, None}


def test_ranges_near_to_each_other_are_fetched_together(store: MessageStore) -> None:
    (where,) = unhurried(store).cold
    file = where.file
    gap = LIMITS.max_fetch_gap_bytes
    pieces = [FileRange(file, 0, 10), FileRange(file, 20, 30), FileRange(file, 31 + gap, 40 + gap)]
    assert cold_reads.joined(pieces, LIMITS) == [FileRange(file, 0, 30), pieces[2]]


def test_all_messages_are_read_correctly_in_the_end(store: MessageStore) -> None:
    assert [int(body) for body in bodies(store)] == expected(0, 0, 40)
