"""A store that forgets: its oldest files go, and everybody finds what is still there."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.store.consume_queue import ConsumeQueue
from broker.store.disk_state import DiskState
from broker.store.files import DiskUse, OsFiles, Region
from broker.store.message_store import GetStatus, MessageStore, PutStatus
from broker.store.retention import retention as module
from broker.store.retention.policy import RetentionConfig
from remoting.clock import ManualClock
from remoting.protocol.message.view import iter_records
from tests.unit.broker.store.crashes import crash
from tests.unit.broker.store.stores import LOG_FILE, QUEUE_FILE, message, opened, read_all

HOUR = 3600.0
EVERY_HOUR = frozenset(range(24))
PER_QUEUE_FILE = QUEUE_FILE // 20


class Disk(OsFiles):
    """A disk that is as full as it is told to be, or whose limit is the store's own size."""

    def __init__(self) -> None:
        self.use = DiskUse(10, 90)
        self.remove_error: OSError | None = None

    def disk_use(self, path: Path) -> DiskUse:
        return self.use

    def remove(self, path: Path) -> None:
        if self.remove_error is not None:
            raise self.remove_error
        super().remove(path)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, disk: Disk, clock: ManualClock) -> Iterator[MessageStore]:
    store = opened(tmp_path, files=disk, clock=clock, retention=kept())
    yield store
    store.close()


def kept(**changes: Any) -> RetentionConfig:
    values: dict[str, Any] = {"delete_hours": EVERY_HOUR, "log_pause_ms": 0}
    return RetentionConfig(**(values | changes))


def fill(
    store: MessageStore, count: int, *, first: int = 0, topic: str = "TopicTest", queue_id: int = 0
) -> None:
    """Messages whose bodies are their numbers; a log file takes some ninety."""
    for number in range(first, first + count):
        put = message(b"%-64d" % number, topic=topic, queue_id=queue_id)
        assert store.put(put).status is PutStatus.OK
    store.flush()


def numbers(store: MessageStore, topic: str = "TopicTest", queue_id: int = 0) -> list[int]:
    found = read_all(store, topic, queue_id)
    for record in found:
        assert record.queue_offset == int(record.body)
        assert record.check_crc()
    return [int(record.body) for record in found]


def log_names(store: MessageStore) -> list[int]:
    """Where the files of the log begin that are on the disk and in use."""
    names = sorted(int(path.name) for path in store.paths.commit_log.iterdir())
    assert names[: len(store._opened().log.files)] == [f.start for f in store._opened().log.files]
    return names


def queue_directory(store: MessageStore, topic: str = "TopicTest", queue_id: int = 0) -> Path:
    return store.paths.consume_queues / topic / str(queue_id)


def queue_names(store: MessageStore, topic: str = "TopicTest", queue_id: int = 0) -> list[int]:
    return sorted(int(path.name) for path in queue_directory(store, topic, queue_id).iterdir())


def queue_of(store: MessageStore, topic: str = "TopicTest", queue_id: int = 0) -> ConsumeQueue:
    queue = store.queues.get((topic, queue_id))
    assert queue is not None
    return queue


def test_old_files_go_with_the_queues_files_and_the_first_offset_is_right(
    store: MessageStore, clock: ManualClock
) -> None:
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 300, first=300)
    before = log_names(store)
    store.retention.step()
    start, low = store.start_offset, store.min_offset("TopicTest", 0)
    # The file with the 300th message holds young ones too, so it stays, with a few old ones.
    assert start == store._opened().log.files[0].start > 0
    assert set(log_names(store)) < set(before)
    assert 0 < 300 - low < 100
    assert numbers(store) == list(range(low, 600))
    entry = queue_of(store).entry(low)
    assert entry is not None
    assert entry[0] >= start
    assert queue_names(store)[0] == low // PER_QUEUE_FILE * QUEUE_FILE
    assert store.max_offset("TopicTest", 0) == 600


def test_readers_below_the_beginning_are_told_where_it_is(
    store: MessageStore, clock: ManualClock
) -> None:
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 300, first=300)
    store.retention.step()
    low = store.min_offset("TopicTest", 0)
    result = store.get("TopicTest", 0, low - 1, 10)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
    assert store.record_at(0) is None
    assert store.store_time_at("TopicTest", 0, low - 1) == -1
    assert store.offset_by_time("TopicTest", 0, 1) == low


def test_a_queue_whose_messages_are_all_gone_goes_on_counting(
    store: MessageStore, clock: ManualClock
) -> None:
    fill(store, 60, topic="Old")
    fill(store, 200)
    clock.advance(100 * HOUR)
    fill(store, 200, first=200)
    store.retention.step()
    assert (store.min_offset("Old", 0), store.max_offset("Old", 0)) == (60, 60)
    result = store.get("Old", 0, 0, 10)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 60)
    assert store.get("Old", 0, 60, 10).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert queue_names(store, "Old") == [QUEUE_FILE]
    fill(store, 1, first=60, topic="Old")
    assert numbers(store, "Old") == [60]


def test_what_a_crash_left_of_queues_is_removed_after_the_next_start(
    store: MessageStore, clock: ManualClock, disk: Disk
) -> None:
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 300, first=300)
    before = queue_names(store)
    copies = {name: (queue_directory(store) / f"{name:020d}").read_bytes() for name in before}
    store.retention.step()
    low, after = store.min_offset("TopicTest", 0), queue_names(store)
    for name in set(before) - set(after):
        (queue_directory(store) / f"{name:020d}").write_bytes(copies[name])
    again = crash(store)
    again.open()
    assert queue_names(again) == before
    assert again.min_offset("TopicTest", 0) == low
    again.retention.step()
    assert queue_names(again) == after
    assert numbers(again) == list(range(low, 600))
    again.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_store_that_has_forgotten_is_opened_again_as_it_was(
    store: MessageStore, clock: ManualClock, clean: bool
) -> None:
    fill(store, 60, topic="Old")
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 300, first=300)
    store.retention.step()
    low, start = store.min_offset("TopicTest", 0), store.start_offset
    again = crash(store)
    if clean:
        store.close()
        again = store
    assert again.open().clean is clean
    assert again.start_offset == start
    assert again.min_offset("TopicTest", 0) == low
    assert numbers(again) == list(range(low, 600))
    assert (again.min_offset("Old", 0), again.max_offset("Old", 0)) == (60, 60)
    fill(again, 1, first=60, topic="Old")
    assert numbers(again, "Old") == [60]
    again.close()


def test_the_last_file_stays_however_old_it_is(store: MessageStore, clock: ManualClock) -> None:
    fill(store, 300)
    clock.advance(1000 * HOUR)
    for _ in range(5):
        store.retention.step()
    # Nobody knows when its successor's first message will come.
    assert len(log_names(store)) >= 1
    assert store.end_offset - store.start_offset <= LOG_FILE
    assert numbers(store)[-1] == 299


def test_a_full_disk_takes_young_files_and_only_as_many_as_make_room(
    store: MessageStore, disk: Disk
) -> None:
    fill(store, 600)
    files = len(store._opened().log.files)
    # Of 100 files' room 88 are taken: three have to go.
    disk.use = DiskUse(88 * LOG_FILE, 12 * LOG_FILE)
    assert store.retention.step() == module.PRESSED_SECONDS
    assert len(store._opened().log.files) == files - 3
    assert store.retention.stats.young_files == 3
    assert store.writable
    low = store.min_offset("TopicTest", 0)
    assert numbers(store) == list(range(low, 600))
    disk.use = DiskUse(85 * LOG_FILE, 15 * LOG_FILE)
    assert store.retention.step() == 10.0
    assert len(store._opened().log.files) == files - 3


def test_a_disk_that_is_too_full_refuses_with_path_and_bound_and_heals_by_itself(
    store: MessageStore, disk: Disk, clock: ManualClock
) -> None:
    disk.use = DiskUse(91, 9)
    store.retention.step()
    refused = store.put(message())
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert refused.message == store.why_not_writable
    assert (
        f"the disk of {store.paths.commit_log} is 91.0% full with 9 bytes free" in refused.message
    )
    assert "the 90 % of diskSpaceWarningLevelRatio" in refused.message
    # Nothing else heals it: neither time nor an allocation that succeeds.
    clock.advance(5)
    assert store._opened().run_ahead.try_step() is False
    assert not store.writable
    disk.use = DiskUse(90, 10)
    store.retention.step()
    assert store.writable
    assert store.put(message()).status is PutStatus.OK


def test_a_disk_that_has_refused_stays_refused_when_it_is_measured(
    store: MessageStore, disk: Disk
) -> None:
    trouble = store._disk.refused(store.paths.root, OSError(28, "No space left on device"))
    store.retention.step()
    assert store.why_not_writable == trouble
    store._disk.healed()
    assert store.writable


def test_a_reader_keeps_its_slices_and_their_room_is_waited_for(
    store: MessageStore, disk: Disk, clock: ManualClock
) -> None:
    fill(store, 600)
    slices = store.get("TopicTest", 0, 0, 32).records
    bodies = [bytes(record.body) for run in slices for record in iter_records(run)]
    files = len(store._opened().log.files)
    disk.use = DiskUse(86 * LOG_FILE, 14 * LOG_FILE)
    store.retention.step()
    assert len(store._opened().log.files) == files - 1
    assert store.retention.held_bytes == LOG_FILE
    # The reader's file is gone from the directory, and still counts as taken.
    store.retention.step()
    assert len(store._opened().log.files) == files - 1
    assert [bytes(record.body) for run in slices for record in iter_records(run)] == bodies
    clock.advance(121)
    store.retention.step()
    assert len(store._opened().log.files) == files - 2
    del slices
    gc.collect()
    assert store.retention.held_bytes == 0


def test_what_can_not_be_removed_is_tried_again_and_holds_up_what_is_younger(
    store: MessageStore, disk: Disk, clock: ManualClock
) -> None:
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 200, first=300)
    before = log_names(store)
    disk.remove_error = PermissionError(1, "Operation not permitted")
    store.retention.step()
    assert store.start_offset > 0
    assert sorted(int(path.name) for path in store.paths.commit_log.iterdir()) == before
    # One of the log and one of the queue; the others wait behind them.
    assert store.retention.failures == 2
    disk.remove_error = None
    store.retention.step()
    assert len(list(store.paths.commit_log.iterdir())) == len(before)
    clock.advance(121)
    store.retention.step()
    assert log_names(store)[0] == store.start_offset


def test_nothing_goes_before_it_is_on_the_disk_and_visible(
    tmp_path: Path, disk: Disk, clock: ManualClock
) -> None:
    store = opened(
        tmp_path, files=disk, clock=clock, retention=kept(), flush_disk_type="SYNC_FLUSH"
    )
    for number in range(300):
        assert store.put(message(b"%-64d" % number)).status is PutStatus.OK
    clock.advance(73 * HOUR)
    assert store.put(message(b"300")).status is PutStatus.OK
    store.retention.step()
    assert store.start_offset == 0
    store.flush()
    store.retention.step()
    assert store.start_offset > 0
    assert numbers(store)[0] == store.min_offset("TopicTest", 0) > 0
    store.close()


def test_old_files_go_when_somebody_asks_whatever_the_hour(
    tmp_path: Path, disk: Disk, clock: ManualClock
) -> None:
    store = opened(tmp_path, files=disk, clock=clock, retention=kept(delete_hours=frozenset()))
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 100, first=300)
    store.retention.step()
    assert store.start_offset == 0
    store.retention.ask()
    store.retention.step()
    assert store.start_offset > 0
    # What is not safe yet goes as soon as it is.
    for number in range(400, 600):
        store.put(message(b"%-64d" % number))
    clock.advance(73 * HOUR)
    store.put(message(b"%-64d" % 600))
    safe_end = store._opened().queue_flusher.safe.safe_end()
    for _ in range(3):
        store.retention.step()
    assert store.start_offset <= safe_end
    store.flush()
    store.retention.step()
    assert store.start_offset > safe_end
    # It is over once nothing more is to be done.
    store.retention.step()
    clock.advance(73 * HOUR)
    fill(store, 300, first=601)
    start = store.start_offset
    store.retention.step()
    assert store.start_offset == start
    store.close()


def test_followers_are_told_where_the_log_begins(store: MessageStore, clock: ManualClock) -> None:
    told: list[int] = []

    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    store.retention.followers += [fails, told.append]
    fill(store, 300)
    store.retention.step()
    assert told == []
    clock.advance(73 * HOUR)
    fill(store, 100, first=300)
    store.retention.step()
    assert told == [store.start_offset]


async def test_a_cold_read_of_a_file_that_goes_meanwhile_finds_the_new_beginning(
    store: MessageStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 300)
    store.close()
    store.open()
    clock.advance(73 * HOUR)
    fill(store, 100, first=300)
    store._opened().queues.close()
    monkeypatch.setattr(module, "PRESSED_SECONDS", 0.0)
    reader = store._opened().reader
    monkeypatch.setattr(reader._warmth, "are_warm", lambda ranges: False)
    cold = store.get("TopicTest", 0, 0, 10, wait=False)
    assert cold.status is GetStatus.COLD
    reading = asyncio.ensure_future(store.get_patiently("me", "TopicTest", 0, 0, 10))
    codes = asyncio.ensure_future(store.tags_codes("me", "TopicTest", 0, 0, 10))
    await asyncio.sleep(0)
    store.retention.step()
    result = await asyncio.wait_for(reading, 10)
    assert result.status is GetStatus.OFFSET_TOO_SMALL
    assert result.next_offset == store.min_offset("TopicTest", 0) > 0
    assert await asyncio.wait_for(codes, 10) == []


async def test_the_thread_deletes_and_ends_with_the_store(
    tmp_path: Path, disk: Disk, clock: ManualClock
) -> None:
    store = opened(
        tmp_path,
        files=disk,
        clock=clock,
        retention=kept(first_delay_ms=0, interval_ms=10),
    )
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 100, first=300)
    deleted = asyncio.Event()
    loop = asyncio.get_running_loop()
    store.retention.followers.append(lambda _: loop.call_soon_threadsafe(deleted.set))
    store.start(loop)
    await asyncio.wait_for(deleted.wait(), 20)
    assert store.start_offset > 0
    low = store.min_offset("TopicTest", 0)
    assert numbers(store) == list(range(low, 400))
    store.close()


async def test_nothing_goes_soon_after_the_start_but_the_disk_is_looked_at(
    tmp_path: Path, disk: Disk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.use = DiskUse(95, 5)
    store = opened(tmp_path, files=disk, clock=clock, retention=kept(interval_ms=10))
    fill(store, 300)
    looked = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()
    measured = DiskState.measured

    def look(state: DiskState, too_full: str | None) -> None:
        measured(state, too_full)
        loop.call_soon_threadsafe(looked.release)

    async def looks(count: int) -> None:
        for _ in range(count):
            await asyncio.wait_for(looked.acquire(), 20)

    monkeypatch.setattr(DiskState, "measured", look)
    store.start(loop)
    await looks(3)
    assert not store.writable
    assert store.start_offset == 0
    clock.advance(61)
    await looks(3)
    assert store.start_offset > 0
    store.close()


async def test_a_store_that_closes_while_files_go_ends_at_once(
    tmp_path: Path, disk: Disk, clock: ManualClock
) -> None:
    store = opened(
        tmp_path, files=disk, clock=clock, retention=kept(first_delay_ms=0, interval_ms=10)
    )
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 100, first=300)
    store.start(asyncio.get_running_loop())
    # The loop is not given back, so the thread waits for it.
    store.close()
    store.open()
    low = store.min_offset("TopicTest", 0)
    assert numbers(store) == list(range(low, 400))
    store.close()


def test_a_queue_that_can_not_be_read_keeps_its_beginning_and_serves_what_is_there(
    store: MessageStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 100, first=300)

    def fails(queue: ConsumeQueue, position: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "first_alive", fails)
    store.retention.step()
    assert store.start_offset > 0
    assert store.min_offset("TopicTest", 0) == 0
    assert store.get("TopicTest", 0, 0, 10).status is GetStatus.MESSAGE_WAS_REMOVING
    found = numbers(store)
    assert found == list(range(found[0], 400))


def test_a_disk_that_can_not_be_asked_is_not_too_full(
    store: MessageStore, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path) -> DiskUse:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk, "disk_use", fails)
    store.retention.step()
    assert store.writable
    assert store.retention.stats.places == ()


def test_a_damaged_first_record_leaves_the_age_to_the_next_file(
    store: MessageStore, clock: ManualClock
) -> None:
    fill(store, 200)
    clock.advance(73 * HOUR)
    fill(store, 200, first=200)
    second = store._opened().log.files[1]
    second.view[4:8] = b"\xff" * 4
    store.retention.step()
    # What is behind the first file can't be told by its first record, only by later ones.
    assert store.start_offset > second.start
    region: Region = store._opened().log.files[0].hold()
    assert len(region.view) == LOG_FILE
