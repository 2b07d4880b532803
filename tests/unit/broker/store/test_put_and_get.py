"""Messages go in, lie where they should, and come out as they went in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store import reader
from broker.store.message_store import GetStatus, MessageStore, PutStatus
from remoting.clock import ManualClock
from remoting.protocol.limits import MAX_PROPERTIES_BYTES
from remoting.protocol.message.hosts import host_bytes
from remoting.protocol.message.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from remoting.protocol.message.tags import tags_code
from remoting.protocol.message.view import RecordView
from tests.unit.broker.store.stores import (
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


# --- what goes in


def test_a_message_comes_out_as_it_went_in(store: MessageStore, clock: ManualClock) -> None:
    result = store.put(
        message(b"body", tag="paid", flag=7, reconsume_times=3, prepared_transaction_offset=99)
    )
    (record,) = read_all(store)
    assert result.status is PutStatus.OK
    assert (record.physical_offset, record.queue_offset) == (0, 0)
    assert result.end_offset == record.size == store.end_offset
    assert record.store_timestamp_ms == result.store_timestamp_ms == clock.now_ms()
    assert (record.body, record.tags, record.flag) == (b"body", "paid", 7)
    assert (record.reconsume_times, record.prepared_transaction_offset) == (3, 99)
    assert record.born_host == ("10.1.2.3", 54321)
    assert record.store_host == ("10.9.8.7", 10911)
    assert record.check_crc()


def test_a_body_may_be_a_view_of_a_read_buffer(store: MessageStore) -> None:
    store.put(message(memoryview(b"xxbodyxx")[2:6]))
    assert bodies(store) == [b"body"]


def test_hosts_may_have_ipv6_addresses(tmp_path: Path) -> None:
    store = opened(tmp_path, store_host=("2001:db8::7", 10911))
    store.put(message(born_host=host_bytes("2001:db8::1", 5)))
    store.put(message())
    store.put(message(born_host=b""))
    first, second, third = read_all(store)
    assert (first.born_host, first.store_host) == (("2001:db8::1", 5), ("2001:db8::7", 10911))
    assert (second.born_host, second.store_host) == (("10.1.2.3", 54321), ("2001:db8::7", 10911))
    assert third.born_host == ("2001:db8::7", 10911)
    assert store.earliest_store_time("TopicTest", 0) == first.store_timestamp_ms
    store.close()


def test_a_message_without_a_born_host_is_born_here(store: MessageStore) -> None:
    store.put(message(born_host=b""))
    assert read_all(store)[0].born_host == ("10.9.8.7", 10911)


def test_messages_are_numbered_by_queue(store: MessageStore) -> None:
    numbers = [
        store.put(message(queue_id=queue_id)).queue_offset for queue_id in (0, 1, 0, 0, 1, 2)
    ]
    assert numbers == [0, 0, 1, 2, 1, 0]
    assert store.queue_ids("TopicTest") == [0, 1, 2]


def test_prepared_and_rolled_back_messages_have_no_number_and_are_not_seen(
    store: MessageStore,
) -> None:
    store.put(message(b"before"))
    for kind in (4, TRANSACTION_ROLLBACK):
        result = store.put(message(b"half", sys_flag=kind))
        assert (result.status, result.queue_offset) == (PutStatus.OK, 0)
    committed = store.put(message(b"behind", sys_flag=TRANSACTION_COMMIT))
    assert committed.queue_offset == 1
    assert bodies(store) == [b"before", b"behind"]


def test_a_batch_is_stored_in_one_go(store: MessageStore) -> None:
    store.put(message(b"first"))
    result = store.put_batch([message(b"a"), message(b"bb", tag="x"), message(b"ccc")])
    assert (result.status, result.queue_offset) == (PutStatus.OK, 1)
    records = read_all(store)
    assert [record.physical_offset for record in records[1:]] == result.physical_offsets
    assert [record.body for record in records] == [b"first", b"a", b"bb", b"ccc"]
    assert result.end_offset == store.end_offset


def test_a_batch_that_does_not_fit_goes_into_the_next_file_as_a_whole(store: MessageStore) -> None:
    store.put(message(b"x" * (LOG_FILE - 1000)))
    result = store.put_batch([message(b"y" * 300) for _ in range(3)])
    assert result.physical_offsets[0] == LOG_FILE
    assert len(read_all(store)) == 4


@pytest.mark.parametrize("rest", range(6, 11))
def test_eight_bytes_stay_free_behind_every_record(store: MessageStore, rest: int) -> None:
    fixed = 91 + len("TopicTest")
    first = store.put(message(b"x" * (LOG_FILE - rest - fixed)))
    second = store.put(message(b"y"))
    assert first.physical_offset == (0 if rest >= 8 else -1)
    assert second.physical_offset == (LOG_FILE if rest >= 8 else 0)


def test_store_times_go_back_only_with_a_clock_that_was_set_back(tmp_path: Path) -> None:
    class Hands(ManualClock):
        moment = 1_000_000

        def now_ms(self) -> int:
            return self.moment

    clock = Hands()
    store = opened(tmp_path, clock=clock)

    def stamp() -> int:
        return store.put(message()).store_timestamp_ms

    assert stamp() == 1_000_000
    clock.moment -= 5000
    assert stamp() == 1_000_000
    clock.moment -= 50_000
    assert stamp() == clock.moment
    store.close()
    store.open()
    clock.moment -= 1000
    assert stamp() == clock.moment + 1000
    store.close()


# --- what is refused


@pytest.mark.parametrize(
    ("bad", "status", "sentence"),
    [
        ({"topic": "t" * 128}, PutStatus.MESSAGE_ILLEGAL, "128 characters"),
        ({"topic": "../../etc"}, PutStatus.MESSAGE_ILLEGAL, "illegal characters"),
        ({"topic": ".."}, PutStatus.MESSAGE_ILLEGAL, "illegal characters"),
        ({"topic": ""}, PutStatus.MESSAGE_ILLEGAL, "blank"),
        ({"topic": "a/b"}, PutStatus.MESSAGE_ILLEGAL, "illegal characters"),
        ({"queue_id": -1}, PutStatus.MESSAGE_ILLEGAL, "count from 0"),
        ({"queue_id": 2**31}, PutStatus.MESSAGE_ILLEGAL, "count from 0"),
        (
            {"properties": b"x" * (MAX_PROPERTIES_BYTES + 1)},
            PutStatus.PROPERTIES_SIZE_EXCEEDED,
            "32767",
        ),
        ({"body": bytes(LOG_FILE)}, PutStatus.MESSAGE_ILLEGAL, "mappedFileSizeCommitLog"),
        ({"born_host": b"12345"}, PutStatus.MESSAGE_ILLEGAL, "born host"),
        ({"flag": 2**40}, PutStatus.MESSAGE_ILLEGAL, "can't be stored"),
        ({"born_timestamp_ms": 2**70}, PutStatus.MESSAGE_ILLEGAL, "can't be stored"),
        ({"born_host": bytes(20), "flag": 2**40}, PutStatus.MESSAGE_ILLEGAL, "can't be stored"),
    ],
)
def test_a_message_that_can_not_be_stored_is_refused_with_a_sentence(
    store: MessageStore, bad: dict[str, object], status: PutStatus, sentence: str
) -> None:
    pending = message()
    for name, value in bad.items():
        setattr(pending, name, value)
    for result in (store.put(pending), store.put_batch([pending])):
        assert result.status is status
        assert sentence in result.message
    assert store.end_offset == 0
    assert store.put(message()).queue_offset == 0
    assert not any(path.is_file() for path in store.paths.root.parent.glob("etc*"))


def test_a_body_over_the_limit_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path, max_message_size=100)
    assert store.put(message(b"x" * 100)).status is PutStatus.OK
    refused = store.put(message(b"x" * 101))
    assert refused.status is PutStatus.MESSAGE_ILLEGAL
    assert "101 bytes" in refused.message
    batch = store.put_batch([message(b"x" * 51), message(b"x" * 50)])
    assert batch.status is PutStatus.MESSAGE_ILLEGAL
    assert store.put_batch([message(b"x" * 50)] * 2).status is PutStatus.OK
    store.close()


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        ([], "no message"),
        ([message(), message(queue_id=1)], "one batch per queue"),
        ([message(), message(topic="Other")], "one batch per queue"),
        ([message(), message(sys_flag=4)], "transactional"),
        ([message(), message(topic="t" * 200)], "200 characters"),
    ],
)
def test_a_batch_with_a_bad_message_stores_nothing(
    store: MessageStore, batch: list[object], sentence: str
) -> None:
    result = store.put_batch(batch)  # type: ignore[arg-type] # a test's list
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    assert sentence in result.message
    assert store.end_offset == 0


def test_too_many_queues_are_refused(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.store.queue_table.MAX_QUEUES", 2)
    assert [store.put(message(queue_id=n)).status for n in range(3)] == [
        PutStatus.OK,
        PutStatus.OK,
        PutStatus.MESSAGE_ILLEGAL,
    ]


# --- what comes out


def test_adjacent_records_come_as_one_piece(store: MessageStore) -> None:
    for _ in range(5):
        store.put(message(b"a"))
    store.put(message(b"b", queue_id=1))
    for _ in range(2):
        store.put(message(b"c"))
    result = store.get("TopicTest", 0, 0, 32)
    assert (result.count, len(result.records)) == (7, 2)
    assert [RecordView(run).body for run in result.records] == [b"a", b"c"]


def test_a_get_stops_at_the_count_asked_for(store: MessageStore) -> None:
    store.put_batch([message(b"x")] * 20)
    result = store.get("TopicTest", 0, 3, 5)
    assert (result.count, result.next_offset) == (5, 8)
    assert store.get("TopicTest", 0, 3, 0).count == 1


def test_a_get_stops_before_the_bytes_asked_for_but_gives_at_least_one(
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
    result = store.get("TopicTest", 0, 0, 32, accept=red.__contains__)
    assert (result.status, result.count, result.next_offset) == (GetStatus.FOUND, 3, 5)
    none = store.get("TopicTest", 0, 0, 32, accept=lambda code: code == 12345)
    assert (none.status, none.count, none.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 0, 5)


def test_one_get_looks_at_a_bounded_part_of_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MIN_SCAN_BYTES", 20 * 10)
    store = opened(tmp_path, mapped_file_size_consume_queue=20 * 100)
    for _ in range(40):
        store.put(message())
    result = store.get("TopicTest", 0, 5, 3, accept=lambda _: False)
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


def test_a_message_whose_log_file_is_gone_is_passed_over(tmp_path: Path) -> None:
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


def test_a_queue_file_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    store = opened(tmp_path)
    entries = QUEUE_FILE // 20
    for _ in range(2 * entries):
        store.put(message())
    store.close()
    store.open()
    (store.paths.consume_queues / "TopicTest" / "0" / ("0" * 20)).unlink()
    # Found out by a get, not by a map that is still there.
    for queue in store._opened().queues.all():
        for file in queue._all:
            file.unmap()
    result = store.get("TopicTest", 0, 5, 32)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_FOUND_NULL, entries)
    assert store.get("TopicTest", 0, entries, 32).count == 32
    store.close()


def test_an_entry_that_points_outside_the_log_is_never_followed(store: MessageStore) -> None:
    for number in range(6):
        store.put(message(b"%d" % number))
    path = store.paths.consume_queues / "TopicTest" / "0" / ("0" * 20)
    with path.open("r+b") as file:
        for number, (offset, size) in enumerate(
            [(10**12, 110), (-5, 110), (0, 2**31 - 1), (0, 5), (store.end_offset - 10, 110)]
        ):
            file.seek(20 * number)
            file.write(offset.to_bytes(8, "big", signed=True) + size.to_bytes(4, "big"))
    assert bodies(store) == [b"5"]
    assert store.stats.bad_entries >= 5


def test_a_slice_outlives_the_store(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message(b"still here"))
    (run,) = store.get("TopicTest", 0, 0, 1).records
    store.close()
    assert RecordView(run).body == b"still here"


def test_a_record_is_found_by_its_place_and_only_where_one_begins(store: MessageStore) -> None:
    places = [store.put(message(b"%d" % n)).physical_offset for n in range(5)]
    for number, place in enumerate(places):
        record = store.record_at(place)
        assert record is not None
        assert RecordView(record).body == b"%d" % number
    for wrong in (-1, 1, places[1] - 1, places[1] + 4, store.end_offset, 10**15):
        assert store.record_at(wrong) is None


def test_a_record_in_a_body_is_no_record(store: MessageStore) -> None:
    inner = bytes(store.get("TopicTest", 0, store.put(message()).queue_offset, 1).records[0])
    outer = store.put(message(b"...." + inner))
    assert store.record_at(outer.physical_offset + 88 + 4) is None


# --- times


def test_the_message_nearest_to_a_time_is_found(store: MessageStore, clock: ManualClock) -> None:
    start = clock.now_ms()
    for step in (0, 100, 100, 0, 0, 300):
        clock.advance(step / 1000)
        store.put(message())
    # Stored at 0, 100, 200, 200, 200, 500.
    found = [
        store.offset_by_time("TopicTest", 0, start + at)
        for at in (-1000, 0, 49, 50, 51, 100, 199, 200, 201, 349, 350, 351, 500, 10**9)
    ]
    assert found == [0, 0, 0, 0, 1, 1, 2, 2, 4, 4, 4, 5, 5, 5]


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
    found = store.offset_by_time("TopicTest", 0, start + wanted)
    assert abs(times[found] - wanted) == min(abs(time - wanted) for time in times)
    store.close()


def test_an_offset_is_in_memory_unless_much_came_behind_it(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(30):
        store.put(message(b"x" * 1000))
    assert store.is_offset_in_memory("TopicTest", 0, 0)
    assert store.is_offset_in_memory("Unknown", 0, 0)
    monkeypatch.setattr(store._opened().reader, "_in_memory_bytes", 5000)
    assert not store.is_offset_in_memory("TopicTest", 0, 0)
    assert store.is_offset_in_memory("TopicTest", 0, 29)
    assert store.is_offset_in_memory("TopicTest", 0, 999)


# --- topics, arrivals, state


def test_arrivals_are_told_with_the_new_maximum_and_the_tag(store: MessageStore) -> None:
    arrivals: list[tuple[str, int, int, int]] = []
    store.on_arrival = lambda *arrival: arrivals.append(arrival)
    store.put(message(tag="a", queue_id=3))
    store.put_batch([message(tag=tag, queue_id=3) for tag in ("a", "a", "b")])
    store.put(message(sys_flag=4))
    assert arrivals == [
        ("TopicTest", 3, 1, tags_code("a")),
        ("TopicTest", 3, 3, tags_code("a")),
        ("TopicTest", 3, 4, tags_code("b")),
    ]


def test_a_deleted_topic_is_gone_and_begins_anew(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(5):
        store.put(message(b"old %d" % number, queue_id=number % 2))
        store.put(message(b"other", topic="Other"))
    assert store.delete_topic("TopicTest") == 2
    assert store.topics_on_disk() == ["Other"]
    assert not (store.paths.consume_queues / "TopicTest").exists()
    assert store.get("TopicTest", 0, 0, 1).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert store.put(message(b"new")).queue_offset == 0
    assert bodies(store) == [b"new"]
    # The old messages are still in the log; a rebuild must not bring them back in front.
    store.close()
    store.paths.abort.touch()
    store.open()
    assert bodies(store) == [b"new"]
    assert len(bodies(store, "Other")) == 5
    store.close()


def test_deleting_an_unknown_topic_does_nothing(store: MessageStore) -> None:
    assert store.delete_topic("../..") == 0
    assert store.paths.root.exists()


def test_names_with_a_percent_sign_are_names(store: MessageStore) -> None:
    store.put(message(topic="%RETRY%billing"))
    assert store.topics_on_disk() == ["%RETRY%billing"]
    assert (store.paths.consume_queues / "%RETRY%billing" / "0").is_dir()


def test_what_was_done_is_counted(store: MessageStore) -> None:
    store.put(message())
    store.put_batch([message()] * 3)
    store.put(message(topic="/"))
    store.get("TopicTest", 0, 0, 32)
    stats = store.stats
    assert (stats.puts, stats.put_bytes, stats.refused_puts) == (4, store.end_offset, 1)
    assert (stats.gets, stats.got_messages, stats.got_bytes) == (1, 4, store.end_offset)
