"""Recovery repairs what a crash leaves: no intact message lost, no damaged one served."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from broker.store.engine import MessageStore, PutStatus
from tests.support.sizes import size
from tests.unit.broker.store.crashes import (
    crash,
    log_bytes,
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
    read_all,
)


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return opened(tmp_path / "store")


def test_a_kill_loses_nothing_that_was_put(store: MessageStore) -> None:
    for number in range(100):
        store.put(message(b"%d" % number * 50, queue_id=number % 3))
    found = crash(store)
    report = found.open()
    assert (report.clean, report.scanned_records, report.cut_bytes) == (False, 100, 0)
    assert (report.rebuilt_entries, report.cut_entries, report.queues) == (0, 0, 3)
    assert report.end_offset == found.log.end == store.log.end
    for queue_id in range(3):
        assert bodies(found, queue_id=queue_id) == bodies(store, queue_id=queue_id)
    assert found.put(message()).queue_offset == store.put(message()).queue_offset
    found.close()
    store.close()


def test_after_a_kill_a_sync_mode_store_shows_everything_in_its_log(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", flush_disk_type="SYNC_FLUSH")
    store.put(message(b"never flushed"))
    found = crash(store)
    found.open()
    assert bodies(found) == [b"never flushed"]
    found.close()
    store.close()


@pytest.mark.parametrize("text", [b"k\x01%b\x02l\x01v", b"k\x01%b"], ids=["within", "at the end"])
@pytest.mark.parametrize("zeros", [1, 511, 512, 1500])
def test_a_kill_loses_no_accepted_message_with_zero_bytes(
    store: MessageStore, text: bytes, zeros: int
) -> None:
    for number in range(20):
        # At all positions within a sector.
        store.put(message(bytes(27 * number), properties=text % bytes(zeros)))
        store.put(message(b"a later one"))
    accepted = len(read_all(store))
    assert accepted in {20, 40}
    found = crash(store)
    found.open()
    assert len(read_all(found)) == accepted
    found.close()
    store.close()


def test_prepared_messages_get_no_offset_in_a_rebuild(store: MessageStore) -> None:
    for kind in (0, 4, 8, 12, 0):
        store.put(message(b"%d" % kind, sys_flag=kind))
    found = crash(store)
    shutil.rmtree(found.paths.consume_queues)
    found.open()
    assert bodies(found) == [b"0", b"8", b"0"]
    found.close()
    store.close()


def test_delayed_messages_get_their_time_of_delivery_back(store: MessageStore) -> None:
    levels = {b"DELAY\x013": 10_000, b"DELAY\x0199": 7_200_000, b"DELAY\x01x": None, b"": None}
    stamps = []
    for text in levels:
        result = store.put(message(topic="SCHEDULE_TOPIC_XXXX", properties=text))
        stamps.append(result.store_timestamp_ms)
    found = crash(store)
    shutil.rmtree(found.paths.consume_queues)
    found.open()
    queue = found.queues.get(("SCHEDULE_TOPIC_XXXX", 0))
    assert queue is not None
    assert [queue.entry(number)[2] for number in range(queue.max_offset)] == [
        0 if delay is None else stamp + delay
        for stamp, delay in zip(stamps, levels.values(), strict=True)
    ]
    found.close()
    store.close()


# --- torn tails


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> MessageStore:
    """A store of several files, killed."""
    store = opened(tmp_path_factory.mktemp("written") / "store")
    for number in range(150):
        size = number * 37 % 900
        store.put(message(b"%d " % number + b"x" * size, queue_id=number % 2, tag="t"))
    return store


def ends_of(store: MessageStore) -> list[tuple[int, int, bytes]]:
    """Return for each message, in log order: its end, queue and body."""
    records = [(record, q) for q in (0, 1) for record in read_all(store, queue_id=q)]
    records.sort(key=lambda found: found[0].physical_offset)
    return [(record.physical_offset + record.size, q, record.body) for record, q in records]


def tear(store: MessageStore, cut: int) -> None:
    """Truncate the log as if nothing after ``cut`` had reached the disk."""
    for path in log_files(store):
        start = int(path.name)
        if start + LOG_FILE > cut:
            keep = max(0, cut - start)
            path.write_bytes(path.read_bytes()[:keep] + bytes(LOG_FILE - keep))


@settings(max_examples=size(test=25, ci=60, soak=2000))
@given(data=st.data())
def test_any_prefix_of_the_log_recovers_to_a_prefix_of_the_messages(
    written: MessageStore, data: st.DataObject
) -> None:
    everything = ends_of(written)
    cut = data.draw(st.integers(0, written.log.end), label="cut")
    found = crash(written)
    tear(found, cut)
    if data.draw(st.booleans(), label="queues lost"):
        shutil.rmtree(found.paths.consume_queues)
    report = found.open()
    # A message that lacks nothing but zeros at its end is whole; its last bytes are not covered.
    survivors = report.scanned_records
    whole = sum(end <= cut for end, _, _ in everything)
    assert whole <= survivors <= whole + 1
    for queue_id in (0, 1):
        kept = [body for _, q, body in everything[:survivors] if q == queue_id]
        assert bodies(found, queue_id=queue_id) == kept
        assert found.queries.max_offset("TopicTest", queue_id) == len(kept)
        assert found.put(message(b"new", queue_id=queue_id)).queue_offset == len(kept)
        assert bodies(found, queue_id=queue_id) == [*kept, b"new"]
    found.close()
    shutil.rmtree(found.paths.root)


@settings(max_examples=size(test=25, ci=60, soak=2000))
@given(data=st.data())
def test_one_wrong_byte_never_crashes_a_start_or_serves_a_wrong_body(
    written: MessageStore, data: st.DataObject
) -> None:
    everything = ends_of(written)
    at = data.draw(st.integers(0, written.log.end - 1), label="at")
    place = at - max((end for end, _, _ in everything if end <= at), default=0)
    # Nothing protects the number of the queue and of the message in it.
    assume(place not in {*range(12, 16), *range(20, 28)})
    found = crash(written)
    wrong = log_bytes(found)[at] ^ data.draw(st.integers(1, 255), label="bits")
    overwrite(found, at, bytes((wrong,)))
    found.open()
    before = sum(end <= at for end, _, _ in everything)
    served = [
        bytes(record.stored_body)
        for queue_id in found.queues.queue_ids("TopicTest")
        for record in read_all(found, queue_id=queue_id)
    ]
    assert {body for _, _, body in everything[:before]} <= set(served)
    assert set(served) <= {body for _, _, body in everything}
    assert found.put(message()).status is PutStatus.OK
    found.close()
    shutil.rmtree(found.paths.root)


@settings(max_examples=size(test=20, ci=40, soak=2000))
@given(data=st.data())
def test_overwritten_queue_entries_are_repaired(written: MessageStore, data: st.DataObject) -> None:
    found = crash(written)
    for queue_id in (0, 1):
        for path in sorted((found.paths.consume_queues / "TopicTest" / str(queue_id)).iterdir()):
            kind = data.draw(st.sampled_from(["keep", "remove", "zero", "hole", "junk"]))
            content = bytearray(path.read_bytes())
            if kind == "remove":
                path.unlink()
                continue
            if kind == "zero":
                content = bytearray(len(content))
            elif kind != "keep":
                start = data.draw(st.integers(0, QUEUE_FILE - 1))
                size = data.draw(st.integers(1, QUEUE_FILE - start))
                junk = data.draw(st.binary(min_size=1, max_size=8)) if kind == "junk" else b"\0"
                content[start : start + size] = (junk * size)[:size]
            path.write_bytes(content)
    found.open()
    for queue_id in (0, 1):
        assert bodies(found, queue_id=queue_id) == bodies(written, queue_id=queue_id)
        maximum = found.queries.max_offset("TopicTest", queue_id)
        assert maximum == written.queries.max_offset("TopicTest", queue_id)
    found.close()
    shutil.rmtree(found.paths.root)


def test_bytes_after_the_end_never_come_back(store: MessageStore) -> None:
    """Records of one size: when the log has grown again, it ends where an old one began."""
    for number in range(10):
        store.put(message(b"old %d" % number, tag="t"))
    found = crash(store)
    size = store.log.end // 10
    overwrite(found, 3 * size + 90, b"torn")
    report = found.open()
    assert report.end_offset == 3 * size
    assert report.cut_bytes == 7 * size
    found.put(message(b"new 3", tag="t"))
    again = crash(found)
    again.open()
    assert bodies(again) == [b"old 0", b"old 1", b"old 2", b"new 3"]
    for one in (again, found, store):
        one.close()


def test_files_behind_the_end_are_removed(store: MessageStore) -> None:
    for _ in range(30):
        store.put(message(b"x" * 2000))
    assert len(log_files(store)) == 5
    found = crash(store)
    overwrite(found, LOG_FILE + 88 + 5, b"torn")
    report = found.open()
    assert report.end_offset == LOG_FILE
    assert report.cut_entries == 30 - len(bodies(found))
    assert [int(path.name) for path in log_files(found)] == [0, LOG_FILE]
    found.put(message(b"next"))
    assert bodies(found)[-1] == b"next"
    found.close()
    store.close()


def test_a_torn_roll_continues_in_the_old_file(store: MessageStore) -> None:
    """The blank record was lost: the file is filled up again."""
    first = store.put(message(b"x" * 10_000))
    second = store.put(message(b"y" * 10_000))
    assert second.physical_offset == LOG_FILE
    found = crash(store)
    overwrite(found, first.end_offset, bytes(8))
    overwrite(found, LOG_FILE, bytes(100))
    found.open()
    assert found.log.end == first.end_offset
    assert found.put(message(b"z")).physical_offset == first.end_offset
    assert bodies(found) == [b"x" * 10_000, b"z"]
    found.close()
    store.close()


def test_a_roll_without_a_message_continues_in_the_new_file(store: MessageStore) -> None:
    first = store.put(message(b"x" * 10_000))
    store.put(message(b"y" * 10_000))
    for keep in (True, False):
        found = crash(store)
        overwrite(found, LOG_FILE, bytes(LOG_FILE))
        if not keep:
            log_files(found)[1].unlink()
        report = found.open()
        assert (report.end_offset, report.cut_bytes) == (LOG_FILE, 0)
        assert found.put(message(b"z")).physical_offset == LOG_FILE
        assert bodies(found) == [b"x" * 10_000, b"z"]
        found.close()
        assert first.end_offset < found.config.mapped_file_size_commit_log
    store.close()


# --- records that are not what they seem


def test_a_record_of_another_position_ends_the_log(store: MessageStore) -> None:
    store.put(message(b"good"))
    put_raw(store, queue_offset=1, place=12345)
    found = crash(store)
    found.open()
    assert bodies(found) == [b"good"]
    assert found.log.end < store.log.end
    found.close()
    store.close()


def test_an_absurd_queue_offset_ends_the_log(store: MessageStore) -> None:
    store.put(message(b"good"))
    put_raw(store, queue_offset=2**60)
    put_raw(store, queue_offset=-1)
    found = crash(store)
    found.open()
    assert bodies(found) == [b"good"]
    found.close()
    store.close()


def test_a_record_with_an_illegal_topic_is_logged_and_skipped(store: MessageStore) -> None:
    store.put(message(b"good"))
    for topic in ("../../outside", "", "a/b"):
        put_raw(store, topic=topic)
    store.put(message(b"good too"))
    found = crash(store)
    report = found.open()
    assert bodies(found) == [b"good", b"good too"]
    assert len(report.notes) == 3
    assert "has no queue" in report.notes[0]
    assert found.queues.topics() == ["TopicTest"]
    assert not (found.paths.root.parent / "outside").exists()
    found.close()
    store.close()


def test_recovery_notes_are_bounded(store: MessageStore) -> None:
    for _ in range(50):
        put_raw(store, topic="")
    found = crash(store)
    assert len(found.open().notes) == 20
    found.close()
    store.close()


def test_records_without_queue_entries_are_dispatched_after_a_clean_stop(
    store: MessageStore,
) -> None:
    store.put(message(b"0"))
    put_raw(store, queue_offset=1, body=b"1")
    put_raw(store, queue_offset=2, body=b"2")
    store.close()
    store.paths.own_checkpoint.unlink()
    report = store.open()
    assert (report.clean, report.rebuilt_entries) == (True, 2)
    assert bodies(store) == [b"0", b"1", b"2"]
    store.close()


def test_a_gap_in_the_offsets_is_skipped(store: MessageStore) -> None:
    store.put(message(b"0" * 1000))
    put_raw(store, queue_offset=3, body=b"3")
    found = crash(store)
    found.open()
    assert [record.queue_offset for record in read_all(found)] == [0, 3]
    assert found.put(message()).queue_offset == 4
    assert found.queries.offset_by_time("TopicTest", 0, 10**15) == 4
    found.close()
    store.close()


def test_entries_behind_the_end_are_cut_after_a_clean_stop(store: MessageStore) -> None:
    for number in range(5):
        store.put(message(b"%d" % number))
    end = store.log.end
    store.close()
    with queue_file(store).open("r+b") as file:
        for number in range(5, 8):
            file.seek(20 * number)
            file.write((end + 130 * number).to_bytes(8, "big") + (130).to_bytes(4, "big"))
    report = store.open()
    assert (report.clean, report.cut_entries) == (True, 3)
    assert store.put(message(b"5")).queue_offset == 5
    assert bodies(store) == [b"%d" % number for number in range(6)]
    store.close()
