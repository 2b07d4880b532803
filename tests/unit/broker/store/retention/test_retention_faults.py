"""Files that can't be deleted or read hold up only themselves and newer ones."""

from __future__ import annotations

import pytest

from broker.store import retention as module
from broker.store.consume_queue import ConsumeQueue
from broker.store.engine import GetStatus, MessageStore
from broker.store.os_files import Region
from tests.support.clock import ManualClock
from tests.unit.broker.store.retention.forgetful import HOUR, Disk, fill, log_names, numbers
from tests.unit.broker.store.stores import LOG_FILE


def test_a_file_that_cannot_be_deleted_is_retried_and_holds_up_newer_ones(
    store: MessageStore, disk: Disk, clock: ManualClock
) -> None:
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 200, first=300)
    before = log_names(store)
    disk.remove_error = PermissionError(1, "Operation not permitted")
    store.retention.step()
    assert store.log.start > 0
    assert sorted(int(path.name) for path in store.paths.commit_log.iterdir()) == before
    # One of the log and one of the queue; the others wait behind them.
    assert store.retention.removals.failures == 2
    disk.remove_error = None
    store.retention.step()
    assert len(list(store.paths.commit_log.iterdir())) == len(before)
    clock.advance(121)
    store.retention.step()
    assert log_names(store)[0] == store.log.start


def test_an_unreadable_queue_keeps_its_beginning_and_serves_existing_messages(
    store: MessageStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 300)
    clock.advance(73 * HOUR)
    fill(store, 100, first=300)

    def fails(queue: ConsumeQueue, position: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "first_alive", fails)
    store.retention.step()
    assert store.log.start > 0
    assert store.queries.min_offset("TopicTest", 0) == 0
    assert store.get("TopicTest", 0, 0, 10).status is GetStatus.MESSAGE_WAS_REMOVING
    found = numbers(store)
    assert found == list(range(found[0], 400))


def test_a_damaged_first_record_leaves_the_age_to_the_next_file(
    store: MessageStore, clock: ManualClock
) -> None:
    fill(store, 200)
    clock.advance(73 * HOUR)
    fill(store, 200, first=200)
    second = store.log.files[1]
    second.view[4:8] = b"\xff" * 4
    store.retention.step()
    # The first file's successor is known only by later records, not by its first.
    assert store.log.start > second.start
    region: Region = store.log.files[0].hold()
    assert len(region.view) == LOG_FILE
