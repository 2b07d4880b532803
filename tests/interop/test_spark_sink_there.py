"""Rows written to a real Apache RocketMQ as Spark tasks do, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from client import ReceivedMessage
from client.blocking import Admin
from spark_connector import connections
from spark_connector.errors import ConnectorError
from tests.integration.spark_connector.writing import batch, received, write
from tests.interop.apache import Apache

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

OLD, NEW = "4.9.7", "5.3.3"


@pytest.fixture(scope="module", params=[OLD, NEW])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def there(version: str, shared_apache: Callable[[str], Apache]) -> Iterator[Apache]:
    yield shared_apache(version)
    connections.close_unused()


def stored_at(message: ReceivedMessage[bytes]) -> datetime:
    """Return the store time of a message in its topic, which shows when it was delivered."""
    return message.stored_at


def create(there: Apache, topic: str, queues: int = 4) -> None:
    with Admin(there.nameserver) as admin:
        admin.create_topic(topic, queues=queues)


def test_batches_arrive_with_all_their_columns(there: Apache) -> None:
    create(there, "SinkColumns")
    rows = batch(
        2,
        keys=["a b", None],
        tags=[None, "late"],
        properties=[[("carrier", "DL"), ("CLUSTER", "old")], None],
        uniqKey=["0A" * 16, "row-1"],
    )
    write(there.nameserver, "SinkColumns", rows)
    found = received(there.nameserver, "SinkColumns", 2)
    first, second = sorted(found, key=lambda message: message.body)
    assert (first.body, list(first.keys), first.tag) == (b"0", ["a", "b"], None)
    assert (first.id, first.properties["carrier"]) == ("0A" * 16, "DL")
    assert (second.body, second.tag) == (b"1", "late")


def test_many_rows_arrive_once_in_large_batches(there: Apache) -> None:
    create(there, "SinkMany")
    batches = [batch(10_000, first) for first in range(0, 100_000, 10_000)]
    counts = write(there.nameserver, "SinkMany", *batches)
    assert (counts.messages, counts.retries) == (100_000, 0)
    messages = received(there.nameserver, "SinkMany", 100_000)
    assert sorted(int(message.body) for message in messages) == list(range(100_000))
    assert len({message.queue for message in messages}) == 4


def test_one_key_stays_in_one_queue_and_in_order(there: Apache) -> None:
    create(there, "SinkOrder")
    keys = [f"order-{number % 20}" for number in range(5000)]
    batches = [batch(5000, first, shardingKey=keys) for first in range(0, 20_000, 5000)]
    write(there.nameserver, "SinkOrder", *batches, maxBatchBytes="8k")
    last: dict[str, tuple[object, int]] = {}
    for message in received(there.nameserver, "SinkOrder", 20_000):
        number = int(message.body)
        queue, before = last.get(keys[number % 5000], (message.queue, -1))
        assert queue == message.queue
        assert before < number
        last[keys[number % 5000]] = (queue, number)


def test_a_topic_is_made_by_the_first_send(there: Apache) -> None:
    assert write(there.nameserver, "SinkMade", batch(1000)).messages == 1000
    assert len(received(there.nameserver, "SinkMade", 1000)) == 1000


def test_a_delayed_row_arrives_later(there: Apache) -> None:
    create(there, "SinkDelay")
    write(there.nameserver, "SinkDelay", batch(2, delayLevel=[1, 0]))
    now, later = sorted(received(there.nameserver, "SinkDelay", 2), key=stored_at)
    assert (now.body, later.body) == (b"1", b"0")


def test_an_instant_is_kept_by_brokers_that_have_timers_and_refused_by_others(
    there: Apache, version: str
) -> None:
    create(there, "SinkTimer")
    instant = datetime.now(UTC) + timedelta(seconds=3)
    rows = batch(2, deliverTimestamp=[instant, None])
    if version == OLD:
        with pytest.raises(ConnectorError, match=r"row 0 .* has no timers"):
            write(there.nameserver, "SinkTimer", rows)
        return
    write(there.nameserver, "SinkTimer", rows)
    now, later = sorted(received(there.nameserver, "SinkTimer", 2), key=stored_at)
    assert (now.body, later.body) == (b"1", b"0")
    assert later.stored_at > instant - timedelta(seconds=1.5)
