"""Messages are stored at the right positions, or refused with an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.engine import GetStatus, MessageStore, PutStatus
from broker.store.limits import StoreLimits
from remoting.protocol.limits import MAX_PROPERTIES_BYTES
from remoting.protocol.message.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, host_bytes
from remoting.protocol.message.tags import tags_code
from remoting.protocol.names import SCHEDULE_TOPIC
from tests.support.clock import ManualClock
from tests.unit.broker.store.stores import (
    LOG_FILE,
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
    assert result.end_offset == record.size == store.log.end
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
    assert store.queries.earliest_store_time("TopicTest", 0) == first.store_timestamp_ms
    store.close()


def test_a_message_without_a_born_host_gets_the_brokers(store: MessageStore) -> None:
    store.put(message(born_host=b""))
    assert read_all(store)[0].born_host == ("10.9.8.7", 10911)


def test_messages_are_numbered_by_queue(store: MessageStore) -> None:
    numbers = [
        store.put(message(queue_id=queue_id)).queue_offset for queue_id in (0, 1, 0, 0, 1, 2)
    ]
    assert numbers == [0, 0, 1, 2, 1, 0]
    assert store.queues.queue_ids("TopicTest") == [0, 1, 2]


def test_prepared_and_rolled_back_messages_have_no_offset_and_are_not_visible(
    store: MessageStore,
) -> None:
    store.put(message(b"before"))
    for kind in (4, TRANSACTION_ROLLBACK):
        result = store.put(message(b"half", sys_flag=kind))
        assert (result.status, result.queue_offset) == (PutStatus.OK, 0)
    committed = store.put(message(b"behind", sys_flag=TRANSACTION_COMMIT))
    assert committed.queue_offset == 1
    assert bodies(store) == [b"before", b"behind"]


def test_a_batch_is_stored_at_once(store: MessageStore) -> None:
    store.put(message(b"first"))
    result = store.put_batch([message(b"a"), message(b"bb", tag="x"), message(b"ccc")])
    assert (result.status, result.queue_offset) == (PutStatus.OK, 1)
    records = read_all(store)
    assert [record.physical_offset for record in records[1:]] == result.physical_offsets
    assert [record.body for record in records] == [b"first", b"a", b"bb", b"ccc"]
    assert result.end_offset == store.log.end


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
        (
            {"properties": b"k\x01" + bytes(512) + b"\x02l\x01v"},
            PutStatus.MESSAGE_ILLEGAL,
            "to topic TopicTest have 512 zero bytes in a row",
        ),
        ({"properties": b"k\x01v\0"}, PutStatus.MESSAGE_ILLEGAL, "or one at the end"),
        ({"body": bytes(LOG_FILE)}, PutStatus.MESSAGE_ILLEGAL, "mappedFileSizeCommitLog"),
        ({"born_host": b"12345"}, PutStatus.MESSAGE_ILLEGAL, "born host"),
        ({"flag": 2**40}, PutStatus.MESSAGE_ILLEGAL, "can't be stored"),
        ({"born_timestamp_ms": 2**70}, PutStatus.MESSAGE_ILLEGAL, "can't be stored"),
        ({"born_host": bytes(20), "flag": 2**40}, PutStatus.MESSAGE_ILLEGAL, "can't be stored"),
    ],
)
def test_a_message_that_cannot_be_stored_is_refused_with_a_message(
    store: MessageStore, bad: dict[str, object], status: PutStatus, sentence: str
) -> None:
    pending = message()
    for name, value in bad.items():
        setattr(pending, name, value)
    for result in (store.put(pending), store.put_batch([pending])):
        assert result.status is status
        assert sentence in result.message
    assert store.log.end == 0
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
    assert store.log.end == 0


def test_too_many_queues_are_refused(tmp_path: Path) -> None:
    store = opened(tmp_path, limits=StoreLimits(max_queues=2))
    assert [store.put(message(queue_id=n)).status for n in range(3)] == [
        PutStatus.OK,
        PutStatus.OK,
        PutStatus.MESSAGE_ILLEGAL,
    ]


# --- topics, arrivals, state


def test_arrivals_are_notified_with_the_new_maximum_and_the_tag(store: MessageStore) -> None:
    arrivals: list[tuple[str, int, int, int]] = []
    store.dispatcher.on_arrival = lambda *arrival: arrivals.append(arrival)
    store.put(message(tag="a", queue_id=3))
    store.put_batch([message(tag=tag, queue_id=3) for tag in ("a", "a", "b")])
    store.put(message(sys_flag=4))
    assert arrivals == [
        ("TopicTest", 3, 1, tags_code("a")),
        ("TopicTest", 3, 3, tags_code("a")),
        ("TopicTest", 3, 4, tags_code("b")),
    ]


def test_arrivals_are_notified_for_watched_queues_and_delayed_messages(store: MessageStore) -> None:
    arrivals: list[tuple[str, int]] = []
    watched: set[tuple[str, int]] = set()
    store.dispatcher.on_arrival = lambda topic, queue_id, *_: arrivals.append((topic, queue_id))
    store.dispatcher.watched = watched
    store.put(message(queue_id=1))
    watched.add(("TopicTest", 1))
    store.put(message(queue_id=1))
    store.put(message(queue_id=2))
    store.put(message(topic=SCHEDULE_TOPIC, queue_id=0))
    assert arrivals == [("TopicTest", 1), (SCHEDULE_TOPIC, 0)]


def test_a_deleted_topic_starts_over_empty(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(5):
        store.put(message(b"old %d" % number, queue_id=number % 2))
        store.put(message(b"other", topic="Other"))
    assert store.delete_topic("TopicTest") == 2
    assert store.queues.topics() == ["Other"]
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
    assert store.queues.topics() == ["%RETRY%billing"]
    assert (store.paths.consume_queues / "%RETRY%billing" / "0").is_dir()


def test_puts_and_gets_are_counted(store: MessageStore) -> None:
    store.put(message())
    store.put_batch([message()] * 3)
    store.put(message(topic="/"))
    store.get("TopicTest", 0, 0, 32)
    stats = store.stats
    assert (stats.puts, stats.put_bytes, stats.refused_puts) == (4, store.log.end, 1)
    assert (stats.gets, stats.got_messages, stats.got_bytes) == (1, 4, store.log.end)
