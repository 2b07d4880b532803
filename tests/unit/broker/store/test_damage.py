"""Damage in the middle and missing files: everything readable is served."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.store.engine import GetStatus, MessageStore
from remoting.protocol.accelerated import crc32
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


def crash_without_safe_point(store: MessageStore) -> MessageStore:
    """Crash like another broker, without a safe point, so that the whole log is read."""
    found = crash(store)
    found.paths.own_checkpoint.unlink()
    return found


def test_one_damaged_record_does_not_cost_those_behind_it(store: MessageStore) -> None:
    for number in range(10):
        store.put(message(b"body %d" % number))
    store.flush()
    found = crash_without_safe_point(store)
    size = store.log.end // 10
    overwrite(found, 4 * size + 88, b"BODY")
    report = found.open()
    assert (report.damaged_records, report.scanned_records) == (1, 9)
    assert report.end_offset == store.log.end
    assert bodies(found) == [b"body %d" % number for number in range(10) if number != 4]
    assert found.put(message()).queue_offset == 10
    found.close()
    store.close()


def test_the_offset_of_a_damaged_last_message_is_not_reused(store: MessageStore) -> None:
    """A consumer may have had it; the next message would never reach that one."""
    for queue_id in (0, 0, 1, 2):
        last = store.put(message(b"body", queue_id=queue_id))
    store.put(message(b"others", queue_id=3))
    store.flush()
    found = crash_without_safe_point(store)
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
    found = crash_without_safe_point(store)
    size = RecordView(store.get("TopicTest", 0, 0, 1).records[0]).size
    overwrite(found, size, bytes(200))
    report = found.open()
    assert report.damaged_records == 1
    assert report.end_offset == store.log.end
    kept = [0, *range(LOG_FILE // size, 20)]
    assert [int(body[:2]) for body in bodies(found)] == kept
    found.close()
    store.close()


def test_after_damage_the_next_record_is_searched_for_in_the_synced_part(
    store: MessageStore,
) -> None:
    for number in range(20):
        store.put(message(b"%2d" % number + b"x" * 3000))
    store.flush()
    size = RecordView(store.get("TopicTest", 0, 0, 1).records[0]).size
    for damage in (bytes(200), bytes(4096), b"junk" * 50):
        found = crash(store)
        # The whole log is scanned, because this queue has to be rebuilt.
        shutil.rmtree(found.paths.consume_queues / "TopicTest")
        overwrite(found, size, damage)
        report = found.open()
        assert report.damaged_records == 1
        lost = 1 + len(damage) // size
        assert [int(body[:2]) for body in bodies(found)] == [0, *range(1 + lost, 20)]
        assert found.put(message()).queue_offset == 20
        found.close()
    store.close()


def test_a_queue_that_is_lost_is_built_before_it_takes_a_message(store: MessageStore) -> None:
    for number in range(120):
        store.put(message(b"%d" % number, queue_id=number % 2))
    store.close()
    for way in ("copied", "killed", "stopped"):
        # In the same place the stop's word is read, and not believed.
        found = MessageStore(store.config) if way == "stopped" else crash(store)
        if way == "killed":
            found.paths.abort.touch()
        shutil.rmtree(found.paths.consume_queues / "TopicTest" / "1")
        report = found.open()
        assert "queue 1 of topic TopicTest has entries from 0 to 0" in report.notes[0]
        assert bodies(found, queue_id=1) == [b"%d" % number for number in range(1, 120, 2)]
        assert found.put(message(queue_id=1)).queue_offset == 60
        assert found.put(message(queue_id=0)).queue_offset == 60
        found.close()


def test_a_deleted_topic_is_not_taken_for_a_lost_one(store: MessageStore) -> None:
    for _ in range(10):
        store.put(message())
        store.put(message(topic="Kept"))
    store.flush()
    store.delete_topic("TopicTest")
    found = crash(store)
    assert found.open().notes == []
    assert found.queues.topics() == ["Kept"]
    assert found.put(message()).queue_offset == 0
    found.close()
    store.close()


@pytest.mark.parametrize("new", [0, 3])
@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("lost", ["", "checkpoint", "queues"])
def test_no_rebuild_brings_back_the_messages_of_a_deleted_topic(
    store: MessageStore, lost: str, flushed: bool, new: int
) -> None:
    for number in range(12):
        store.put(message(b"old", queue_id=number % 4))
        store.put(message(topic="Kept"))
    if flushed:
        store.flush()
    store.delete_topic("TopicTest")
    for _ in range(new):
        store.put(message(b"new"))
    found = crash(store)
    if lost:
        found.paths.own_checkpoint.unlink(missing_ok=True)
    if lost == "queues":
        shutil.rmtree(found.paths.consume_queues)
    found.open()
    assert bodies(found) == [b"new"] * new
    assert found.queues.queue_ids("TopicTest") == ([0] if new else [])
    assert len(bodies(found, "Kept")) == 12
    assert found.put(message()).queue_offset == new
    found.close()
    store.close()


def test_queues_that_a_crash_left_of_a_deleted_topic_are_removed(store: MessageStore) -> None:
    for number in range(4):
        store.put(message(b"old", queue_id=number))
    shutil.copytree(store.paths.consume_queues / "TopicTest", store.paths.root / "kept")
    store.delete_topic("TopicTest")
    store.put(message(topic="Kept"))
    found = crash(store)
    shutil.move(found.paths.root / "kept", found.paths.consume_queues / "TopicTest")
    found.open()
    assert found.queues.topics() == ["Kept"]
    assert found.put(message()).queue_offset == 0
    found.close()
    store.close()


def test_a_log_that_lost_its_end_takes_new_messages_of_a_deleted_topic(store: MessageStore) -> None:
    store.put(message(topic="Kept"))
    kept = store.log.end
    for _ in range(9):
        store.put(message(b"old"))
    store.delete_topic("TopicTest")
    found = crash(store)
    overwrite(found, kept, bytes(LOG_FILE - kept))
    found.open()
    assert found.put(message(b"new")).queue_offset == 0
    again = crash(found)
    again.paths.own_checkpoint.unlink()
    again.open()
    assert bodies(again) == [b"new"]
    for one in (again, found, store):
        one.close()


@pytest.mark.parametrize("text", [b"", b"junk", b"[]", b'{"logEnds":{"T":"x"}}', b'{"logEnds":3}'])
def test_a_damaged_file_of_deleted_topics_is_logged_and_written_again(
    store: MessageStore, text: bytes
) -> None:
    store.put(message(b"old"))
    store.close()
    store.paths.deleted_topics.parent.mkdir(exist_ok=True)
    store.paths.deleted_topics.write_bytes(text)
    with capture_logs() as logs:
        store.open()
    assert [one["log_level"] for one in logs if "deleted topics" in one["event"]] == (
        ["warning"] if text else []
    )
    store.delete_topic("TopicTest")
    found = crash(store)
    found.paths.own_checkpoint.unlink()
    found.open()
    assert found.queues.topics() == []
    found.close()
    store.close()


def test_the_offsets_of_a_lost_queue_continue_after_its_messages_expired(
    store: MessageStore,
) -> None:
    for _ in range(7):
        store.put(message(topic="Expired"))
    for number in range(80):
        store.put(message(b"%2d" % number + b"x" * 900))
    store.close()
    found = crash(store)
    for path in log_files(found)[:2]:
        path.unlink()
    shutil.rmtree(found.paths.consume_queues / "Expired")
    found.open()
    assert found.put(message(topic="Expired")).queue_offset == 7
    assert bodies(found, "Expired") == [b"hello"]
    found.close()


@pytest.mark.parametrize("moved", [1, 2], ids=["a file less", "two files less"])
def test_messages_after_a_lost_end_of_the_log_survive_a_stop_and_a_kill(
    store: MessageStore, moved: int
) -> None:
    for _ in range(400):
        store.put(message(b""))
    store.close()
    files = log_files(store)
    assert len(files) == 3
    for path in files[-moved:]:
        path.unlink()
    store.open()
    left, first = len(bodies(store)), store.put(message(b"new 0")).queue_offset
    # Without the lost messages, the log has room for fewer than there were.
    assert left < first < 400
    store.put(message(b"new 1"))
    found = crash(store)
    found.open()
    assert bodies(found)[left:] == [b"new 0", b"new 1"]
    for _ in range(2):
        found.close()
        found.open()
        assert bodies(found)[left:] == [b"new 0", b"new 1"]
    assert found.put(message()).queue_offset == first + 2
    found.close()
    store.close()


def test_a_safe_point_that_does_not_match_the_log_is_ignored(store: MessageStore) -> None:
    for number in range(40):
        store.put(message(b"%100d" % number))
    store.flush()
    found = crash(store)
    # Another broker had the store and its log ended sooner.
    end = RecordView(store.get("TopicTest", 0, 30, 1).records[0]).physical_offset
    overwrite(found, end, bytes(LOG_FILE - end))
    report = found.open()
    assert "the log is not what it was" in report.notes[0]
    assert bodies(found) == [b"%100d" % number for number in range(30)]
    # What was acknowledged keeps its number.
    assert found.put(message(b"new")).queue_offset == 40
    assert bodies(found)[-1] == b"new"
    found.close()
    store.close()


@pytest.mark.parametrize("text", [b"", b"junk", b"{}00000000", b"\0" * 500])
def test_a_damaged_safe_point_costs_nothing_but_time(store: MessageStore, text: bytes) -> None:
    for number in range(40):
        store.put(message(b"%d" % number))
    store.flush()
    found = crash(store)
    found.paths.own_checkpoint.write_bytes(text)
    report = found.open()
    assert (report.scanned_records, report.notes) == (40, [])
    assert bodies(found) == [b"%d" % number for number in range(40)]
    found.close()
    store.close()


def test_a_safe_point_of_a_later_version_is_not_read(store: MessageStore) -> None:
    for number in range(40):
        store.put(message(b"%d" % number))
    store.flush()
    found = crash(store)
    text = found.paths.own_checkpoint.read_bytes()[:-8].replace(b'"format":1', b'"format":2')
    found.paths.own_checkpoint.write_bytes(text + b"%08x" % crc32(text))
    assert found.open().scanned_records == 40
    found.close()
    store.close()


def test_damage_behind_the_checkpoint_ends_the_log(store: MessageStore) -> None:
    for number in range(10):
        store.put(message(b"body %d" % number))
    found = crash(store)
    overwrite(found, 4 * (store.log.end // 10) + 88, b"BODY")
    report = found.open()
    assert (report.damaged_records, report.scanned_records) == (0, 4)
    assert bodies(found) == [b"body %d" % number for number in range(4)]
    found.close()
    store.close()


# --- a log whose first files are deleted


def test_offsets_continue_when_old_files_are_deleted(store: MessageStore) -> None:
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
        assert found.log.start == 2 * LOG_FILE
        low = found.queries.min_offset("TopicTest", 0)
        assert [int(body[:2]) for body in bodies(found)] == list(range(low, 80))
        assert low > 20
        assert found.get("TopicTest", 0, 0, 1).status is GetStatus.OFFSET_TOO_SMALL
        assert found.put(message()).queue_offset == 80
        # The other queue has lost all its messages, but not its next offset.
        assert found.get("Expired", 0, 0, 1).status is GetStatus.OFFSET_TOO_SMALL
        assert found.get("Expired", 0, 1, 1).status is GetStatus.OFFSET_OVERFLOW_ONE
        assert found.put(message(topic="Expired")).queue_offset == 1
        found.close()
        found.open()
        assert (
            found.queries.min_offset("TopicTest", 0),
            found.queries.min_offset("Expired", 0),
        ) == (low, 1)
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
    low = found.queries.min_offset("TopicTest", 0)
    entries = queue_file(found).read_bytes()
    assert entries[: 20 * low] == bytes.fromhex("00000000000000007fffffff0000000000000000") * low
    found.close()
    store.close()


def test_offsets_that_do_not_match_the_log_restart(store: MessageStore) -> None:
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
    assert store.queries.min_offset("TopicTest", 0) == 100
    assert bodies(store) == [b"%d" % number for number in range(100, 160)]
    store.close()
