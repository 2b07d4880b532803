"""Pipeline 1 counts what a few lines of plain Python count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from client.blocking import Admin
from pocketmq.demo import delays, departures
from pocketmq.testing import StandaloneServer
from tests.spark.pipelines.shared import Received, loaded

Key = tuple[str, str, str]
Figures = tuple[int, int, int, int]


def scheduled(flight: departures.Record) -> datetime:
    return datetime.fromisoformat(str(flight["scheduled"]))


def counted(flights: Iterable[departures.Record], latest: datetime) -> dict[Key, Figures]:
    """The figures of the days that are complete when the newest flight is ``latest``."""
    found: dict[Key, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for flight in flights:
        day = scheduled(flight).replace(hour=0, minute=0)
        if day + timedelta(days=1) > latest - timedelta(days=2):
            continue
        figures = found[f"{day:%Y-%m-%d}", str(flight["origin"]), str(flight["carrier"])]
        figures[0] += 1
        delay = flight["delay"]
        if isinstance(delay, int):
            figures[1] += 1
            figures[2] += delay >= 15
            figures[3] += delay
    return {key: (a, b, c, d) for key, (a, b, c, d) in found.items()}


def of_files(spark: Any, directory: Path) -> dict[Key, Figures]:
    rows = spark.read.parquet(f"{directory}/delays").collect()
    found = {
        (f"{row.day:%Y-%m-%d}", row.origin, row.carrier): (
            *(row.flights, row.departed, row.late),
            row.minutes,
        )
        for row in rows
    }
    assert len(found) == len(rows)
    return found


def of_messages(messages: list[Any]) -> dict[Key, Figures]:
    found = {
        (one["day"][:10], one["origin"], one["carrier"]): (
            *(one["flights"], one["departed"], one["late"]),
            one["minutes"],
        )
        for one in messages
    }
    assert len(found) == len(messages)
    return found


def test_files_and_topic_have_the_figures_whatever_comes_twice_or_late(
    spark: Any,
    server: StandaloneServer,
    admin: Admin,
    send: Callable[..., int],
    received: Received,
    new_name: Callable[[str], str],
    all_flights: list[departures.Record],
    tmp_path: Path,
) -> None:
    topic, results = new_name("flights"), new_name("delays")
    admin.create_topic(results, queues=3)

    def run() -> None:
        query = delays.start(
            spark,
            server.nameserver,
            topic=topic,
            result_topic=results,
            directory=str(tmp_path),
            per_batch=10_000,
        )
        assert query.awaitTermination(100)
        assert query.exception() is None

    first, rest = all_flights[:12_000], all_flights[12_000:]
    send(topic, first)
    run()
    expected = counted(first, max(map(scheduled, first)))
    assert of_files(spark, tmp_path) == expected

    # Sent again as a producer does that had no answer, and flights of a day that is written.
    again = spark.read.format("rocketmq").option("nameServer", server.nameserver)
    twice = again.option("topic", topic).load().orderBy("storeTimestamp", ascending=False)
    columns = ["body", "keys", "tags", "queueId", "messageId AS uniqKey"]
    sink = twice.limit(1000).selectExpr(*columns).write.format("rocketmq").mode("append")
    sink.option("nameServer", server.nameserver).option("topic", topic).save()
    send(topic, first[:500])
    send(topic, rest)
    run()
    expected = counted(all_flights, max(map(scheduled, all_flights)))
    assert of_files(spark, tmp_path) == expected
    assert of_messages(loaded(received(results, len(expected)))) == expected
    assert admin.lag("delays", topic=topic).total == 0
