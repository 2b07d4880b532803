"""Damage in the middle and files that are gone: what can still be served is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker.store.message_store import GetStatus, MessageStore
from remoting.protocol.message.view import RecordView
from tests.unit.broker.store.crashes import (
    crash,
    log_files,
    overwrite,
    put_raw,
    queue_file,
)
from tests.unit.broker.store.stores import (
    LOG_FILE,
    QUEUE_FILE,
    bodies,
    message,
    opened,
)


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return opened(tmp_path / "store")


# --- damage in the middle of what had reached the disk


def test_one_damaged_record_does_not_cost_those_behind_it(store: MessageStore) -> None:
    for number in range(10):
        store.put(message(b"body %d" % number))
    store.flush()
    found = crash(store)
    size = store.end_offset // 10
    overwrite(found, 4 * size + 88, b"BODY")
    report = found.open()
    assert (report.damaged_records, report.scanned_records) == (1, 9)
    assert report.end_offset == store.end_offset
    assert bodies(found) == [b"body %d" % number for number in range(10) if number != 4]
    assert found.put(message()).queue_offset == 10
    found.close()
    store.close()


def test_the_number_of_a_damaged_last_message_is_not_given_again(store: MessageStore) -> None:
    """A consumer may have had it; the next message would never reach that one."""
    for queue_id in (0, 0, 1, 2):
        last = store.put(message(b"body", queue_id=queue_id))
    store.put(message(b"others", queue_id=3))
    store.flush()
    found = crash(store)
    size = last.end_offset - last.physical_offset
    for number in (1, 3):
        overwrite(found, number * size + 88, b"BODY")
    for expected in ((2, 1, 1), (3, 2, 2)):
        assert found.open().clean is (expected[0] == 3)
        numbers = [found.put(message(b"new", queue_id=n)).queue_offset for n in range(3)]
        assert tuple(numbers) == expected
        found.close()
    found.open()
    assert bodies(found) == [b"body", b"new", b"new"]
    assert bodies(found, queue_id=2) == [b"new", b"new"]
    found.close()
    store.close()


def test_a_damaged_file_does_not_cost_those_behind_it(store: MessageStore) -> None:
    for number in range(20):
        store.put(message(b"%2d" % number + b"x" * 3000))
    store.flush()
    found = crash(store)
    size = RecordView(store.get("TopicTest", 0, 0, 1).records[0]).size
    overwrite(found, size, bytes(200))
    report = found.open()
    assert report.damaged_records == 1
    assert report.end_offset == store.end_offset
    assert [int(body[:2]) for body in bodies(found)] == [0, *range(2, 20)]
    found.close()
    store.close()


def test_damage_behind_the_checkpoint_ends_the_log(store: MessageStore) -> None:
    for number in range(10):
        store.put(message(b"body %d" % number))
    found = crash(store)
    overwrite(found, 4 * (store.end_offset // 10) + 88, b"BODY")
    report = found.open()
    assert (report.damaged_records, report.scanned_records) == (0, 4)
    assert bodies(found) == [b"body %d" % number for number in range(4)]
    found.close()
    store.close()


# --- a log whose beginning has gone


def test_numbers_go_on_when_old_files_are_gone(store: MessageStore) -> None:
    store.put(message(topic="Expired"))
    for number in range(80):
        store.put(message(b"%2d" % number + b"x" * 900))
    for lost in (False, True):
        found = crash(store)
        for path in log_files(found)[:2]:
            path.unlink()
        if lost:
            shutil.rmtree(found.paths.consume_queues / "TopicTest")
        found.open()
        assert found.start_offset == 2 * LOG_FILE
        low = found.min_offset("TopicTest", 0)
        assert [int(body[:2]) for body in bodies(found)] == list(range(low, 80))
        assert low > 20
        assert found.get("TopicTest", 0, 0, 1).status is GetStatus.OFFSET_TOO_SMALL
        assert found.put(message()).queue_offset == 80
        # All of the other queue's messages are gone, but not its numbers.
        assert found.get("Expired", 0, 0, 1).status is GetStatus.OFFSET_TOO_SMALL
        assert found.get("Expired", 0, 1, 1).status is GetStatus.OFFSET_OVERFLOW_ONE
        assert found.put(message(topic="Expired")).queue_offset == 1
        found.close()
        found.open()
        assert (found.min_offset("TopicTest", 0), found.min_offset("Expired", 0)) == (low, 1)
        assert len(bodies(found)) == 81 - low
        found.close()
    store.close()


def test_a_queue_that_begins_late_is_filled_as_the_reference_fills_it(
    store: MessageStore,
) -> None:
    for number in range(80):
        store.put(message(b"%2d" % number + b"x" * 900))
    found = crash(store)
    for path in log_files(found)[:2]:
        path.unlink()
    shutil.rmtree(found.paths.consume_queues)
    found.open()
    low = found.min_offset("TopicTest", 0)
    entries = queue_file(found).read_bytes()
    assert entries[: 20 * low] == bytes.fromhex("00000000000000007fffffff0000000000000000") * low
    found.close()
    store.close()


def test_numbers_that_do_not_go_with_the_log_are_begun_anew(store: MessageStore) -> None:
    """A queue was lost and began again at 0, as it happens with the reference."""
    for number in range(120):
        store.put(message(b"%d" % number))
    put_raw(store, queue_offset=0, body=b"again")
    found = crash(store)
    queue_file(found).unlink()
    found.open()
    assert bodies(found) == [b"again"]
    assert found.put(message()).queue_offset == 1
    found.close()
    store.close()


def test_a_queue_without_its_middle_file_keeps_what_can_be_reached(store: MessageStore) -> None:
    for number in range(160):
        store.put(message(b"%d" % number))
    store.close()
    queue_file(store, QUEUE_FILE).unlink()
    store.open()
    assert store.min_offset("TopicTest", 0) == 100
    assert bodies(store) == [b"%d" % number for number in range(100, 160)]
    store.close()
