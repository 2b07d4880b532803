"""Messages are read as they were stored, by offset, position and time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.engine import GetStatus, MessageStore
from broker.store.limits import StoreLimits
from remoting.protocol.message.tags import tags_code
from remoting.protocol.message.view import RecordView
from remoting.runtime.process_limits import memory_bytes
from tests.support.clock import ManualClock
from tests.unit.broker.store.stores import (
    EVERY_CODE,
    LOG_FILE,
    QUEUE_FILE,
    bodies,
    message,
    opened,
    read_all,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[MessageStore]:
    store = opened(tmp_path, clock=clock)
    yield store
    store.close()


# --- what comes out


def test_adjacent_records_are_one_slice(store: MessageStore) -> None:
    for _ in range(5):
        store.put(message(b"a"))
    result = store.get("TopicTest", 0, 0, 32)
    assert (result.count, len(result.records)) == (5, 1)
    assert result.size == len(result.records[0])


@pytest.mark.parametrize("codes", [None, EVERY_CODE])
def test_bytes_between_the_records_of_a_queue_are_omitted(
    store: MessageStore, codes: frozenset[int] | None
) -> None:
    for body in (b"a", b"b", b"c", b"d"):
        store.put(message(body))
        store.put(message(b"other", queue_id=1))
    result = store.get("TopicTest", 0, 0, 32, codes=codes)
    assert [RecordView(run).body for run in result.records] == [b"a", b"b", b"c", b"d"]
    assert (result.count, result.size) == (4, sum(map(len, result.records)))


def test_a_get_stops_at_the_count_requested(store: MessageStore) -> None:
    store.put_batch([message(b"x")] * 20)
    result = store.get("TopicTest", 0, 3, 5)
    assert (result.count, result.next_offset) == (5, 8)
    assert store.get("TopicTest", 0, 3, 0).count == 1


def test_a_get_stops_before_the_bytes_requested_but_gives_at_least_one(
    store: MessageStore,
) -> None:
    store.put_batch([message(b"x" * 100)] * 5)
    size = len(store.get("TopicTest", 0, 0, 1).records[0])
    assert store.get("TopicTest", 0, 0, 32, max_bytes=3 * size).count == 3
    assert store.get("TopicTest", 0, 0, 32, max_bytes=3 * size - 1).count == 2
    assert store.get("TopicTest", 0, 0, 32, max_bytes=1).count == 1


def test_tags_are_chosen_by_their_code_alone(store: MessageStore) -> None:
    for tag in ("red", "blue", "red", "", "red"):
        store.put(message(tag.encode(), tag=tag))
    red = {tags_code("red")}
    result = store.get("TopicTest", 0, 0, 32, codes=red)
    assert (result.status, result.count, result.next_offset) == (GetStatus.FOUND, 3, 5)
    none = store.get("TopicTest", 0, 0, 32, codes=frozenset({12345}))
    assert (none.status, none.count, none.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 0, 5)


def test_one_get_examines_a_bounded_part_of_the_queue(tmp_path: Path) -> None:
    limits = StoreLimits(min_scan_bytes=20 * 10)
    store = opened(tmp_path, mapped_file_size_consume_queue=20 * 100, limits=limits)
    for _ in range(40):
        store.put(message())
    result = store.get("TopicTest", 0, 5, 3, codes=frozenset())
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 15)
    # As many entries are looked at as messages were asked for.
    assert store.get("TopicTest", 0, 5, 30).count == 30
    store.close()


def test_a_get_never_crosses_a_queue_file(store: MessageStore) -> None:
    entries = QUEUE_FILE // 20
    for _ in range(entries + 10):
        store.put(message())
    assert store.get("TopicTest", 0, entries - 3, 32).next_offset == entries
    assert store.get("TopicTest", 0, entries, 32).count == 10


def test_a_message_whose_log_file_is_deleted_is_skipped(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for _ in range(30):
        store.put(message(b"x" * 2000))
    store.close()
    first = sorted(store.paths.commit_log.iterdir())[0]
    store.open()
    first.unlink()
    result = store.get("TopicTest", 0, 0, 3)
    assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 3)
    assert len(read_all(store)) == 30 - LOG_FILE // 2110
    store.close()


def test_a_deleted_queue_file_is_skipped(tmp_path: Path) -> None:
    store = opened(tmp_path)
    entries = QUEUE_FILE // 20
    for _ in range(2 * entries):
        store.put(message())
    store.close()
    store.open()
    (store.paths.consume_queues / "TopicTest" / "0" / ("0" * 20)).unlink()
    # Found out by a get, not by a map that is still there.
    for queue in store.queues.all():
        for file in queue.files:
            file.unmap()
    result = store.get("TopicTest", 0, 5, 32)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_FOUND_NULL, entries)
    assert store.get("TopicTest", 0, entries, 32).count == 32
    store.close()


def test_an_entry_that_points_outside_the_log_is_restored(store: MessageStore) -> None:
    for number in range(6):
        store.put(message(b"%d" % number))
    path = store.paths.consume_queues / "TopicTest" / "0" / ("0" * 20)
    with path.open("r+b") as file:
        for number, (offset, size) in enumerate(
            [(10**12, 110), (-5, 110), (0, 2**31 - 1), (0, 5), (store.log.end - 10, 110)]
        ):
            file.seek(20 * number)
            file.write(offset.to_bytes(8, "big", signed=True) + size.to_bytes(4, "big"))
    # The third is as those that have no message are.
    assert bodies(store) == [b"%d" % number for number in (0, 1, 3, 4, 5)]
    assert store.stats.restored_entries == 4


def test_a_slice_outlives_the_store(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message(b"still here"))
    (run,) = store.get("TopicTest", 0, 0, 1).records
    store.close()
    assert RecordView(run).body == b"still here"


def test_a_record_is_found_by_its_exact_offset_only(store: MessageStore) -> None:
    places = [store.put(message(b"%d" % n)).physical_offset for n in range(5)]
    for number, place in enumerate(places):
        record = store.queries.record_at(place)
        assert record is not None
        assert RecordView(record).body == b"%d" % number
    for wrong in (-1, 1, places[1] - 1, places[1] + 4, store.log.end, 10**15):
        assert store.queries.record_at(wrong) is None


def test_a_record_in_a_body_is_no_record(store: MessageStore) -> None:
    inner = bytes(store.get("TopicTest", 0, store.put(message()).queue_offset, 1).records[0])
    outer = store.put(message(b"...." + inner))
    assert store.queries.record_at(outer.physical_offset + 88 + 4) is None


# --- times


def test_the_message_nearest_to_a_time_is_found(store: MessageStore, clock: ManualClock) -> None:
    start = clock.now_ms()
    for step in (0, 100, 100, 0, 0, 300):
        clock.advance(step / 1000)
        store.put(message())
    # Stored at 0, 100, 200, 200, 200, 500.
    found = [
        store.queries.offset_by_time("TopicTest", 0, start + at)
        for at in (-1000, 0, 49, 50, 51, 100, 199, 200, 201, 349, 350, 351, 500, 10**9)
    ]
    assert found == [0, 0, 0, 0, 1, 1, 2, 2, 4, 4, 4, 5, 5, 5]


@pytest.mark.parametrize(
    ("boundary", "offsets"),
    [("LOWER", [0, 0, 1, 1, 2, 2, 5, 5, 6]), ("UPPER", [0, 0, 0, 1, 1, 4, 4, 5, 5])],
)
def test_a_search_by_time_has_the_boundary_that_rocketmq_5_asks_for(
    store: MessageStore, clock: ManualClock, boundary: str, offsets: list[int]
) -> None:
    start = clock.now_ms()
    for step in (0, 100, 100, 0, 0, 300):
        clock.advance(step / 1000)
        store.put(message())
    # Stored at 0, 100, 200, 200, 200, 500.
    found = [
        store.queries.offset_by_time("TopicTest", 0, start + at, boundary)
        for at in (-1000, 0, 49, 100, 199, 200, 201, 500, 501)
    ]
    assert found == offsets


@given(gaps=st.lists(st.integers(0, 5), min_size=1, max_size=30), wanted=st.integers(-5, 170))
def test_no_other_message_is_nearer_in_time(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[int], wanted: int
) -> None:
    clock = ManualClock()
    start = clock.now_ms()
    store = opened(tmp_path_factory.mktemp("store"), clock=clock)
    times = []
    for gap in gaps:
        clock.advance(gap / 1000)
        times.append(store.put(message()).store_timestamp_ms - start)
    found = store.queries.offset_by_time("TopicTest", 0, start + wanted)
    assert abs(times[found] - wanted) == min(abs(time - wanted) for time in times)
    store.close()


@given(
    gaps=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 5)), min_size=1, max_size=12),
    wanted=st.integers(-5, 65),
)
def test_offsets_without_a_message_do_not_mislead_a_search_by_time(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[tuple[int, int]], wanted: int
) -> None:
    clock = ManualClock()
    start = clock.now_ms()
    store = opened(tmp_path_factory.mktemp("store"), clock=clock)
    times: dict[int, int] = {}
    for lost, gap in gaps:
        clock.advance(gap / 1000)
        stored = store.put(message())
        times[stored.queue_offset] = stored.store_timestamp_ms - start
        # As after a loss of the log's end: their queue offsets are not used again.
        queue = store.queues.get(("TopicTest", 0))
        assert queue is not None
        queue.reach(stored.queue_offset + 1 + lost)
    found = store.queries.offset_by_time("TopicTest", 0, start + wanted)
    assert found in times
    assert abs(times[found] - wanted) == min(abs(time - wanted) for time in times.values())
    store.close()


def test_an_offset_is_in_memory_unless_much_was_appended_after_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    percent = 5000 * 100 / memory_bytes()
    store.put(message(b"x" * 1000))
    assert store.queries.is_offset_in_memory("TopicTest", 0, 0, percent)
    for _ in range(29):
        store.put(message(b"x" * 1000))
    assert store.queries.is_offset_in_memory("Unknown", 0, 0, percent)
    assert not store.queries.is_offset_in_memory("TopicTest", 0, 0, percent)
    assert store.queries.is_offset_in_memory("TopicTest", 0, 29, percent)
    assert store.queries.is_offset_in_memory("TopicTest", 0, 999, percent)
