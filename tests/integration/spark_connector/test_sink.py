"""Write tasks against our broker, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from client.blocking import Admin
from client.network.routes import by_sharding_key
from pocketmq import testing
from pocketmq.testing import StandaloneServer
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import UnknownTopicError
from spark_connector.sink.writer import write_rows
from tests.integration.spark_connector.writing import batch, plan, received, write


@pytest.fixture(scope="module")
def server() -> Iterator[StandaloneServer]:
    with testing.broker() as running:
        yield running


def test_rows_arrive_with_all_their_columns(server: StandaloneServer) -> None:
    rows = batch(
        2,
        keys=["a b", None],
        tags=[None, "late"],
        properties=[[("carrier", "DL")], None],
        uniqKey=["0A" * 16, "row-1"],
        flag=[7, 0],
    )
    write(server.nameserver, "SinkColumns", rows)
    first, second = sorted(
        received(server.nameserver, "SinkColumns", 2), key=lambda message: message.body
    )
    assert (first.body, list(first.keys), first.tag) == (b"0", ["a", "b"], None)
    assert (first.id, first.properties["carrier"]) == ("0A" * 16, "DL")
    assert (second.body, list(second.keys), second.tag) == (b"1", [], "late")
    assert len(second.id) == 32


def test_many_rows_arrive_once_and_are_spread(server: StandaloneServer) -> None:
    batches = [batch(5000, first) for first in range(0, 50_000, 5000)]
    counts = write(server.nameserver, "SinkMany", *batches)
    assert counts.messages == 50_000
    messages = received(server.nameserver, "SinkMany", 50_000)
    assert sorted(int(message.body) for message in messages) == list(range(50_000))
    assert len({message.queue for message in messages}) == 4


def test_a_task_that_is_repeated_gives_the_same_unique_keys(server: StandaloneServer) -> None:
    for run in ("query/1", "query/1", "query/2"):
        write(server.nameserver, "SinkAgain", batch(100), run=run)
    ids = [message.id for message in received(server.nameserver, "SinkAgain", 300)]
    assert len(set(ids)) == 200


def test_oneway_rows_arrive_too(server: StandaloneServer) -> None:
    write(server.nameserver, "SinkOneway", batch(3000), sendMode="oneway")
    assert len(received(server.nameserver, "SinkOneway", 3000)) == 3000


def test_a_row_goes_to_the_queue_it_names(server: StandaloneServer) -> None:
    rows = batch(100, queueId=[number % 3 for number in range(100)])
    write(server.nameserver, "SinkQueue", rows)
    for message in received(server.nameserver, "SinkQueue", 100):
        assert message.queue.queue_id == int(message.body) % 3


def test_a_delayed_row_arrives_later(server: StandaloneServer) -> None:
    write(server.nameserver, "SinkDelay", batch(2, delayLevel=[1, 0]))
    later, now = sorted(
        received(server.nameserver, "SinkDelay", 2), key=lambda message: message.body
    )
    assert (now.body, later.body) == (b"1", b"0")
    assert now.stored_at < later.stored_at
    assert (later.stored_at - later.born_at).total_seconds() >= 0.9


def test_the_order_of_a_key_survives_a_broker_that_is_killed(server: StandaloneServer) -> None:
    keys = [f"order-{number % 20}" for number in range(1000)]
    with testing.broker(settings={"flushDiskType": "SYNC_FLUSH"}) as own:
        restarting = threading.Thread(target=own.restart)

        def batches() -> Iterator[Any]:
            for number in range(40):
                if number == 15:
                    own.kill()
                    restarting.start()
                yield batch(1000, 1000 * number, shardingKey=keys)

        columns = ["body", "shardingKey"]
        options = {"maxBatchBytes": "4096", "retries": "1000"}
        made = plan(own.nameserver, "SinkOrder", columns, **options)
        _, counts = write_rows(made, batches(), "run", 0)
        restarting.join()
        messages = received(own.nameserver, "SinkOrder", 40_000)
    assert counts.retries > 0
    seen: dict[MessageQueue, list[int]] = {}
    for message in messages:
        seen.setdefault(message.queue, []).append(int(message.body))
    for queue, numbers in seen.items():
        # Behind a repeated batch all that followed it the first time is repeated as well.
        once = list(dict.fromkeys(numbers))
        assert once == sorted(once)
        places = [MessageQueue("SinkOrder", queue.broker_name, index) for index in range(4)]
        assert all(by_sharding_key(places, keys[number % 1000]) == queue for number in once)
    assert sum(len(set(numbers)) for numbers in seen.values()) == 40_000


def test_a_topic_that_brokers_do_not_create_is_an_error_with_the_nearest_names() -> None:
    with testing.broker(settings={"autoCreateTopicEnable": "false"}) as own:
        with Admin(own.nameserver) as admin:
            admin.create_topic("Flights", queues=1)
        with pytest.raises(UnknownTopicError, match=r"Fligths .*did you mean Flights"):
            write(own.nameserver, "Fligths", batch(1))
        assert write(own.nameserver, "Flights", batch(1)).messages == 1
