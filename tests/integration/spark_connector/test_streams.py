"""The streaming reader against our broker: batches, targets, commits, idle queries."""

from __future__ import annotations

import itertools
import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from client.blocking import Admin, Producer
from pocketmq.testing import StandaloneServer
from remoting.blocking import BlockingConnection
from spark_connector.errors import BrokerError, ConnectorError, DataLossError, UnknownTopicError
from spark_connector.source.brokers import Brokers
from spark_connector.source.queue_monitor import MAX_WATCHED, ArrivalWatch, Pace
from spark_connector.source.stream import RocketMQStreamReader, UnlimitedStreamReader
from tests.integration.spark_connector.querying import (
    Query,
    batch_reader,
    numbers,
    rows,
    send,
    stream_reader,
)

_topics = itertools.count()


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"Stream-{next(_topics)}"
    admin.create_topic(name, queues=4)
    return name


@pytest.fixture
def fill(admin: Admin, producer: Producer, topic: str) -> Callable[[int, int], None]:
    return lambda first, end: send(admin, producer, topic, range(first, end))


@pytest.fixture
def query(server: StandaloneServer, topic: str) -> Iterator[Callable[..., Query]]:
    made: list[Query] = []

    def make(log: list[Any] | None = None, **given: Any) -> Query:
        given = {"topic": topic, "startingOffsets": "earliest"} | given
        made.append(Query(stream_reader(server.nameserver, **given), log))
        return made[-1]

    yield make
    for one in made:
        one.reader.stop()


def test_a_query_reads_each_message_once(fill: Any, query: Any):
    fill(0, 100)
    running = query()
    assert numbers(running.step()) == list(range(100))
    assert running.step() == []
    fill(100, 110)
    running.until(lambda: len(running.found) >= 110)
    assert numbers(running.found) == list(range(110))


def test_a_query_begins_at_the_end_unless_told(fill: Any, query: Any):
    fill(0, 20)
    running = query(startingOffsets="latest")
    assert running.reader.initialOffset() == running.reader.initialOffset()
    assert running.step() == []
    fill(20, 24)
    running.until(lambda: len(running.found) >= 4)
    assert numbers(running.found) == list(range(20, 24))


def test_batches_keep_to_the_limit(fill: Any, query: Any):
    fill(0, 100)
    running = query(maxOffsetsPerTrigger=30)
    sizes = [len(running.step()) for _ in range(4)]
    assert sizes == [30, 30, 30, 10]
    assert numbers(running.found) == list(range(100))


def test_a_trigger_that_takes_all_takes_all(fill: Any, query: Any):
    fill(0, 100)
    assert len(query(maxOffsetsPerTrigger=30).step(take_all=True)) == 100


def test_bytes_limit_a_batch(fill: Any, query: Any):
    fill(0, 100)
    running = query(maxBytesPerTrigger=2000)
    sizes = [len(batch) for batch in running.available_now()]
    assert len(sizes) > 3
    assert max(sizes) * 50 < 2000
    assert numbers(running.found) == list(range(100))


def test_a_minimum_is_waited_for(fill: Any, query: Any):
    running = query(minOffsetsPerTrigger=50, maxTriggerDelay="1h")
    fill(0, 40)
    assert running.step() == []
    fill(40, 60)
    running.until(lambda: bool(running.found))
    assert numbers(running.found) == list(range(60))


def test_available_now_ends_at_the_offsets_of_its_start(fill: Any, query: Any):
    fill(0, 100)
    running = query(maxOffsetsPerTrigger=40)
    running.reader.prepareForTriggerAvailableNow()
    running.step()
    fill(100, 200)
    while running.step():
        pass
    assert numbers(running.found) == list(range(100))
    following = query(running.log, maxOffsetsPerTrigger=40)
    assert [len(batch) for batch in following.available_now()] == [40, 40, 20]
    assert numbers(following.found) == list(range(100, 200))


def test_ranges_are_the_same_when_a_batch_is_planned_again(fill: Any, query: Any):
    fill(0, 100)
    running = query(maxRecordsPerPartition=10, minPartitions=3)
    running.step()
    again = query()
    start, end = running.log[-2:]
    parts = running.reader.partitions(start, end)
    assert len(parts) >= 10
    assert numbers(
        row
        for part in parts
        for batch in running.reader.read(pickle.loads(pickle.dumps(part)))
        for row in batch.to_pylist()
    ) == list(range(100))
    ranges = [part.ranges for part in parts]
    assert [part.ranges for part in running.reader.partitions(start, end)] == ranges
    assert {r.queue for p in again.reader.partitions(start, end) for r in p.ranges} == {
        r.queue for ranges_ in ranges for r in ranges_
    }


def test_a_reader_survives_pickling_before_its_first_use(query: Any, fill: Any):
    fill(0, 10)
    running = query()
    running.step()
    copied = pickle.loads(pickle.dumps(query().reader))
    parts = running.reader.partitions(running.log[0], running.log[1])
    assert sum(batch.num_rows for part in parts for batch in copied.read(part)) == 10


def test_lag_falls_with_every_batch_and_is_0_at_the_end(admin: Admin, fill: Any, query: Any):
    fill(0, 100)
    running = query(consumerGroup="lag-seen", maxOffsetsPerTrigger=40)
    lags = []
    running.reader.prepareForTriggerAvailableNow()
    while running.step():
        lags.append(admin.lag("lag-seen").total)
    lags.append(admin.lag("lag-seen").total)
    assert lags == [100, 60, 20, 0]


def test_a_groups_offsets_never_go_back(admin: Admin, topic: str, fill: Any, query: Any):
    fill(0, 100)
    queues = admin.queues(topic)
    admin.commit("not-back", dict.fromkeys(queues, 20))
    running = query(consumerGroup="not-back", maxOffsetsPerTrigger=40)
    running.step()
    running.step()
    assert set(admin.committed("not-back", topic).values()) == {20}
    running.available_now()
    assert set(admin.committed("not-back", topic).values()) == {25}


def test_a_query_continues_at_its_groups_offsets(admin: Admin, topic: str, fill: Any, query: Any):
    fill(0, 100)
    queues = admin.queues(topic)
    admin.commit("goes-on", dict.fromkeys(queues[:3], 20))
    for on_no_commit, expected in (("earliest", 40), ("latest", 15)):
        running = query(
            consumerGroup="goes-on",
            startingOffsets="committed",
            onNoCommit=on_no_commit,
            commitOffsets="none",
        )
        assert len(running.step()) == expected


def test_two_queries_with_one_group_are_logged(
    fill: Any, query: Any, caplog: pytest.LogCaptureFixture
):
    fill(0, 100)
    slow = query(consumerGroup="shared", maxOffsetsPerTrigger=20)
    for _ in range(3):
        slow.step()
    assert "another consumer commits" not in caplog.text
    query(consumerGroup="shared").available_now()
    slow.step()
    slow.step()
    assert "another consumer commits for this query's group" in caplog.text


def test_a_broker_that_refuses_commits_does_not_stop_a_query(
    fill: Any, query: Any, caplog: pytest.LogCaptureFixture
):
    class Refusing(Brokers):
        def commit(self, *_: object) -> None:
            raise BrokerError("a:1 gives no commit")

    fill(0, 10)
    running = query(consumerGroup="uncommitted", brokers=Refusing)
    assert len(running.step()) == 10
    assert running.step() == []
    assert "a commit failed; it is tried again" in caplog.text


def test_an_idle_query_polls_rarely_and_sees_new_messages_at_once(
    fill: Any, query: Any, monkeypatch: pytest.MonkeyPatch
):
    fill(0, 10)
    # Only a sign makes it ask again.
    running = query(consumerGroup="idle", pace=Pace(idle_refresh=float("inf")))
    running.step()
    while running.step():
        pass
    running.step()
    running.step()
    sent: list[int] = []
    submit = BlockingConnection.submit

    def counted(self: BlockingConnection, command: Any, **given: Any) -> int:
        sent.append(command.code)
        return submit(self, command, **given)

    monkeypatch.setattr(BlockingConnection, "submit", counted)
    for _ in range(8):
        running.step()
    assert len(sent) <= 2
    timer = threading.Timer(0.05, fill, (10, 11))
    timer.start()
    began = time.monotonic()
    while not running.step():
        pass
    timer.join()
    assert time.monotonic() - began < 60
    assert numbers(running.found) == list(range(11))


class Waits(ArrivalWatch):
    """Records the requested waits, and returns one answer at once."""

    def __init__(self, *, sign: bool) -> None:
        super().__init__("G")
        self.asked: list[float] = []
        self._sign = sign

    def wait(self, ends: object, timeout: float) -> bool:
        self.asked.append(timeout)
        return self._sign


@pytest.mark.parametrize(
    ("other_work", "block"), [(float("inf"), Pace().idle_block), (0.0, Pace().brief_block)]
)
def test_a_query_that_has_other_work_does_not_wait_for_this_source(
    query: Any, other_work: float, block: float
):
    watch = Waits(sign=False)
    running = query(watch=watch, pace=Pace(other_work=other_work))
    for _ in range(4):
        running.step()
    assert watch.asked == [block, block]


def test_a_broker_that_answers_parked_pulls_at_once_is_polled(fill: Any, query: Any):
    watch = Waits(sign=True)
    running = query(watch=watch, pace=Pace(idle_block=0.0, idle_requests=1000.0))
    for _ in range(6):
        assert running.step() == []
    assert len(watch.asked) == 1
    fill(0, 4)
    running.until(lambda: len(running.found) >= 4)


def test_topics_that_come_to_match_a_pattern_join_a_running_query(
    server: StandaloneServer,
    admin: Admin,
    producer: Producer,
):
    admin.create_topic("Match-1", queues=1)
    reader = stream_reader(
        server.nameserver,
        subscribePattern=r"Match-\d",
        startingOffsets="latest",
        pace=Pace(route_period=0.0, idle_refresh=0.0),
    )
    running = Query(reader)
    running.step()
    admin.create_topic("Match-2", queues=2)
    admin.create_topic("Mismatch-3", queues=2)
    for name in ("Match-1", "Match-2", "Mismatch-3"):
        send(admin, producer, name, range(6))
    running.until(lambda: len(running.found) >= 12)
    assert {row["topic"] for row in running.found} == {"Match-1", "Match-2"}
    assert len(running.found) == 12
    reader.stop()


def test_a_pattern_waits_for_its_first_topic(
    server: StandaloneServer, admin: Admin, producer: Producer
):
    reader = stream_reader(
        server.nameserver,
        subscribePattern=r"Later-\d",
        pace=Pace(route_period=0.0, idle_refresh=0.0),
    )
    running = Query(reader)
    assert running.step() == running.step() == []
    admin.create_topic("Later-1", queues=1)
    send(admin, producer, "Later-1", range(3))
    running.until(lambda: len(running.found) == 3)
    reader.stop()


def test_a_pattern_matches_no_topic_of_the_cluster_itself(
    server: StandaloneServer, admin: Admin, topic: str
):
    reader = stream_reader(server.nameserver, subscribePattern=".*", startingOffsets="earliest")
    names = set(reader.initialOffset()["topics"])
    assert topic in names
    assert not names & {"broker-a", "DefaultCluster", "TBW102", "SELF_TEST_TOPIC"}
    assert not [name for name in names if name.endswith("_REPLY_TOPIC")]
    reader.stop()


def test_queues_that_appear_are_read_from_their_beginning(
    admin: Admin, topic: str, fill: Any, query: Any
):
    fill(0, 8)
    running = query(pace=Pace(route_period=0.0, idle_refresh=0.0), startingOffsets="latest")
    running.step()
    admin.update_topic(topic, queues=6)
    fill(100, 112)
    running.until(lambda: len(running.found) >= 12)
    assert numbers(running.found) == list(range(100, 112))
    assert {row["queueId"] for row in running.found} == set(range(6))


def test_assigned_queues_alone_are_read(
    server: StandaloneServer, admin: Admin, topic: str, fill: Any, query: Any
):
    fill(0, 40)
    broker = admin.queues(topic)[0].broker_name
    reader = stream_reader(
        server.nameserver,
        assign=f'{{"{topic}":{{"{broker}":[1,3]}}}}',
        startingOffsets="earliest",
    )
    running = Query(reader)
    assert {row["queueId"] for row in running.step()} == {1, 3}
    reader.stop()
    with pytest.raises(UnknownTopicError, match=rf"assign names queue {topic}/{broker}/7"):
        stream_reader(server.nameserver, assign=f'{{"{topic}":{{"{broker}":[7]}}}}').initialOffset()


def test_tags_filter_a_stream(fill: Any, query: Any):
    fill(0, 40)
    running = query(filterTags="odd || third", maxOffsetsPerTrigger=15)
    found = [row for batch in running.available_now() for row in batch]
    assert numbers(found) == list(range(1, 40, 2))


def test_an_expression_about_properties_filters_a_stream(fill: Any, query: Any):
    fill(0, 40)
    running = query(filterSql="TAGS = 'odd' AND KEYS <> 'k7'", maxOffsetsPerTrigger=15)
    found = [row for batch in running.available_now() for row in batch]
    assert numbers(found) == [number for number in range(1, 40, 2) if number != 7]


def test_a_checkpoint_of_another_topic_is_an_error(
    server: StandaloneServer, admin: Admin, fill: Any, query: Any
):
    fill(0, 4)
    running = query()
    running.step()
    admin.create_topic("Other", queues=1)
    other = Query(stream_reader(server.nameserver, topic="Other"), running.log)
    with pytest.raises(ConnectorError, match="checkpoint has offsets of queue Stream"):
        other.step()


def before_4_2(server: StandaloneServer, topic: str, **given: Any) -> Any:
    given = {"topic": topic, "startingOffsets": "earliest", **given}
    return stream_reader(server.nameserver, kind=UnlimitedStreamReader, **given)


def test_before_spark_4_2_a_recreated_topic_is_an_error(
    server: StandaloneServer, admin: Admin, producer: Producer
):
    admin.create_topic("Anew", queues=1)
    send(admin, producer, "Anew", range(5))
    running = before_4_2(server, "Anew")
    end = running.latestOffset()
    assert numbers(rows(running, running.partitions(running.initialOffset(), end))) == [*range(5)]
    admin.delete_topic("Anew")
    admin.create_topic("Anew", queues=1)
    send(admin, producer, "Anew", range(8))
    again = before_4_2(server, "Anew")
    with pytest.raises(DataLossError, match="has other messages than those that were read"):
        again.partitions(end, again.latestOffset())
    again = before_4_2(server, "Anew", onDataLoss="earliest")
    found = rows(again, again.partitions(end, again.latestOffset()))
    assert numbers(found) == [*range(8)]


def test_before_spark_4_2_a_queue_that_is_away_at_a_restart_keeps_its_offset(
    server: StandaloneServer, topic: str, fill: Any
):
    class Away(Brokers):
        """Their route lacks a queue while its broker is away."""

        away = False

        def bounds(self, *given: Any, **more: Any) -> Any:
            found = super().bounds(*given, **more)
            return {q: ends for q, ends in found.items() if not (self.away and q.queue_id == 1)}

    fill(0, 8)
    running = before_4_2(server, topic)
    end = running.latestOffset()
    running.partitions(running.initialOffset(), end)
    Away.away = True
    again = before_4_2(server, topic, brokers=Away)
    without = again.latestOffset()
    assert rows(again, again.partitions(end, without)) == []
    Away.away = False
    fill(8, 12)
    found = rows(again, again.partitions(without, again.latestOffset()))
    assert numbers(found) == [8, 9, 10, 11]


@pytest.mark.parametrize("kind", [RocketMQStreamReader, UnlimitedStreamReader])
def test_a_first_batch_that_is_repeated_has_the_same_messages(
    server: StandaloneServer, admin: Admin, topic: str, fill: Any, kind: type[RocketMQStreamReader]
):
    group = f"first-{kind.__name__}"
    given = {
        "topic": topic,
        "startingOffsets": "committed",
        "consumerGroup": group,
        "commitOffsets": "none",
    }
    fill(0, 20)
    queues = admin.queues(topic)
    admin.commit(group, dict.fromkeys(queues, 2))
    first = stream_reader(server.nameserver, kind=kind, **given)
    if kind is UnlimitedStreamReader:
        end = json.loads(json.dumps(first.latestOffset()))
    else:
        start = json.loads(json.dumps(first.initialOffset()))
        end = json.loads(json.dumps(first.latestOffset(start, first.getDefaultReadLimit())))
    # Spark stops here: its log has this end, and no start.
    admin.commit(group, dict.fromkeys(queues, 5))
    again = stream_reader(server.nameserver, kind=kind, **given)
    found = rows(again, again.partitions(json.loads(json.dumps(again.initialOffset())), end))
    assert numbers(found) == list(range(8, 20))


def test_a_repeated_batch_reads_its_new_queues_from_where_they_began(
    admin: Admin, topic: str, fill: Any, query: Any
):
    class Truncated(Brokers):
        """Their queues have lost the first message by now."""

        def bounds(self, *given: Any, **more: Any) -> Any:
            found = super().bounds(*given, **more)
            return {queue: ends._replace(minimum=1) for queue, ends in found.items()}

    pace = Pace(route_period=0.0, idle_refresh=0.0)
    running = query(pace=pace, startingOffsets="latest")
    running.step()
    admin.update_topic(topic, queues=6)
    fill(0, 12)
    running.until(lambda: len(running.found) >= 12)
    again = query(brokers=Truncated, startingOffsets="latest", onDataLoss="skip")
    found = [
        row
        for start, end in itertools.pairwise(running.log)
        for row in rows(again.reader, again.reader.partitions(start, end))
    ]
    assert numbers(found) == list(range(12))


def test_an_idle_query_of_many_queues_asks_often_enough(
    server: StandaloneServer, admin: Admin, producer: Producer
):
    for number in range(MAX_WATCHED + 1):
        admin.create_topic(f"Many-{number}", queues=1)
    pace = Pace(idle_block=0.0, idle_refresh=0.0, idle_requests=0.001)
    running = Query(stream_reader(server.nameserver, pace=pace, subscribePattern="Many-.*"))
    for _ in range(3):
        assert running.step() == []
    send(admin, producer, "Many-0", [7])
    running.until(lambda: numbers(running.found) == [7])


def test_an_unknown_topic_is_an_error_with_the_nearest_name(server: StandaloneServer, topic: str):
    with pytest.raises(UnknownTopicError, match=rf"no topic '{topic}x'; did you mean 'Stream-"):
        stream_reader(server.nameserver, topic=topic + "x").initialOffset()
    with pytest.raises(UnknownTopicError, match="no topic matches subscribePattern 'No"):
        batch_reader(server.nameserver, subscribePattern="Nothing.*").partitions()
