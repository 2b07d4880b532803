"""Ranges read from our broker: whole, filtered, large, after retention."""

from __future__ import annotations

import itertools
import random

import pytest

from pocketmq.testing import StandaloneServer
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from spark_connector import connections
from spark_connector.errors import BrokerError, DataLossError, UnknownTopicError
from spark_connector.limits import BATCH_BYTES, BATCH_MESSAGES, MAX_ANSWER_BYTES
from spark_connector.schema import COLUMNS
from spark_connector.source.options import OnDataLoss
from tests.integration.spark_connector.filling import BORN_MS, Filler
from tests.integration.spark_connector.ranges import range_reader, rows

TAGS = ("red", "green", "blue")


def bodies(count: int, size: int = 0) -> list[bytes]:
    return [b"%06d" % n + b"." * size for n in range(count)]


def test_a_range_comes_whole_and_in_order_with_few_pulls(
    server: StandaloneServer, filler: Filler
) -> None:
    filler.create("Whole")
    filler.send("Whole", bodies(10_000, 100), queue_id=2)
    reader = range_reader(server.broker, "Whole", 0, 10_000, queue_id=2)
    batches = list(reader.batches())
    found = [row for batch in batches for row in batch.to_pylist()]
    assert [row["queueOffset"] for row in found] == list(range(10_000))
    assert [row["body"] for row in found] == bodies(10_000, 100)
    # Our broker gives 1024 at a time.
    assert reader.counts.pulls == 10
    assert all(batch.num_rows >= BATCH_MESSAGES for batch in batches[:-1])


def test_any_cut_of_a_queue_gives_the_same_messages(
    server: StandaloneServer, filler: Filler
) -> None:
    filler.create("Cut")
    filler.send("Cut", bodies(3000))
    cuts = [0, 1, 2, 31, 32, 33, 1024, 1500, 2999, 3000]
    found = []
    for start, end in itertools.pairwise(cuts):
        found += rows(range_reader(server.broker, "Cut", start, end))
    assert [row["body"] for row in found] == bodies(3000)


def test_all_columns_have_the_messages_values(server: StandaloneServer, filler: Filler) -> None:
    filler.create("All")
    filler.send("All", [b"first", b"second"], tags=TAGS, extra={"carrier": "UA"})
    _, second = rows(range_reader(server.broker, "All", 0, 2, names=()))
    assert list(second) == list(COLUMNS)
    assert second["topic"] == "All"
    assert second["brokerName"] == "broker-a"
    assert (second["queueId"], second["queueOffset"]) == (0, 1)
    assert (second["body"], second["keys"], second["tags"]) == (b"second", "k1", "green")
    assert second["bornTimestamp"].timestamp() * 1000 == BORN_MS
    assert second["bornHost"].startswith("127.0.0.1:")
    assert dict(second["properties"])["carrier"] == "UA"


@pytest.mark.parametrize("cap", [1, 7, 32, 1024])
@pytest.mark.parametrize("pipeline", [1, 8])
def test_small_pulls_return_the_same(
    server: StandaloneServer, filler: Filler, cap: int, pipeline: int
) -> None:
    filler.create("Small")
    filler.send("Small", bodies(500))
    reader = range_reader(
        server.broker, "Small", 0, 500, pull_batch_size=cap, pull_pipeline=pipeline
    )
    assert [row["body"] for row in rows(reader)] == bodies(500)


def test_messages_of_all_sizes_keep_batches_bounded(
    server: StandaloneServer, filler: Filler
) -> None:
    filler.create("Sizes")
    choose = random.Random(7)
    sizes = [choose.choice([0, 10, 1000, 50_000, 700_000]) for _ in range(300)]
    sent = [bytes([n % 256]) * size for n, size in enumerate(sizes)]
    filler.send("Sizes", sent)
    reader = range_reader(server.broker, "Sizes", 0, 300)
    found = []
    for batch in reader.batches():
        assert batch.nbytes <= BATCH_BYTES + MAX_ANSWER_BYTES
        found += batch.column("body").to_pylist()
    assert found == sent
    # Nothing is read twice although the size of the next answer is unknown.
    assert reader.counts.received_bytes < 1.2 * sum(sizes) + 300 * 200


def test_a_filter_is_exact(server: StandaloneServer, filler: Filler) -> None:
    filler.create("Tags")
    # "Aa" and "BB" have the same hash, by which the broker chooses.
    filler.send("Tags", bodies(6000), tags=("Aa", "BB", "other", *TAGS))
    reader = range_reader(server.broker, "Tags", 10, 5990, filter_tags="BB || red")
    wanted = [n for n in range(10, 5990) if n % 6 in {1, 3}]
    assert [row["queueOffset"] for row in rows(reader)] == wanted
    assert reader.counts.lost == 0


def test_a_rare_tag_is_found_behind_long_gaps(server: StandaloneServer, filler: Filler) -> None:
    filler.create("Rare")
    for tags in (("common",), ("rare",), ("common",)):
        count = 1 if tags == ("rare",) else 5000
        filler.send("Rare", bodies(count), tags=tags)
    reader = range_reader(server.broker, "Rare", 0, 10_001, filter_tags="rare")
    assert [row["queueOffset"] for row in rows(reader)] == [5000]
    nothing = range_reader(server.broker, "Rare", 0, 10_001, filter_tags="absent")
    assert rows(nothing) == []


def test_the_connection_is_used_again_by_the_next_range(
    server: StandaloneServer, filler: Filler
) -> None:
    filler.create("Again")
    filler.send("Again", bodies(10))
    with connections.lease(server.broker) as connection:
        pass
    for _ in range(3):
        assert len(rows(range_reader(server.broker, "Again", 0, 10))) == 10
    with connections.lease(server.broker) as again:
        assert again is connection


def test_a_reader_that_is_left_early_leaves_no_connection_half_read(
    server: StandaloneServer, filler: Filler
) -> None:
    filler.create("Early")
    filler.send("Early", bodies(20_000))
    reading = range_reader(server.broker, "Early", 0, 20_000).batches()
    next(reading)
    reading.close()  # what Spark does for a limit
    with connections.lease(server.broker) as connection:
        answer = connection.request(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
        assert answer.code == 0
        assert b"brokerVersionDesc" in bytes(answer.body)


def test_a_topic_that_is_deleted_is_named(server: StandaloneServer, filler: Filler) -> None:
    filler.create("Deleted")
    filler.send("Deleted", bodies(10))
    filler.delete("Deleted")
    with pytest.raises(UnknownTopicError, match="topic Deleted, queue 0 of broker broker-a"):
        rows(range_reader(server.broker, "Deleted", 0, 10))


def test_a_recreated_topic_is_a_loss(server: StandaloneServer, filler: Filler) -> None:
    filler.create("Anew")
    filler.send("Anew", bodies(10))
    filler.delete("Anew")
    filler.create("Anew")
    filler.send("Anew", bodies(3))
    with pytest.raises(DataLossError, match="offset 3 up to 10, the queue has 0 up to 3"):
        rows(range_reader(server.broker, "Anew", 0, 10))
    reader = range_reader(server.broker, "Anew", 0, 10, on_data_loss=OnDataLoss.SKIP)
    assert [row["queueOffset"] for row in rows(reader)] == [0, 1, 2]
    assert reader.counts.lost == 7


def test_a_queue_that_vanished_is_named(server: StandaloneServer, filler: Filler) -> None:
    filler.create("Fewer", queues=2)
    with pytest.raises(BrokerError, match=r"topic Fewer, queue 5 .*queueId\[5\] is illegal"):
        rows(range_reader(server.broker, "Fewer", 0, 10, queue_id=5))


def test_an_unreachable_broker_is_named() -> None:
    address = "127.0.0.1:9"
    reader = range_reader(address, "T", 0, 10, read_timeout=0.3)
    with pytest.raises(BrokerError, match=f"{address}: Connection refused"):
        rows(reader)
