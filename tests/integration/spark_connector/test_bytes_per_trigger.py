"""maxBytesPerTrigger against a broker of ours, whose queues hold messages of very uneven sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from broker.storetools.view import StoreView
from pocketmq.testing import StandaloneServer
from remoting.blocking import BlockingConnection
from remoting.protocol.byte_range import ByteQuestion
from remoting.protocol.codes import RequestCode
from remoting.protocol.disk.files import ENTRY
from spark_connector.planning.offsets import from_json
from tests.integration.spark_connector.filling import Filler
from tests.integration.spark_connector.querying import Query, Row, stream_reader

LARGE = 100 * 1024
LIMIT = 300_000

_topics = itertools.count()


@pytest.fixture
def topic(filler: Filler) -> str:
    """Queues of small messages, of large ones, and of both."""
    name = f"Bytes-{next(_topics)}"
    filler.create(name, queues=3)
    random = Random(5)
    filler.send(name, [bytes(random.choice((10, 10, 10, LARGE))) for _ in range(60)], queue_id=0)
    filler.send(name, [bytes(10)] * 3000, queue_id=1)
    filler.send(name, [bytes(LARGE)] * 12, queue_id=2)
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


@pytest.fixture
def sizes(server: StandaloneServer, topic: str) -> list[list[int]]:
    """What the messages of each queue take, as the files of the store say."""
    view = StoreView(server.store)
    return [
        [
            size
            for run in view.queue(topic, queue_id).entries(0, end)
            for _, size, _ in ENTRY.iter_unpack(run.entries)
        ]
        for queue_id, end in ((0, 60), (1, 3000), (2, 12))
    ]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Requests: their codes, and whether they ask for bytes."""
    sent: list[tuple[int, bool]] = []
    submit = BlockingConnection.submit

    def counted(self: BlockingConnection, command: Any, **given: Any) -> int:
        sent.append((command.code, ByteQuestion.of(command.fields) is not None))
        return submit(self, command, **given)

    monkeypatch.setattr(BlockingConnection, "submit", counted)
    return sent


def places(rows: list[Row]) -> list[tuple[int, int]]:
    return sorted((row["queueId"], row["queueOffset"]) for row in rows)


EVERYTHING = (
    [(0, n) for n in range(60)] + [(1, n) for n in range(3000)] + [(2, n) for n in range(12)]
)


def test_no_batch_takes_more_and_each_takes_what_there_is_room_for(
    query: Any, sizes: list[list[int]]
):
    running = query(maxBytesPerTrigger=LIMIT)
    batches = running.available_now()
    assert places(running.found) == EVERYTHING
    stored = [sum(sizes[row["queueId"]][row["queueOffset"]] for row in batch) for batch in batches]
    assert max(stored) <= LIMIT
    for taken, end in zip(stored, running.log[1:], strict=True):
        lacking = [
            sizes[queue.queue_id][at]
            for queue, at in from_json(end).items()
            if at < len(sizes[queue.queue_id])
        ]
        assert not lacking or taken + max(lacking) > LIMIT


def test_messages_larger_than_the_limit_go_alone(query: Any, sizes: list[list[int]]):
    running = query(maxBytesPerTrigger=50_000)
    batches = running.available_now()
    assert places(running.found) == EVERYTHING
    large = sum(size > 50_000 for own in sizes for size in own)
    stored = [sum(sizes[row["queueId"]][row["queueOffset"]] for row in batch) for batch in batches]
    assert sum(taken > 50_000 for taken in stored) == large
    assert all(
        len(batch) == 1 for batch, taken in zip(batches, stored, strict=True) if taken > 50_000
    )


def test_all_limits_hold_together(query: Any, sizes: list[list[int]]):
    running = query(maxBytesPerTrigger=LIMIT, maxOffsetsPerTrigger=100)
    batches = running.available_now()
    assert places(running.found) == EVERYTHING
    assert max(map(len, batches)) <= 100
    assert all(
        sum(sizes[row["queueId"]][row["queueOffset"]] for row in batch) <= LIMIT
        for batch in batches
    )


def test_a_batch_costs_two_questions_for_each_queue_at_most(
    query: Any, asked: list[tuple[int, bool]]
):
    running = query(maxBytesPerTrigger=LIMIT)
    for _ in range(4):
        asked.clear()
        assert running.step()
        assert 1 <= asked.count((RequestCode.GET_MAX_OFFSET, True)) <= 6


def test_a_broker_that_can_not_tell_is_estimated(
    query: Any, asked: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
):
    # As Apache's, which knows no such fields: its answer has the end of the queue alone.
    monkeypatch.setattr(ByteQuestion, "fields", lambda _: {})
    running = query(maxBytesPerTrigger=LIMIT)
    batches = running.available_now()
    assert places(running.found) == EVERYTHING
    assert len(batches) > 3
    assert asked.count((RequestCode.GET_MAX_OFFSET, False)) == 3


def test_a_trigger_that_takes_all_asks_nothing(query: Any, asked: list[tuple[int, bool]]):
    assert len(query(maxBytesPerTrigger=LIMIT).step(take_all=True)) == len(EVERYTHING)
    assert (RequestCode.GET_MAX_OFFSET, True) not in asked
