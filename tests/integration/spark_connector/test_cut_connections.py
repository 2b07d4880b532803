"""Connections cut at any byte of an answer: every message is read once."""

from __future__ import annotations

import random

import pytest

from pocketmq.testing import StandaloneServer
from spark_connector.limits import BATCH_MESSAGES
from tests.integration.spark_connector.cutting import cutting
from tests.integration.spark_connector.filling import Filler
from tests.integration.spark_connector.ranges import range_reader, rows

MESSAGES = 12_000
TAGS = ("red", "green", "blue")


@pytest.fixture(scope="module")
def topic(server: StandaloneServer) -> str:
    filler = Filler(server.broker)
    filler.create("Cut")
    filler.send("Cut", [b"%06d" % n for n in range(MESSAGES)], tags=TAGS)
    filler.close()
    return "Cut"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("batch", [1024, 100])
def test_a_range_is_whole_however_often_its_connection_breaks(
    server: StandaloneServer, topic: str, seed: int, batch: int
) -> None:
    choose = random.Random(seed)
    limits = [choose.randrange(1, 400_000) for _ in range(8)] + [1, 4, 8, 100, 260]
    choose.shuffle(limits)
    with cutting(server.broker, limits) as proxy:
        reader = range_reader(proxy.address, topic, 0, MESSAGES, pull_batch_size=batch)
        found = [row["body"] for row in rows(reader)]
    assert found == [b"%06d" % n for n in range(MESSAGES)]
    assert proxy.connections == reader.counts.failures + 1


def test_a_filtered_range_is_whole_however_often_its_connection_breaks(
    server: StandaloneServer, topic: str
) -> None:
    choose = random.Random(9)
    limits = [choose.randrange(1, 200_000) for _ in range(6)]
    with cutting(server.broker, limits) as proxy:
        reader = range_reader(proxy.address, topic, 0, MESSAGES, filter_tags="red || blue")
        found = [row["queueOffset"] for row in rows(reader)]
    assert found == [n for n in range(MESSAGES) if n % 3 != 1]


def test_messages_already_returned_are_not_returned_again(
    server: StandaloneServer, topic: str
) -> None:
    with cutting(server.broker, [500_000]) as proxy:
        batches = list(range_reader(proxy.address, topic, 0, MESSAGES).batches())
    firsts = [batch.column("queueOffset")[0].as_py() for batch in batches]
    assert firsts == sorted(firsts)
    assert min(batch.num_rows for batch in batches[:-1]) >= BATCH_MESSAGES
