"""Pipeline 1 computes what a few lines of plain Python compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from client.blocking import Admin
from examples.demo.plain_delays import Figures, Place, counted
from examples.spark import delays
from examples.spark import send_flights as departures
from pocketmq.testing import StandaloneServer


def figures(rows: list[Any]) -> dict[Place, Figures]:
    """Return the rows of the pipeline, each key once."""
    found = {Place(*row[:3]): Figures(*row[3:]) for row in rows}
    assert len(found) == len(rows)
    return found


def test_files_and_topic_have_the_figures_whatever_comes_twice_or_late(
    spark: Any,
    server: StandaloneServer,
    admin: Admin,
    send: Callable[..., int],
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
    assert figures(delays.in_files(spark, str(tmp_path))) == counted(first)

    # The newest flights once more, as from a producer that had no answer; and some of a day that is
    # written already.
    messages = spark.read.format("rocketmq").option("nameServer", server.nameserver)
    newest = messages.option("topic", topic).load().orderBy("storeTimestamp", ascending=False)
    columns = ["body", "keys", "tags", "queueId", "messageId AS uniqKey"]
    sink = newest.limit(1000).selectExpr(*columns).write.format("rocketmq").mode("append")
    sink.option("nameServer", server.nameserver).option("topic", topic).save()
    send(topic, first[:500])
    send(topic, rest)
    run()
    expected = counted(all_flights)
    assert len(expected) > len(counted(first)) > 0
    assert figures(delays.in_files(spark, str(tmp_path))) == expected
    assert figures(delays.in_topic(spark, server.nameserver, results)) == expected
    assert admin.lag(delays.GROUP, topic=topic).total == 0
