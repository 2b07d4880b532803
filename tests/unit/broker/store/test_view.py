"""A store is read beside the broker that writes it, and after somebody damaged it."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.store import view_log
from broker.store.message_store import MessageStore
from broker.store.view import Damage, LogEnd, QueueRange, StoreChanged, StoreError, StoreView
from broker.store.view_files import ViewFile
from remoting.protocol.disk.checkpoint import Checkpoint
from remoting.protocol.disk.consume_queue_entry import ENTRY, FILLER
from remoting.protocol.errors import RecordError
from remoting.protocol.message.record import encode_record
from remoting.protocol.message.view import RecordView
from tests.unit.broker.store.stores import LOG_FILE, QUEUE_FILE, message, opened

COUNT = 400
BODY = bytes(range(100))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """Four log files and four queue files, still open."""
    store = opened(tmp_path / "store")
    for number in range(COUNT):
        store.put(message(BODY + b"%03d" % number, queue_id=number % 2))
    store.flush()
    yield store
    store.close()


@pytest.fixture
def root(store: MessageStore) -> Path:
    """The same files, nobody's."""
    copy = store.paths.root.parent / "copy"
    shutil.copytree(store.paths.root, copy)
    return copy


def found_by(view: StoreView, end: int | None = None) -> tuple[list[RecordView], list[Damage]]:
    records: list[RecordView] = []
    damage = []
    stop = view.log_end().position if end is None else end
    for found in view.log.walk(view.log.start, stop):
        if isinstance(found, Damage):
            damage.append(found)
        else:
            for start in found.starts:
                # Lengths within a record are the decoder's business.
                with contextlib.suppress(RecordError):
                    records.append(RecordView(found.data, start))
    return records, damage


def numbers(records: list[RecordView]) -> list[int]:
    return [int(record.body[-3:]) for record in records]


def overwrite(root: Path, position: int, data: bytes) -> None:
    with (root / "commitlog" / f"{position // LOG_FILE * LOG_FILE:020d}").open("r+b") as file:
        file.seek(position % LOG_FILE)
        file.write(data)


def positions_of(root: Path) -> list[int]:
    return [record.physical_offset for record in found_by(StoreView(root))[0]]


def queue_path(root: Path, start: int = 0) -> Path:
    return root / "consumequeue" / "TopicTest" / "0" / f"{start:020d}"


def unsynced(root: Path) -> None:
    (root / "checkpoint").write_bytes(Checkpoint().encode())


# --- whole stores


def test_an_open_store_is_read_whole(store: MessageStore) -> None:
    view = StoreView(store.paths.root)
    records, damage = found_by(view)
    assert numbers(records) == list(range(COUNT))
    assert not damage
    assert view.log_end() == LogEnd(store.end_offset, None)
    assert view.topics() == ["TopicTest"]
    assert view.queues("TopicTest") == [0, 1]
    assert view.queue_range("TopicTest", 1) == QueueRange(0, COUNT // 2, 0)
    store.put(message(b"later"))
    assert view.queue_range("TopicTest", 0) == QueueRange(0, COUNT // 2 + 1, 0)
    assert view.log_end() == LogEnd(store.end_offset, None)


def test_entries_lead_to_their_messages(store: MessageStore) -> None:
    view = StoreView(store.paths.root)
    found: list[RecordView] = []
    for run in view.queue("TopicTest", 1).entries(3, COUNT // 2):
        assert run.offset == 3 + len(found)
        for position, size, _ in ENTRY.iter_unpack(run.entries):
            record = view.log.record_at(position)
            assert record is not None
            assert record.size == size
            found.append(record)
    assert numbers(found) == list(range(7, COUNT, 2))


def test_what_a_store_writes_meanwhile_is_read_as_a_whole_prefix(tmp_path: Path) -> None:
    ready, stop = threading.Event(), threading.Event()

    def write() -> None:
        store = opened(tmp_path / "store", mapped_file_size_commit_log=256 * 1024)
        number = 0
        while not stop.is_set() and number < 40_000:
            store.put(message(BODY + b"%03d" % (number % 1000), queue_id=number % 2))
            number += 1
            if number == 10:
                ready.set()
        ready.set()
        store.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        ready.wait(30)
        before = 0
        for _ in range(15):
            view = StoreView(tmp_path / "store")
            low, high, torn = view.queue_range("TopicTest", 0)
            records, damage = found_by(view)
            assert not damage
            assert numbers(records) == [number % 1000 for number in range(len(records))]
            assert all(record.check_crc() for record in records)
            assert len(records) >= before
            assert (low, torn) == (0, 0)
            assert len(records) >= high * 2 - 1
            before = len(records)
    finally:
        stop.set()
        writer.join()


def test_an_empty_store_has_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    view = StoreView(tmp_path / "store")
    assert view.topics() == []
    assert view.queues("TopicTest") == []
    assert view.queue_range("TopicTest", 0) == QueueRange(0, 0, 0)
    assert view.log_end() == LogEnd(0, None)
    assert found_by(view) == ([], [])
    store.close()


def test_a_log_over_several_disks_is_one_log(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "disk2"
    other.mkdir()
    shutil.move(root / "commitlog" / f"{LOG_FILE:020d}", other)
    view = StoreView(root, commit_log=f"{root / 'commitlog'},{other}")
    assert numbers(found_by(view)[0]) == list(range(COUNT))
    assert numbers(found_by(StoreView(root, commit_log=[other, root / "commitlog"]))[0])


def test_more_files_than_are_kept_open_are_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.store.view_files.MAX_OPEN_VIEW_FILES", 2)
    view = StoreView(root)
    assert numbers(found_by(view)[0]) == list(range(COUNT))
    assert sum(file.is_open for file in view.log.files) == 2


def test_a_record_larger_than_a_chunk_is_one_chunk(store: MessageStore) -> None:
    view = StoreView(store.paths.root)
    chunks = list(view.log.walk(0, view.log_end().position, chunk_bytes=50))
    assert len(chunks) == COUNT
    assert all(not isinstance(chunk, Damage) and chunk.starts == [0] for chunk in chunks)


# --- damage in the log


@pytest.mark.parametrize("at", [0, 4, 30], ids=["size", "magic", "place"])
def test_a_record_without_a_head_is_named_and_stepped_over(root: Path, at: int) -> None:
    positions = positions_of(root)
    overwrite(root, positions[20] + at, b"\x7f\x7f\x7f\x7f")
    records, damage = found_by(StoreView(root))
    assert numbers(records) == [n for n in range(COUNT) if n != 20]
    assert [(found.begin, found.end) for found in damage] == [(positions[20], positions[21])]
    assert str(positions[20]) in damage[0].reason


def test_a_changed_body_is_handed_out_and_fails_its_crc(root: Path) -> None:
    position = positions_of(root)[20]
    overwrite(root, position + 100, b"BODY")
    view = StoreView(root)
    records, damage = found_by(view)
    assert not damage
    assert [record.physical_offset for record in records if not record.check_crc()] == [position]
    assert view.log.record_at(position) is None


def test_a_page_of_zeros_costs_the_messages_on_it(root: Path) -> None:
    positions = positions_of(root)
    overwrite(root, 4096, bytes(4096))
    records, damage = found_by(StoreView(root))
    whole = [record for record in records if record.check_crc()]
    pairs = enumerate(pairwise(positions))
    hit = [n for n, (begin, end) in pairs if end > 4096 and begin < 8192]
    assert numbers(whole) == [n for n in range(COUNT) if n not in hit]
    assert damage[0].begin == positions[hit[1]]
    assert damage[0].end == positions[hit[-1] + 1]
    assert damage[0].reason == f"nothing has been written at {positions[hit[1]]}"


def test_a_file_that_is_missing_is_damage(root: Path) -> None:
    (root / "commitlog" / f"{LOG_FILE:020d}").unlink()
    view = StoreView(root)
    records, damage = found_by(view)
    assert [(found.begin, found.end) for found in damage] == [(LOG_FILE, 2 * LOG_FILE)]
    assert "missing" in damage[0].reason
    with pytest.raises(StoreError, match="missing or too short"):
        view.log.record_at(LOG_FILE)
    assert records[-1].body[-3:] == b"%03d" % (COUNT - 1)


def test_a_file_that_is_too_short_is_read_as_far_as_it_goes(root: Path) -> None:
    positions = positions_of(root)
    os.truncate(root / "commitlog" / f"{LOG_FILE:020d}", 5000)
    records, damage = found_by(StoreView(root))
    lost = [n for n, at in enumerate(positions) if LOG_FILE <= at < 2 * LOG_FILE]
    lost = [n for n in lost if positions[n + 1] > LOG_FILE + 5000]
    assert numbers(records) == [n for n in range(COUNT) if n not in lost]
    assert damage[0].begin == positions[lost[0]]
    assert damage[-1].end == 2 * LOG_FILE


def test_a_torn_last_record_is_no_part_of_the_log(root: Path) -> None:
    unsynced(root)
    positions = positions_of(root)
    overwrite(root, positions[-1] + 100, b"BODY")
    end = StoreView(root).log_end()
    assert end.position == positions[-1]
    assert end.torn == f"the body of the record at {positions[-1]} fails its CRC"
    assert numbers(found_by(StoreView(root))[0]) == list(range(COUNT - 1))


def test_what_stands_behind_a_gap_in_the_last_file_counts_if_it_was_synced(root: Path) -> None:
    positions = positions_of(root)
    shutil.rmtree(root / "consumequeue")
    gap = COUNT - 10
    overwrite(root, positions[gap], bytes(8))
    records, damage = found_by(StoreView(root))
    assert numbers(records) == [n for n in range(COUNT) if n != gap]
    assert [(found.begin, found.end) for found in damage] == [(positions[gap], positions[gap + 1])]
    unsynced(root)
    assert StoreView(root).log_end() == LogEnd(positions[gap], None)


def test_what_stands_behind_a_gap_counts_if_a_queue_points_at_it(root: Path) -> None:
    unsynced(root)
    positions = positions_of(root)
    overwrite(root, positions[-5], bytes(8))
    records, damage = found_by(StoreView(root))
    assert numbers(records) == [n for n in range(COUNT) if n != COUNT - 5]
    assert len(damage) == 1


def test_old_records_behind_the_end_are_not_taken_for_new_ones(root: Path) -> None:
    """A truncated tail keeps its bytes, and they say that they lie where they lie."""
    positions = positions_of(root)
    shutil.rmtree(root / "consumequeue")
    view = StoreView(root)
    last = view.log.record_at(positions[-1])
    assert last is not None
    cut = COUNT - 10
    newer = last.store_timestamp_ms + 60_000
    record = encode_record(
        topic="TopicTest",
        body=b"newer",
        born_host=bytes(8),
        store_host=bytes(8),
        physical_offset=positions[cut],
        store_timestamp_ms=newer,
    )
    overwrite(root, positions[cut], record)
    (root / "checkpoint").write_bytes(Checkpoint(newer, newer).encode())
    end = StoreView(root).log_end()
    assert end.position == positions[cut] + len(record)
    assert end.torn is not None


def test_a_file_made_ahead_does_not_hide_the_end(root: Path) -> None:
    end = StoreView(root).log_end()
    files = sorted((root / "commitlog").iterdir())
    (root / "commitlog" / f"{len(files) * LOG_FILE:020d}").write_bytes(bytes(LOG_FILE))
    assert StoreView(root).log_end() == end


def test_copies_of_records_within_a_body_are_not_taken_for_records(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    for _ in range(3):
        first = store.put(message(BODY))
        # Where its copies will say they lie is where they will lie.
        inner = first.end_offset + 88
        copies = b""
        for _ in range(5):
            copies += encode_record(
                topic="Fake",
                body=b"fake",
                born_host=bytes(8),
                store_host=bytes(8),
                physical_offset=inner + len(copies),
            )
        store.put(message(copies))
    view = StoreView(tmp_path / "store")
    end = view.log_end().position
    whole = [record.physical_offset for record in found_by(view)[0]]
    assert len(whole) == 6
    for cut in range(end):
        border = view.log.first_start(cut, end)
        assert border == end or border in whole
    store.close()


def test_a_border_is_found_far_from_the_beginning_of_a_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_log, "MAX_RECORD_BYTES", 700)
    monkeypatch.setattr(view_log, "VIEW_SEARCH_BYTES", 150)
    monkeypatch.setattr(view_log, "VIEW_CHUNK_BYTES", 500)
    view = StoreView(root)
    end = view.log_end().position
    whole = [record.physical_offset for record in found_by(view)[0]]
    for cut in range(0, end + 1000, 97):
        border = view.log.first_start(cut, end)
        assert bisect_left(whole, border) == bisect_left(whole, cut)
    wound = whole[50]
    overwrite(root, wound, b"\xff" * 40)
    assert view.log.first_start(wound, end) == wound
    assert view.log.first_start(wound + 1, end) == whole[51]
    assert view.log.first_start(wound + 700, end) == whole[bisect_left(whole, wound + 700)]
    assert [found.begin for found in found_by(view)[1]] == [wound]


def test_a_record_that_no_chunk_holds_is_found_and_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_log, "VIEW_CHUNK_BYTES", 64)
    view = StoreView(root)
    whole = positions_of(root)
    assert view.log_end() == StoreView(root).log_end()
    assert view.log.first_start(whole[5] + 1, whole[-1]) == whole[6]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    wounds=st.lists(
        st.tuples(st.integers(0, 3 * LOG_FILE - 300), st.binary(min_size=1, max_size=300)),
        max_size=5,
    )
)
def test_whatever_is_overwritten_the_rest_is_found(
    root: Path, tmp_path: Path, wounds: list[tuple[int, bytes]]
) -> None:
    hurt = tmp_path / "hurt"
    shutil.rmtree(hurt, ignore_errors=True)
    shutil.copytree(root, hurt)
    whole = found_by(StoreView(root))[0]
    for at, data in wounds:
        overwrite(hurt, at, data)
    end = StoreView(root).log_end().position
    records, damage = found_by(StoreView(hurt), end)
    found = {record.physical_offset for record in records if record.check_crc()}
    for record in whole:
        begin, stop = record.physical_offset, record.physical_offset + record.size
        if not any(begin < at + len(data) and at < stop for at, data in wounds):
            hidden = any(one.begin <= begin < one.end for one in damage)
            assert begin in found or hidden
            # Only a file's blank record, or the file's whole rest, may be lost with it.
            assert begin in found or any(at // LOG_FILE == begin // LOG_FILE for at, _ in wounds)


# --- damage in queues


def test_a_queue_that_lost_its_last_entries_ends_before_them(root: Path) -> None:
    files = sorted(queue_path(root).parent.iterdir())
    data = bytearray(files[-1].read_bytes())
    used = len(bytes(data).rstrip(b"\0"))
    files[-1].write_bytes(bytes(data[: used - 30]) + bytes(len(data) - used + 30))
    assert StoreView(root).queue_range("TopicTest", 0).max_offset < COUNT // 2


def test_entries_whose_message_never_reached_the_log_are_torn(root: Path) -> None:
    unsynced(root)
    positions = positions_of(root)
    overwrite(root, positions[-6], bytes(positions[-1] - positions[-6] + 200))
    view = StoreView(root)
    assert view.queue_range("TopicTest", 0) == QueueRange(0, COUNT // 2 - 3, 3)
    assert view.queue_range("TopicTest", 1) == QueueRange(0, COUNT // 2 - 3, 3)
    assert view.log_end() == LogEnd(positions[-6], None)


def test_a_half_written_entry_is_not_counted(root: Path) -> None:
    files = sorted(queue_path(root).parent.iterdir())
    data = bytearray(files[-1].read_bytes())
    at = COUNT // 2 * 20 % QUEUE_FILE
    data[at : at + 20] = ENTRY.pack(12345, 0, 0)
    files[-1].write_bytes(data)
    assert StoreView(root).queue_range("TopicTest", 0) == QueueRange(0, COUNT // 2, 0)


def test_a_missing_queue_file_is_said_and_not_read_over(root: Path) -> None:
    queue_path(root, QUEUE_FILE).unlink()
    queue = StoreView(root).queue("TopicTest", 0)
    with pytest.raises(StoreError, match=r"has nothing at 1000: .* put it back from a copy"):
        list(queue.entries(0, COUNT // 2))


def test_a_shortened_queue_file_ends_where_its_bytes_end(root: Path) -> None:
    files = sorted(queue_path(root).parent.iterdir())
    os.truncate(files[-1], 47)
    start = int(files[-1].name) // 20
    assert StoreView(root).queue_range("TopicTest", 0).max_offset == start + 2


def test_messages_whose_log_is_gone_are_not_of_the_queue(root: Path) -> None:
    positions = positions_of(root)
    (root / "commitlog" / f"{0:020d}").unlink()
    first = next(n for n, at in enumerate(positions) if at >= LOG_FILE)
    view = StoreView(root)
    assert view.queue_range("TopicTest", 0) == QueueRange((first + 1) // 2, COUNT // 2, 0)
    assert view.queue_range("TopicTest", 1) == QueueRange(first // 2, COUNT // 2, 0)
    assert view.queue("TopicTest", 0).offset_of_time(0) == (first + 1) // 2


def test_fillers_before_the_first_message_are_passed(root: Path) -> None:
    path = queue_path(root)
    path.write_bytes(FILLER * 7 + path.read_bytes()[140:])
    assert StoreView(root).queue_range("TopicTest", 0).min_offset == 7


def test_a_queue_of_which_all_messages_are_gone_is_empty(root: Path) -> None:
    for path in sorted((root / "commitlog").iterdir())[:-1]:
        path.unlink()
    positions = positions_of(root)
    for position in positions:
        overwrite(root, position, bytes(200))
    view = StoreView(root)
    assert view.queue_range("TopicTest", 0).torn > 0
    low, high, _ = view.queue_range("TopicTest", 0)
    assert low == high


def test_fillers_may_end_a_queue_and_stand_between_messages(root: Path) -> None:
    """Numbers of lost messages are not given again."""
    files = sorted(queue_path(root).parent.iterdir())
    data = bytearray(files[-1].read_bytes())
    used = len(bytes(data).rstrip(b"\0")) // 20 * 20
    data[used - 20 : used + 20] = FILLER * 2
    files[-1].write_bytes(data)
    path = queue_path(root)
    path.write_bytes(path.read_bytes()[:40] + FILLER * 3 + path.read_bytes()[100:])
    queue = StoreView(root).queue("TopicTest", 0)
    end = int(files[-1].name) // 20 + used // 20 + 1
    assert queue.range() == QueueRange(0, end, 0)
    assert queue.last_position(end) == 0
    assert queue.offset_of_time(0) == 0
    assert queue.offset_of_time(2**60) == end - 2


def test_an_entry_that_points_nowhere_does_not_stop_a_search_by_time(root: Path) -> None:
    path = queue_path(root, QUEUE_FILE)
    data = bytearray(path.read_bytes())
    for at in range(0, QUEUE_FILE, 20):
        data[at : at + 20] = ENTRY.pack(10**12, 200, 0)
    path.write_bytes(data)
    assert StoreView(root).queue("TopicTest", 0).offset_of_time(0) == 0


def test_a_queue_file_made_ahead_is_passed(root: Path) -> None:
    files = sorted(queue_path(root).parent.iterdir())
    following = int(files[-1].name) + QUEUE_FILE
    queue_path(root, following).write_bytes(bytes(QUEUE_FILE))
    queue_path(root, following + QUEUE_FILE).touch()
    assert StoreView(root).queue_range("TopicTest", 0) == QueueRange(0, COUNT // 2, 0)
    for path in files:
        path.unlink()
    low, high, torn = StoreView(root).queue_range("TopicTest", 0)
    assert (low, torn) == (high, 0)


def test_a_queue_without_a_log_has_nothing(root: Path) -> None:
    for path in (root / "commitlog").iterdir():
        path.unlink()
    view = StoreView(root)
    assert view.queue_range("TopicTest", 0) == QueueRange(0, 0, 0)
    assert view.log_end() == LogEnd(0, None)


# --- files that change under a reader


def test_a_file_that_is_open_may_be_removed(root: Path) -> None:
    view = StoreView(root)
    end = view.log_end().position
    walk = view.log.walk(view.log.start, end, chunk_bytes=1000)
    next(walk)
    (root / "commitlog" / f"{0:020d}").unlink()
    assert sum(1 for found in walk if not isinstance(found, Damage)) > 50


def test_a_file_that_is_gone_is_named(root: Path) -> None:
    view = StoreView(root)
    end = view.log_end().position
    path = root / "commitlog" / f"{0:020d}"
    path.unlink()
    with pytest.raises(StoreChanged, match=f"{path} has been removed, by retention or by hand"):
        list(view.log.walk(0, end))
    view = StoreView(root)
    with pytest.raises(StoreChanged, match=f"begins at {LOG_FILE} now"):
        view.log.record_at(0)


def test_a_file_that_becomes_shorter_is_a_sentence_and_no_signal(root: Path) -> None:
    view = StoreView(root)
    end = view.log_end().position
    os.truncate(root / "commitlog" / f"{0:020d}", 100)
    with pytest.raises(StoreChanged, match="ends at byte 100, though it had 16384 bytes"):
        list(view.log.walk(0, end))


def test_what_lies_beyond_the_log_is_not_there(root: Path) -> None:
    view = StoreView(root)
    with pytest.raises(StoreError, match="ends at"):
        view.log.record_at(10**12)
    with pytest.raises(StoreError, match="missing or too short"):
        view.log.read_into(LOG_FILE - 10, memoryview(bytearray(20)))


def test_files_are_closed_when_nobody_wants_them(root: Path) -> None:
    file = ViewFile(str(root / "checkpoint"), 0, 4096)
    file.open()
    assert file.is_open
    file.close()
    file.close()
    assert not file.is_open


# --- no store


def test_a_path_without_a_store_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no store at .*absent \(No such file"):
        StoreView(tmp_path / "absent")
    with pytest.raises(StoreError, match="there is no commit log at"):
        StoreView(tmp_path)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(StoreError, match="there is no store at"):
        StoreView(loop)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a\0b"])
def test_a_topic_never_leads_out_of_the_store(root: Path, topic: str) -> None:
    with pytest.raises(StoreError, match="is not the name of a topic"):
        StoreView(root).queues(topic)


def test_links_that_lead_nowhere_are_no_topics(root: Path) -> None:
    (root / "consumequeue" / "Loop").symlink_to(root / "consumequeue" / "Loop")
    (root / "consumequeue" / "notes.txt").write_text("by hand")
    (root / "consumequeue" / "TopicTest" / "lost+found").mkdir()
    view = StoreView(root)
    assert view.topics() == ["TopicTest"]
    assert view.queues("TopicTest") == [0, 1]
