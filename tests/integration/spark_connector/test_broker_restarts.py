"""A broker process is killed, stopped and paused while a range is read from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pocketmq.testing import StandaloneServer
from spark_connector.errors import BrokerError
from spark_connector.options import ConnectionOptions
from tests.integration.spark_connector.filling import Filler
from tests.integration.spark_connector.ranges import range_reader

MESSAGES = 30_000


@pytest.fixture
def server_with_messages(own_server: StandaloneServer) -> Iterator[StandaloneServer]:
    filler = Filler(own_server.broker)
    filler.create("T")
    filler.send("T", [b"%06d" % n for n in range(MESSAGES)])
    filler.close()
    return own_server


def offsets_until(batches: Iterator, most: int) -> list[int]:
    found: list[int] = []
    while len(found) < most:
        found += next(batches).column("queueOffset").to_pylist()
    return found


def rest(batches: Iterator) -> list[int]:
    return [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_reading_a_range_continues_after_its_broker_is_back(
    server_with_messages: StandaloneServer, is_killed: bool
) -> None:
    server = server_with_messages
    reader = range_reader(server.broker, "T", 0, MESSAGES, pull_batch_size=64)
    batches = reader.batches()
    found = offsets_until(batches, 5000)
    if is_killed:
        server.kill()
    else:
        server.stop()
    server.restart()
    found += rest(batches)
    assert found == list(range(MESSAGES))
    assert reader.counts.failures >= 1


def test_a_broker_may_be_away_while_it_is_waited_for(
    server_with_messages: StandaloneServer,
) -> None:
    server = server_with_messages
    batches = range_reader(server.broker, "T", 0, MESSAGES, pull_batch_size=64).batches()
    found = offsets_until(batches, 5000)
    server.kill()
    reading = threading.Thread(target=lambda: found.extend(rest(batches)))
    reading.start()
    server.restart()
    reading.join(60)
    assert found == list(range(MESSAGES))


def test_a_broker_that_hangs_is_disconnected_and_retried(
    server_with_messages: StandaloneServer,
) -> None:
    server = server_with_messages
    connection = ConnectionOptions(request_timeout=0.2)
    reader = range_reader(
        server.broker, "T", 0, MESSAGES, pull_batch_size=64, connection=connection
    )
    batches = reader.batches()
    found = offsets_until(batches, 5000)
    server.pause()
    waker = threading.Timer(1.0, server.resume)
    waker.start()
    found += rest(batches)
    waker.join()
    assert found == list(range(MESSAGES))
    assert reader.counts.failures >= 1


def test_a_broker_that_stays_away_fails_the_range_after_the_timeout(
    server_with_messages: StandaloneServer,
) -> None:
    server = server_with_messages
    batches = range_reader(
        server.broker, "T", 0, MESSAGES, pull_batch_size=64, read_timeout=0.5
    ).batches()
    found = offsets_until(batches, 5000)
    server.kill()
    with pytest.raises(BrokerError) as caught:
        found += rest(batches)
    assert server.broker in str(caught.value)
    assert "readTimeoutMs" in str(caught.value)
    assert found == list(range(len(found)))
