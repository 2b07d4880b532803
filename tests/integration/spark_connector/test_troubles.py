"""The driver's side when brokers fail, and when topics and queues are added or deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from client.blocking import Admin, Producer
from client.network.routes import Route
from pocketmq.testing import StandaloneServer
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import BrokerError, DataLossError, UnknownTopicError
from spark_connector.source.brokers import Brokers
from spark_connector.source.options import Subscription
from spark_connector.source.positions import QueueBounds
from spark_connector.source.queue_monitor import Pace
from tests.integration.spark_connector.querying import (
    Query,
    batch_reader,
    numbers,
    rows,
    send,
    stream_reader,
)

QUICK = {
    "fetchOffset.numRetries": 1,
    "fetchOffset.retryIntervalMs": 10,
    "requestTimeoutMs": 20_000,
    "offsetPollIntervalMs": 1,
}


RESTLESS = Pace(route_period=0.0, idle_refresh=0.0, idle_block=0.02)


class Cluster:
    """A broker that a test may stop, and a topic."""

    def __init__(self, server: StandaloneServer) -> None:
        self.server = server
        self.queries: list[Query] = []

    def create(self, topic: str = "T", *, queues: int = 2) -> None:
        with Admin(self.server.nameserver) as admin:
            admin.create_topic(topic, queues=queues)

    def delete(self, topic: str = "T") -> None:
        with Admin(self.server.nameserver) as admin:
            admin.delete_topic(topic)

    def fill(self, first: int, end: int, topic: str = "T") -> None:
        with (
            Admin(self.server.nameserver) as admin,
            Producer(self.server.nameserver, group="tests") as producer,
        ):
            send(admin, producer, topic, range(first, end))

    def query(self, log: list[Any] | None = None, **given: Any) -> Query:
        given = {"pace": RESTLESS, "topic": "T", "startingOffsets": "earliest"} | QUICK | given
        self.queries.append(Query(stream_reader(self.server.nameserver, **given), log))
        return self.queries[-1]


@pytest.fixture
def cluster(own_server: StandaloneServer) -> Iterator[Cluster]:
    made = Cluster(own_server)
    made.create()
    yield made
    for query in made.queries:
        query.reader.stop()


def test_a_query_survives_a_restart_of_its_broker(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
):
    cluster.fill(0, 10)
    running = cluster.query(consumerGroup="G")
    running.step()
    cluster.server.stop()
    for _ in range(3):
        assert running.step() == []
    assert "can't be" in caplog.text
    cluster.server.restart()
    running.until(lambda: bool(running.reader.reportLatestOffset()))
    cluster.fill(10, 20)
    running.until(lambda: len(running.found) >= 20)
    assert numbers(running.found) == list(range(20))


def test_an_idle_query_notices_soon_that_its_broker_is_back(cluster: Cluster):
    cluster.fill(0, 10)
    running = cluster.query(pace=replace(RESTLESS, idle_refresh=float("inf")))
    running.until(lambda: running.step() == [])
    cluster.server.kill()
    running.until(lambda: not running.reader.reportLatestOffset())
    cluster.server.restart()
    cluster.fill(10, 20)
    running.until(lambda: len(running.found) >= 20)
    assert numbers(running.found) == list(range(20))


def test_a_query_fails_when_no_broker_is_there_for_too_long(cluster: Cluster):
    cluster.fill(0, 10)
    running = cluster.query(readTimeoutMs=50)
    running.step()
    cluster.server.kill()
    with pytest.raises(BrokerError, match=r"127\.0\.0\.1:\d+ could not be asked for"):
        running.until(lambda: False)


def test_planning_without_a_name_server_is_an_error_with_its_address():
    for reader in (
        batch_reader("127.0.0.1:9", topic="T", **QUICK).partitions,
        stream_reader("127.0.0.1:9;127.0.0.1:10", topic="T", **QUICK).initialOffset,
    ):
        with pytest.raises(BrokerError, match=r"no name server answers: 127\.0\.0\.1:9.*attempt 2"):
            reader()


def test_another_name_server_is_queried_when_one_is_down(cluster: Cluster):
    cluster.fill(0, 10)
    servers = f"127.0.0.1:9;{cluster.server.nameserver}"
    assert len(rows(batch_reader(servers, topic="T", **QUICK))) == 10


def test_a_topic_with_many_queues_is_read_and_committed(cluster: Cluster):
    cluster.create("Many", queues=150)
    cluster.fill(0, 300, "Many")
    running = cluster.query(topic="Many", consumerGroup="many", maxOffsetsPerTrigger=200)
    assert [len(batch) for batch in running.available_now()] == [200, 100]
    with Admin(cluster.server.nameserver) as admin:
        assert admin.lag("many").total == 0
    following = cluster.query(running.log, topic="Many")
    for _ in range(4):
        assert following.step() == []
    cluster.fill(300, 310, "Many")
    following.until(lambda: len(following.found) >= 10)
    assert numbers(following.found) == list(range(300, 310))


def test_planning_without_the_broker_is_an_error_with_its_address(cluster: Cluster):
    class Elsewhere(Brokers):
        def routes(self, *given: Any, **named: Any) -> dict[str, Route]:
            return {
                topic: replace(route, brokers={name: {0: "127.0.0.1:9"} for name in route.brokers})
                for topic, route in super().routes(*given, **named).items()
            }

    reader = batch_reader(cluster.server.nameserver, topic="T", brokers=Elsewhere, **QUICK)
    with pytest.raises(
        BrokerError, match=r"127.0.0.1:9 could not be asked for the offsets of topic T"
    ):
        reader.partitions()


def test_a_name_server_without_routes_does_not_end_a_query(cluster: Cluster):
    class Forgetful(Brokers):
        def routes(self, subscription: Subscription, *, gone: bool = False) -> dict[str, Route]:
            return {} if gone else super().routes(subscription)

    cluster.fill(0, 10)
    running = cluster.query(brokers=Forgetful)
    running.step()
    cluster.fill(10, 20)
    for _ in range(3):
        running.step()
    assert numbers(running.found) == list(range(20))


def test_a_topic_without_a_route_at_any_server_is_deleted(cluster: Cluster):
    cluster.fill(0, 10)
    running = cluster.query()
    running.step()
    cluster.delete()
    running.step()
    assert running.reader.reportLatestOffset() is None
    with pytest.raises(UnknownTopicError, match=r"knows no topic 'T'"):
        running.step()


def test_a_query_resumes_while_one_of_its_brokers_is_down(cluster: Cluster):
    class HalfDown(Brokers):
        def routes(self, *given: Any, **named: Any) -> dict[str, Route]:
            return {
                topic: replace(route, brokers=route.brokers | {"broker-z": {0: "127.0.0.1:9"}})
                for topic, route in super().routes(*given, **named).items()
            }

    cluster.fill(0, 10)
    running = cluster.query()
    running.step()
    cluster.fill(10, 20)
    again = cluster.query(running.log, brokers=HalfDown)
    assert numbers(again.step()) == list(range(10, 20))


def test_available_now_does_not_end_early_while_a_broker_is_down(cluster: Cluster):
    cluster.fill(0, 10)
    running = cluster.query(maxOffsetsPerTrigger=4, readTimeoutMs=300)
    running.reader.prepareForTriggerAvailableNow()
    running.step()
    cluster.server.kill()
    with pytest.raises(BrokerError, match=r"could not be"):
        running.step()
    cluster.server.restart()
    again = cluster.query(running.log)
    again.available_now()
    assert numbers(running.found + again.found) == list(range(10))


def test_a_deleted_topic_keeps_its_offsets_and_is_logged(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
):
    cluster.fill(0, 10)
    running = cluster.query()
    running.step()
    cluster.delete()
    assert running.step() == []
    assert "a queue has vanished; the query keeps its offset: queue=T/" in caplog.text
    assert len(running.log) == 2


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("skip", range(104, 110)), ("earliest", range(100, 110))],
)
def test_a_recreated_topic_continues_as_configured(cluster: Cluster, policy: str, expected: range):
    cluster.fill(0, 10)
    running = cluster.query(onDataLoss=policy)
    running.step()
    before = len(running.found)
    cluster.delete()
    cluster.create()
    cluster.fill(100, 104)
    running.until(lambda: next(iter(running.log[-1]["topics"]["T"].values()))["0"] == 2)
    cluster.fill(104, 110)
    running.until(lambda: len(running.found) - before >= len(expected))
    assert numbers(running.found[before:]) == list(expected)


def test_a_repeated_batch_of_a_recreated_smaller_topic_has_the_same_messages(cluster: Cluster):
    log = recreated_while_stopped(cluster, 4)
    reading = cluster.query(log, onDataLoss="earliest")
    assert numbers(reading.step()) == list(range(100, 104))
    cluster.fill(104, 120)
    again = cluster.query(onDataLoss="earliest").reader
    assert numbers(rows(again, again.partitions(*log[-2:]))) == list(range(100, 104))


def test_a_recreated_topic_is_a_specific_error(cluster: Cluster):
    cluster.fill(0, 10)
    running = cluster.query()
    running.step()
    cluster.delete()
    cluster.create()
    cluster.fill(100, 104)
    with pytest.raises(DataLossError, match=r"ends at offset 2, before the 5 .* recreated"):
        running.until(lambda: False)


def recreated_while_stopped(cluster: Cluster, count: int) -> list[Any]:
    """Return the log of a query that read 10 messages; its topic then is a new one of ``count``."""
    cluster.fill(0, 10)
    running = cluster.query()
    running.step()
    cluster.delete()
    cluster.create()
    cluster.fill(100, 100 + count)
    return running.log


@pytest.mark.parametrize("count", [10, 16], ids=["as many", "more"])
def test_a_recreated_topic_with_as_many_messages_is_noticed_after_a_restart(
    cluster: Cluster, count: int
):
    log = recreated_while_stopped(cluster, count)
    with pytest.raises(DataLossError, match=r"queue T/.* the topic was deleted and recreated"):
        cluster.query(log).step()
    skipping = cluster.query(list(log), onDataLoss="skip")
    assert skipping.step() == []
    cluster.fill(200, 202)
    skipping.until(lambda: bool(skipping.found))
    assert numbers(skipping.found) == [200, 201]

    reading = cluster.query(log, onDataLoss="earliest", maxOffsetsPerTrigger=4)
    reading.available_now()
    assert numbers(reading.found) == [*range(100, 100 + count), 200, 201]
    again = cluster.query(log[:3], onDataLoss="earliest")
    assert numbers(rows(again.reader, again.reader.partitions(*log[1:3]))) == [100, 101, 102, 103]
    assert again.step() != []


def test_a_batch_that_was_planned_before_its_topic_was_recreated_is_not_read(cluster: Cluster):
    log = recreated_while_stopped(cluster, 16)
    with pytest.raises(DataLossError, match="recreated"):
        cluster.query(log).reader.partitions(*log)
    reading = cluster.query(log, onDataLoss="earliest")
    assert reading.reader.partitions(*log) == []
    assert numbers(reading.step()) == list(range(100, 116))


def test_a_topic_that_has_only_grown_is_not_taken_for_another(cluster: Cluster):
    cluster.fill(0, 10)
    running = cluster.query(maxOffsetsPerTrigger=4)
    running.step()
    cluster.fill(10, 20)
    again = cluster.query(running.log)
    again.available_now()
    cluster.server.stop()
    cluster.server.restart()
    cluster.fill(20, 30)
    third = cluster.query(running.log)
    third.available_now()
    assert numbers(running.found + again.found + third.found) == list(range(30))
    assert third.step() == []


def test_restarting_a_query_of_a_deleted_topic_is_an_error(cluster: Cluster):
    cluster.fill(0, 10)
    running = cluster.query()
    running.step()
    cluster.delete()
    cluster.create("Other")
    again = cluster.query(running.log)
    with pytest.raises(UnknownTopicError, match=r"knows no topic 'T'"):
        again.step()
    third = cluster.query(running.log)
    with pytest.raises(UnknownTopicError, match=r"knows no topic 'T'"):
        third.reader.partitions(*running.log)


def test_a_planned_range_of_an_unknown_broker_is_an_error(cluster: Cluster):
    cluster.fill(0, 10)
    running = cluster.query()
    running.step()
    end = {"v": 1, "topics": {"T": {"broker-z": {"0": 5}}}}
    with pytest.raises(UnknownTopicError, match=r"\[0, 5\) of queue T/broker-z/0 are to be read"):
        running.reader.partitions(running.log[0], end)


@pytest.fixture
def truncated() -> type[Brokers]:
    """Queues whose first five messages can be deleted, by setting ``minimum``."""

    class Truncated(Brokers):
        minimum = 0

        def bounds(self, *given: Any, **named: Any) -> dict[MessageQueue, QueueBounds]:
            return {
                queue: QueueBounds(min(self.minimum, ends.maximum), ends.maximum)
                for queue, ends in super().bounds(*given, **named).items()
            }

    return Truncated


def test_messages_that_were_deleted_unread_are_an_error(cluster: Cluster, truncated: Any):
    cluster.fill(0, 20)
    running = cluster.query(maxOffsetsPerTrigger=4, brokers=truncated)
    running.step()
    truncated.minimum = 5
    with pytest.raises(DataLossError, match=r"T/.*/[01] lost offsets \[2, 5\): it holds \[5, 10\)"):
        running.until(lambda: False)


def test_messages_that_were_deleted_unread_are_skipped_and_counted(
    cluster: Cluster, truncated: Any, caplog: pytest.LogCaptureFixture
):
    cluster.fill(0, 20)
    running = cluster.query(maxOffsetsPerTrigger=4, failOnDataLoss="false", brokers=truncated)
    running.step()
    truncated.minimum = 5
    running.until(lambda: not running.step() and len(running.log) > 2)
    ends = list(running.log[-1]["topics"]["T"].values())
    assert ends == [{"0": 10, "1": 10}]
    assert "messages were deleted before they were read" in caplog.text
    assert "offsets_lost=6" in caplog.text


def test_two_brokers_are_read_together_and_one_may_be_idle(cluster: Cluster, tmp_path: Any):
    from pocketmq.testing import ServerProcess

    second = ServerProcess(
        [
            "broker",
            f"--store={tmp_path / 'second'}",
            "--name=broker-b",
            "--port=0",
            f"--nameserver={cluster.server.nameserver}",
            "--set=mappedFileSizeCommitLog=67108864",
        ]
    )
    second.start()
    try:
        cluster.create("Both")
        cluster.fill(0, 40, "Both")
        running = cluster.query(topic="Both")
        assert len(running.step()) == 40
        assert {row["brokerName"] for row in running.found} > {"broker-b"}
        assert len(rows(batch_reader(cluster.server.nameserver, topic="Both"))) == 40
        second.stop()
        running.step()
        assert len(running.reader.reportLatestOffset()["topics"]["Both"]) == 1
        cluster.fill(40, 60, "Both")
        running.until(lambda: len(running.found) >= 60)
        assert numbers(running.found) == list(range(60))
    finally:
        second.kill()


def test_small_queues_share_a_task(cluster: Cluster):
    cluster.create("Wide", queues=300)
    cluster.fill(0, 300, "Wide")
    server = cluster.server.nameserver
    reader = batch_reader(server, topic="Wide")
    partitions = reader.partitions()
    assert len(partitions) == 100
    assert numbers(rows(reader, partitions)) == list(range(300))
    assert len(batch_reader(server, topic="Wide", maxPartitions=7).partitions()) == 7
    long = batch_reader(server, topic="Wide", maxPartitions=7, maxRecordsPerPartition=10)
    assert len(long.partitions()) == 30
