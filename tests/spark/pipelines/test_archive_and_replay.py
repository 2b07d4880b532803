"""Pipelines 2 and 4: to Parquet and back, with nothing lost, repeated or out of order."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from client.blocking import Admin, Producer
from examples.spark import send_flights as departures
from pocketmq.testing import StandaloneServer
from tests.spark.pipelines.shared import example

SAME = ["messageId", "body", "keys", "tags", "properties"]

archiving = example("archive")
replaying = example("replay")


def archive(spark: Any, server: StandaloneServer, topic: str, directory: Path) -> None:
    query = archiving.archive(spark, server.nameserver, topic, str(directory), per_batch=4000)
    assert query.awaitTermination(100)
    assert query.exception() is None


def archived(spark: Any, directory: Path) -> list[Any]:
    messages = spark.read.parquet(f"{directory}/messages")
    return list(messages.select(*SAME).orderBy("messageId").collect())


def by_plane(spark: Any, directory: Path) -> dict[str, list[bytes]]:
    """Return the flights of each plane in queue order."""
    messages = spark.read.parquet(f"{directory}/messages").filter("keys IS NOT NULL")
    found: dict[str, list[bytes]] = defaultdict(list)
    for row in messages.orderBy("brokerName", "queueId", "queueOffset").collect():
        found[row["keys"]].append(bytes(row["body"]))
    return found


def sending(server: StandaloneServer, topic: str, flights: Sequence[departures.Record]) -> None:
    """Send flights in portions."""
    with Producer(server.nameserver, group="slow") as producer, Admin(server.nameserver) as admin:
        queues = admin.queues(topic)
        for first in range(0, len(flights), 250):
            portion = flights[first : first + 250]
            producer.send_many([departures.message(topic, flight, queues) for flight in portion])


@pytest.mark.slow
def test_what_is_archived_in_three_runs_and_replayed_is_the_same(
    spark: Any,
    server: StandaloneServer,
    admin: Admin,
    send: Callable[..., int],
    new_name: Callable[[str], str],
    all_flights: list[departures.Record],
    tmp_path: Path,
) -> None:
    topic, again = new_name("flights"), new_name("again")
    send(topic, all_flights[:2000])
    producer = threading.Thread(target=sending, args=(server, topic, all_flights[2000:5000]))
    producer.start()
    archive(spark, server, topic, tmp_path / "first")
    producer.join()
    send(topic, all_flights[5000:6000])
    archive(spark, server, topic, tmp_path / "first")
    archive(spark, server, topic, tmp_path / "first")

    rows = archiving.proof(spark, f"{tmp_path}/first")
    ends = {
        queue.queue_id: lag.end for queue, lag in admin.lag("archive", topic=topic).queues.items()
    }
    assert {row.queueId: (row.first, row.last + 1) for row in rows} == {
        queue: (0, end) for queue, end in ends.items()
    }
    assert all((row.lacking, row.repeated) == (0, 0) for row in rows)
    assert sum(row.messages for row in rows) == 6000
    assert admin.lag("archive", topic=topic).total == 0

    admin.create_topic(again, queues=3)
    replaying.replay(spark, f"{tmp_path}/first", topic, server.nameserver, again)
    archive(spark, server, again, tmp_path / "second")
    assert archived(spark, tmp_path / "second") == archived(spark, tmp_path / "first")
    assert by_plane(spark, tmp_path / "second") == by_plane(spark, tmp_path / "first")


@pytest.mark.slow
def test_a_replay_keeps_to_its_rate(
    spark: Any,
    server: StandaloneServer,
    admin: Admin,
    read: Callable[..., Any],
    send: Callable[..., int],
    new_name: Callable[[str], str],
    all_flights: list[departures.Record],
    tmp_path: Path,
) -> None:
    topic, again = new_name("flights"), new_name("again")
    send(topic, all_flights[:300])
    archive(spark, server, topic, tmp_path)
    admin.create_topic(again, queues=1)
    try:
        replaying.replay(spark, str(tmp_path), topic, server.nameserver, again, rate=200)
    finally:
        spark.conf.unset(replaying.BATCH)
    assert read(again).count() == 300


def test_rows_wait_until_those_before_them_have_had_their_time() -> None:
    now = 100.0
    waits: list[float] = []

    def clock() -> float:
        return now

    def sleep(seconds: float) -> None:
        nonlocal now
        waits.append(seconds)
        now += seconds

    passed = []
    for row in replaying.paced(50, clock, sleep)("abcd"):
        passed.append(row)
        now += 0.005
    assert passed == ["a", "b", "c", "d"]
    assert waits == pytest.approx([0, 0.015, 0.015, 0.015])
