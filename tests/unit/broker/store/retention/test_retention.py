"""Retention: the oldest files are deleted, and the remaining messages are readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.engine import GetStatus, MessageStore, PutStatus
from tests.support.clock import ManualClock
from tests.unit.broker.store.crashes import crash
from tests.unit.broker.store.retention.forgetful import (
    HOUR,
    PER_QUEUE_FILE,
    Disk,
    fill,
    kept,
    log_names,
    numbers,
    queue_directory,
    queue_names,
    queue_of,
)
from tests.unit.broker.store.stores import LOG_FILE, QUEUE_FILE, message, opened


def test_expired_log_and_queue_files_are_deleted_and_the_first_offset_is_right(
    store: MessageStore, clock: ManualClock
) -> None:
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 300, first=300)
    before = log_names(store)
    store.retention.step()
    start, low = store.log.start, store.queries.min_offset("TopicTest", 0)
    # The file with the 300th message has unexpired ones too, so it stays, with a few expired ones.
    assert start == store.log.files[0].start > 0
    assert set(log_names(store)) < set(before)
    assert 0 < 300 - low < 100
    assert numbers(store) == list(range(low, 600))
    entry = queue_of(store).entry(low)
    assert entry is not None
    assert entry[0] >= start
    assert queue_names(store)[0] == low // PER_QUEUE_FILE * QUEUE_FILE
    assert store.queries.max_offset("TopicTest", 0) == 600


def test_readers_before_the_beginning_get_the_first_offset(
    store: MessageStore, clock: ManualClock
) -> None:
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 300, first=300)
    store.retention.step()
    low = store.queries.min_offset("TopicTest", 0)
    result = store.get("TopicTest", 0, low - 1, 10)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
    assert store.queries.record_at(0) is None
    assert store.queries.store_time_at("TopicTest", 0, low - 1) == -1
    assert store.queries.offset_by_time("TopicTest", 0, 1) == low


def test_a_queue_whose_messages_are_all_deleted_continues_its_offsets(
    store: MessageStore, clock: ManualClock
) -> None:
    fill(store, 60, topic="Old")
    fill(store, 200)
    clock.advance(100 * HOUR)
    fill(store, 200, first=200)
    store.retention.step()
    assert (store.queries.min_offset("Old", 0), store.queries.max_offset("Old", 0)) == (60, 60)
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
    low, after = store.queries.min_offset("TopicTest", 0), queue_names(store)
    for name in set(before) - set(after):
        (queue_directory(store) / f"{name:020d}").write_bytes(copies[name])
    # At whatever time of the day the test runs: no hour to delete what is old.
    again = crash(store, files=disk, retention=kept(delete_hours=frozenset()))
    again.open()
    assert queue_names(again) == before
    assert again.queries.min_offset("TopicTest", 0) == low
    again.retention.step()
    assert queue_names(again) == after
    assert numbers(again) == list(range(low, 600))
    again.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_store_with_deleted_files_reopens_unchanged(
    store: MessageStore, clock: ManualClock, clean: bool
) -> None:
    fill(store, 60, topic="Old")
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 300, first=300)
    store.retention.step()
    low, start = store.queries.min_offset("TopicTest", 0), store.log.start
    again = crash(store)
    if clean:
        store.close()
        again = store
    assert again.open().clean is clean
    assert again.log.start == start
    assert again.queries.min_offset("TopicTest", 0) == low
    assert numbers(again) == list(range(low, 600))
    assert (again.queries.min_offset("Old", 0), again.queries.max_offset("Old", 0)) == (60, 60)
    fill(again, 1, first=60, topic="Old")
    assert numbers(again, "Old") == [60]
    again.close()


def test_the_last_file_stays_however_old_it_is(store: MessageStore, clock: ManualClock) -> None:
    fill(store, 300)
    clock.advance(1000 * HOUR)
    for _ in range(5):
        store.retention.step()
    # Its successor has no message yet, so its age is unknown.
    assert len(log_names(store)) >= 1
    assert store.log.end - store.log.start <= LOG_FILE
    assert numbers(store)[-1] == 299


def test_nothing_is_deleted_before_it_is_synced_and_visible(
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
    assert store.log.start == 0
    store.flush()
    store.retention.step()
    assert store.log.start > 0
    assert numbers(store)[0] == store.queries.min_offset("TopicTest", 0) > 0
    store.close()


def test_a_request_counts_that_comes_during_another(tmp_path: Path, disk: Disk) -> None:
    class Busy(ManualClock):
        asked = False

        def now_ms(self) -> int:
            now = super().now_ms()
            if self.asked:
                self.asked = False
                self.advance(73 * HOUR)
                store.retention.ask()
            return now

    clock = Busy()
    store = opened(tmp_path, files=disk, clock=clock, retention=kept(delete_hours=frozenset()))
    fill(store, 300)
    store.retention.ask()
    clock.asked = True
    store.retention.step()
    assert store.log.start == 0
    store.retention.step()
    assert store.log.start > 0
    store.close()


def test_expired_files_are_deleted_on_request_at_any_hour(
    tmp_path: Path, disk: Disk, clock: ManualClock
) -> None:
    store = opened(tmp_path, files=disk, clock=clock, retention=kept(delete_hours=frozenset()))
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 100, first=300)
    store.retention.step()
    assert store.log.start == 0
    store.retention.ask()
    store.retention.step()
    assert store.log.start > 0
    # What is not safe yet goes as soon as it is.
    for number in range(400, 600):
        store.put(message(b"%-64d" % number))
    clock.advance(73 * HOUR)
    store.put(message(b"%-64d" % 600))
    safe_end = store.checkpoint.safe_end
    for _ in range(3):
        store.retention.step()
    assert store.log.start <= safe_end
    store.flush()
    store.retention.step()
    assert store.log.start > safe_end
    # It is over once nothing more is to be done.
    store.retention.step()
    clock.advance(73 * HOUR)
    fill(store, 300, first=601)
    start = store.log.start
    store.retention.step()
    assert store.log.start == start
    store.close()


async def test_index_files_of_deleted_messages_are_deleted(
    store: MessageStore, clock: ManualClock
) -> None:
    async def indexed() -> set[str]:
        await store.index.find("TopicTest", "none", max_count=1, begin_ms=0, end_ms=2**62)
        return {path.name for path in store.paths.index.iterdir()}

    for number in range(300):
        store.put(message(b"%-64d" % number, properties=b"KEYS\x01k%d" % number))
    before = await indexed()
    store.retention.step()
    assert await indexed() == before
    clock.advance(73 * HOUR)
    fill(store, 100, first=300)
    store.retention.step()
    assert store.log.start > 0
    assert await indexed() < before
