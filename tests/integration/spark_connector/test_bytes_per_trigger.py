"""maxBytesPerTrigger against a broker: a target, estimated from samples of every broker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from pocketmq.testing import StandaloneServer
from tests.integration.spark_connector.filling import Filler
from tests.integration.spark_connector.querying import Query, Row, stream_reader

BODY = 10_000
STORED = BODY + 300
"""Approximate bytes of a message in the log."""

_topics = itertools.count()


@pytest.fixture
def topic(filler: Filler) -> str:
    name = f"Bytes-{next(_topics)}"
    filler.create(name, queues=2)
    filler.send(name, [bytes(BODY)] * 60, queue_id=0)
    filler.send(name, [bytes(BODY)] * 12, queue_id=1)
    return name


@pytest.fixture
def query(server: StandaloneServer, topic: str) -> Iterator[Callable[..., Query]]:
    made: list[Query] = []

    def make(**given: object) -> Query:
        given = {"topic": topic, "startingOffsets": "earliest"} | given
        made.append(Query(stream_reader(server.nameserver, **given)))
        return made[-1]

    yield make
    for one in made:
        one.reader.stop()


def places(rows: list[Row]) -> list[tuple[int, int]]:
    return sorted((row["queueId"], row["queueOffset"]) for row in rows)


EVERYTHING = [(0, n) for n in range(60)] + [(1, n) for n in range(12)]


def test_batches_are_as_large_as_the_target(query: Callable[..., Query]):
    running = query(maxBytesPerTrigger=12 * STORED)
    batches = running.available_now()
    assert places(running.found) == EVERYTHING
    assert {len(batch) for batch in batches} == {12}


def test_a_message_larger_than_the_target_makes_a_batch(query: Callable[..., Query]):
    running = query(maxBytesPerTrigger=STORED // 2, maxOffsetsPerTrigger=50)
    assert 1 <= len(running.step()) <= 2


def test_the_smaller_limit_holds(query: Callable[..., Query]):
    running = query(maxBytesPerTrigger=12 * STORED, maxOffsetsPerTrigger=10)
    batches = running.available_now()
    assert places(running.found) == EVERYTHING
    assert max(map(len, batches)) <= 10


def test_a_trigger_that_takes_all_has_no_limit(query: Callable[..., Query]):
    assert len(query(maxBytesPerTrigger=STORED).step(take_all=True)) == len(EVERYTHING)
