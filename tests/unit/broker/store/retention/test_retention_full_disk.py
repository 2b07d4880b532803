"""A full disk deletes unexpired files, and refuses messages if that isn't enough."""

from __future__ import annotations

import gc

from broker.store.engine import MessageStore, PutStatus
from broker.store.os_files import DiskUse
from remoting.protocol.message.view import iter_records
from tests.support.clock import ManualClock
from tests.unit.broker.store.retention.forgetful import Disk, fill, numbers
from tests.unit.broker.store.stores import LOG_FILE, message


def test_a_full_disk_deletes_unexpired_files_only_as_far_as_needed(
    store: MessageStore, disk: Disk
) -> None:
    fill(store, 600)
    files = len(store.log.files)
    # Of 100 files' room 88 are taken: three have to go.
    disk.use = DiskUse(88 * LOG_FILE, 12 * LOG_FILE)
    assert store.retention.step() == store.config.limits.pressed_seconds
    assert len(store.log.files) == files - 3
    assert store.retention.stats.unexpired_files == 3
    assert store.writable
    low = store.queries.min_offset("TopicTest", 0)
    assert numbers(store) == list(range(low, 600))
    disk.use = DiskUse(85 * LOG_FILE, 15 * LOG_FILE)
    assert store.retention.step() == 10.0
    assert len(store.log.files) == files - 3


def test_a_full_disk_refuses_with_path_and_limit_until_there_is_space(
    store: MessageStore, disk: Disk, clock: ManualClock
) -> None:
    disk.use = DiskUse(91, 9)
    store.retention.step()
    refused = store.put(message())
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert refused.message == store.why_not_writable
    assert f"the disk of {store.paths.commit_log} is 91% full with 9 bytes free" in refused.message
    assert "the 90 % of diskSpaceWarningLevelRatio" in refused.message
    # Nothing else ends the refusal: neither time nor a successful allocation.
    clock.advance(5)
    assert store.preallocator.try_step() is False
    assert not store.writable
    disk.use = DiskUse(90, 10)
    store.retention.step()
    assert store.writable
    assert store.put(message()).status is PutStatus.OK


def test_a_disk_that_has_refused_stays_refused_when_it_is_measured(
    store: MessageStore, disk: Disk
) -> None:
    trouble = store.disk.refused(store.paths.root, OSError(28, "No space left on device"))
    store.retention.step()
    assert store.why_not_writable == trouble
    store.disk.accepted()
    assert store.writable


def test_a_reader_keeps_its_slices_and_their_space_is_waited_for(
    store: MessageStore, disk: Disk, clock: ManualClock
) -> None:
    fill(store, 600)
    slices = store.get("TopicTest", 0, 0, 32).records
    bodies = [bytes(record.body) for run in slices for record in iter_records(run)]
    files = len(store.log.files)
    disk.use = DiskUse(86 * LOG_FILE, 14 * LOG_FILE)
    store.retention.step()
    assert len(store.log.files) == files - 1
    assert store.retention.removals.held_bytes == LOG_FILE
    # The reader's file is deleted from the directory, and its space still counts as used.
    store.retention.step()
    assert len(store.log.files) == files - 1
    assert [bytes(record.body) for run in slices for record in iter_records(run)] == bodies
    clock.advance(121)
    store.retention.step()
    assert len(store.log.files) == files - 2
    del slices
    gc.collect()
    assert store.retention.removals.held_bytes == 0


def test_a_disk_whose_usage_is_unknown_is_not_too_full(store: MessageStore, disk: Disk) -> None:
    disk.use_error = OSError(5, "Input/output error")
    store.retention.step()
    assert store.writable
    assert store.retention.stats.places == ()
