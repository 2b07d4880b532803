"""Ranges of queues at a real Apache RocketMQ, read as Spark tasks do, without Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import GetMaxOffsetRequestHeader, OffsetResponseHeader
from spark_connector import connections
from spark_connector.errors import BrokerError, DataLossError, UnknownTopicError
from spark_connector.schema import COLUMNS
from spark_connector.source.options import OnDataLoss
from tests.integration.spark_connector.filling import BORN_MS, Filler
from tests.integration.spark_connector.ranges import range_reader, rows
from tests.interop.apache import VERSIONS, Apache, apache
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CAP = 32
"""Maximum messages per answer of these brokers (``maxTransferCountOnMessageInMemory``)."""


@pytest.fixture(scope="module", params=VERSIONS)
def there(
    request: pytest.FixtureRequest, shared_apache: Callable[[str], Apache]
) -> Iterator[Apache]:
    yield shared_apache(request.param)
    connections.close_unused()


class PatientFiller(Filler):
    """A filler that waits until messages are visible, shortly after their acknowledgement."""

    def send(self, topic: str, bodies: Sequence[bytes], *, queue_id: int = 0, **more: Any) -> None:
        """Send, and wait until all messages are visible."""
        end = self._end(topic, queue_id) + len(bodies)
        super().send(topic, bodies, queue_id=queue_id, **more)
        wait_until(lambda: self._end(topic, queue_id) >= end, "the messages don't show")

    def _end(self, topic: str, queue_id: int) -> int:
        header = GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id)
        answer = self._connection.request(Command.request(RequestCode.GET_MAX_OFFSET, header))
        assert answer.code == 0, answer.remark
        return answer.read(OffsetResponseHeader).offset


@pytest.fixture
def filler(there: Apache) -> Iterator[Filler]:
    filler = PatientFiller(there.broker)
    yield filler
    filler.close()


def bodies(count: int, size: int = 0) -> list[bytes]:
    return [b"%06d" % n + b"." * size for n in range(count)]


def test_a_range_is_read_whole_and_in_order_with_pulls_of_32(there: Apache, filler: Filler) -> None:
    filler.create("Whole")
    filler.send("Whole", bodies(20_000, 100))
    reader = range_reader(there.broker, "Whole", 5, 19_990)
    found = rows(reader)
    assert [row["queueOffset"] for row in found] == list(range(5, 19_990))
    assert [row["body"] for row in found] == bodies(20_000, 100)[5:19_990]
    most = 19_985 / CAP
    assert most <= reader.counts.pulls < 1.3 * most
    # Messages requested again after a short answer are read once.
    assert reader.counts.received_bytes < 1.02 * 20_000 * 300


@pytest.mark.parametrize("pipeline", [1, 16])
def test_the_number_of_pulls_in_flight_does_not_change_the_result(
    there: Apache, filler: Filler, pipeline: int
) -> None:
    filler.create("Depth")
    filler.send("Depth", bodies(3000))
    reader = range_reader(there.broker, "Depth", 0, 3000, pull_pipeline=pipeline)
    assert [row["body"] for row in rows(reader)] == bodies(3000)


def test_messages_of_all_sizes_come_once(there: Apache, filler: Filler) -> None:
    filler.create("Sizes")
    choose = random.Random(7)
    sizes = [choose.choice([0, 10, 1000, 50_000, 300_000]) for _ in range(300)]
    sent = [bytes([n % 256]) * size for n, size in enumerate(sizes)]
    filler.send("Sizes", sent)
    found = rows(range_reader(there.broker, "Sizes", 0, 300))
    assert [row["body"] for row in found] == sent


def test_a_filter_is_exact_and_skips_gaps(there: Apache, filler: Filler) -> None:
    filler.create("Tags")
    filler.send("Tags", bodies(6000), tags=("Aa", "BB", "other", "red"))
    filler.send("Tags", bodies(5000), tags=("common",))
    filler.send("Tags", bodies(1), tags=("BB",))
    reader = range_reader(there.broker, "Tags", 10, 11_001, filter_tags="BB || red")
    wanted = [n for n in range(10, 6000) if n % 4 in {1, 3}]
    assert [row["queueOffset"] for row in rows(reader)] == [*wanted, 11_000]
    assert reader.counts.lost == 0


def test_all_columns_have_the_messages_values(there: Apache, filler: Filler) -> None:
    filler.create("All")
    filler.send("All", [b"first", b"second"], tags=("red", "green"), extra={"carrier": "UA"})
    _, second = rows(range_reader(there.broker, "All", 0, 2, names=()))
    assert list(second) == list(COLUMNS)
    assert (second["topic"], second["brokerName"], second["queueOffset"]) == ("All", "broker-a", 1)
    assert (second["body"], second["keys"], second["tags"]) == (b"second", "k1", "green")
    assert second["bornTimestamp"].timestamp() * 1000 == BORN_MS
    assert dict(second["properties"])["carrier"] == "UA"


def test_a_range_beyond_the_end_is_a_loss(there: Apache, filler: Filler) -> None:
    filler.create("Short")
    filler.send("Short", bodies(100))
    with pytest.raises(DataLossError, match="offset 100 up to 200, the queue has 0 up to 100"):
        rows(range_reader(there.broker, "Short", 50, 200))
    with pytest.raises(DataLossError, match="the queue has 0 up to 100"):
        rows(range_reader(there.broker, "Short", 150, 200))
    reader = range_reader(there.broker, "Short", 50, 200, on_data_loss=OnDataLoss.SKIP)
    assert [row["body"] for row in rows(reader)] == bodies(100)[50:]
    assert reader.counts.lost == 100


def test_topics_and_queues_that_are_not_there_are_named(there: Apache, filler: Filler) -> None:
    with pytest.raises(UnknownTopicError, match="topic Absent"):
        rows(range_reader(there.broker, "Absent", 0, 10))
    filler.create("Fewer", queues=2)
    with pytest.raises(BrokerError, match=r"queueId\[5\] is illegal"):
        rows(range_reader(there.broker, "Fewer", 0, 10, queue_id=5))


def test_messages_in_deleted_log_files_are_a_loss(tmp_path: Path) -> None:
    small = ("mappedFileSizeCommitLog=1048576", "maxMessageSize=524288")
    with apache("4.9.7", tmp_path, settings=small) as there:
        filler = Filler(there.broker)
        filler.create("Old")
        filler.send("Old", bodies(20_000, 100))
        filler.close()
    for expired in sorted((tmp_path / "store" / "commitlog").iterdir())[:2]:
        expired.unlink()
    with apache("4.9.7", tmp_path, settings=small) as there:
        with pytest.raises(DataLossError, match=r"messages from offset 0 up to \d+ were deleted"):
            rows(range_reader(there.broker, "Old", 0, 20_000))
        reader = range_reader(there.broker, "Old", 0, 20_000, on_data_loss=OnDataLoss.SKIP)
        found = [row["queueOffset"] for row in rows(reader)]
        connections.close_unused()
    assert found == list(range(20_000 - len(found), 20_000))
    assert reader.counts.lost == 20_000 - len(found) > 0
