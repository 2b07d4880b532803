"""Write tasks against a broker of ours, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from client import FIRST, ReceivedMessage
from client.blocking import Admin, PullConsumer
from client.producer.queue_selector import by_sharding_key
from pocketmq import testing
from pocketmq.testing import StandaloneServer
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import UnknownTopicError
from spark_connector.options.sink import sink_options
from spark_connector.sink.dispatcher import Counts
from spark_connector.sink.task import Plan, write_rows

NAMES = {
    pa.binary(): "binary",
    pa.string(): "string",
    pa.int32(): "int",
    pa.map_(pa.string(), pa.string()): "map<string,string>",
}


@pytest.fixture(scope="module")
def server() -> Iterator[StandaloneServer]:
    with testing.broker() as running:
        yield running


def batch(count: int, first: int = 0, **columns: Sequence[object]) -> Any:
    """Rows whose bodies are their numbers."""
    arrays = {"body": pa.array([b"%d" % number for number in range(first, first + count)])}
    for name, values in columns.items():
        kind = pa.map_(pa.string(), pa.string()) if name == "properties" else None
        kind = pa.int32() if isinstance(values[0], int) else kind
        arrays[name] = pa.array(values, type=kind)
    return pa.record_batch(arrays)


def write(
    server: StandaloneServer, topic: str, *batches: Any, run: str = "run", **options: str
) -> Counts:
    fields = [(field.name, NAMES[field.type]) for field in batches[0].schema]
    given = {"nameServer": server.nameserver, "topic": topic, **options}
    plan = Plan.of(sink_options(given), fields)
    rows, counts = write_rows(plan, iter(batches), run, 0)
    assert rows == sum(each.num_rows for each in batches)
    return counts


def received(server: StandaloneServer, topic: str, count: int) -> list[ReceivedMessage[bytes]]:
    """Everything in a topic, in the order of each queue; at least so many."""
    found: list[ReceivedMessage[bytes]] = []
    with PullConsumer(server.nameserver, group="readers", start_from=FIRST) as consumer:
        consumer.assign(consumer.queues(topic))
        while len(found) < count:
            got = consumer.get_many(1000, timeout=10)
            assert got, f"{len(found)} of {count} messages came"
            found += got
        found += consumer.get_many(1000, timeout=0.2)
    return found


def test_rows_arrive_with_all_that_their_columns_say(server: StandaloneServer) -> None:
    rows = batch(
        2,
        keys=["a b", None],
        tags=[None, "late"],
        properties=[[("carrier", "DL")], None],
        uniqKey=["0A" * 16, "row-1"],
        flag=[7, 0],
    )
    write(server, "SinkColumns", rows)
    first, second = sorted(received(server, "SinkColumns", 2), key=lambda message: message.body)
    assert (first.body, list(first.keys), first.tag) == (b"0", ["a", "b"], None)
    assert (first.id, first.properties["carrier"]) == ("0A" * 16, "DL")
    assert (second.body, list(second.keys), second.tag) == (b"1", [], "late")
    assert len(second.id) == 32


def test_many_rows_arrive_once_and_are_spread(server: StandaloneServer) -> None:
    batches = [batch(5000, first) for first in range(0, 50_000, 5000)]
    counts = write(server, "SinkMany", *batches)
    assert counts.messages == 50_000
    messages = received(server, "SinkMany", 50_000)
    assert sorted(int(message.body) for message in messages) == list(range(50_000))
    assert len({message.queue for message in messages}) == 4


def test_a_task_that_is_repeated_gives_the_same_unique_keys(server: StandaloneServer) -> None:
    for run in ("query/1", "query/1", "query/2"):
        write(server, "SinkAgain", batch(100), run=run)
    ids = [message.id for message in received(server, "SinkAgain", 300)]
    assert len(set(ids)) == 200


def test_one_way_rows_arrive_too(server: StandaloneServer) -> None:
    write(server, "SinkOneway", batch(3000), sendMode="oneway")
    assert len(received(server, "SinkOneway", 3000)) == 3000


def test_a_row_goes_to_the_queue_it_names(server: StandaloneServer) -> None:
    rows = batch(100, queueId=[number % 3 for number in range(100)])
    write(server, "SinkQueue", rows)
    for message in received(server, "SinkQueue", 100):
        assert message.queue.queue_id == int(message.body) % 3


def test_a_delayed_row_arrives_later(server: StandaloneServer) -> None:
    write(server, "SinkDelay", batch(2, delayLevel=[1, 0]))
    now, later = received(server, "SinkDelay", 2)
    assert (now.body, later.body) == (b"1", b"0")
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

        plan = Plan.of(
            sink_options(
                {
                    "nameServer": own.nameserver,
                    "topic": "SinkOrder",
                    "maxBatchBytes": "4096",
                    "retries": "1000",
                }
            ),
            [("body", "binary"), ("shardingKey", "string")],
        )
        _, counts = write_rows(plan, batches(), "run", 0)
        restarting.join()
        messages = received(own, "SinkOrder", 40_000)
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


def test_a_topic_that_brokers_do_not_make_is_an_error_with_the_nearest_names() -> None:
    with testing.broker(settings={"autoCreateTopicEnable": "false"}) as own:
        with Admin(own.nameserver) as admin:
            admin.create_topic("Flights", queues=1)
        with pytest.raises(UnknownTopicError, match=r"Fligths .*did you mean Flights"):
            write(own, "Fligths", batch(1))
        assert write(own, "Flights", batch(1)).messages == 1
