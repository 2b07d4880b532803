"""Pipeline 5 reports known lags, keys and dead letters."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import client
from client import FIRST
from client.blocking import Admin, PushConsumer
from examples.spark import send_flights as departures
from pocketmq.testing import StandaloneServer
from tests.spark.pipelines.shared import example

reporting = example("lag_report")


def test_the_report_has_the_lag_in_messages_and_time_and_the_dead_letters(
    spark: Any,
    server: StandaloneServer,
    admin: Admin,
    send: Callable[..., int],
    new_name: Callable[[str], str],
    all_flights: list[departures.Record],
) -> None:
    topic, slow, ready = map(new_name, ("flights", "slow", "ready"))
    flights = all_flights[:1000]
    send(topic, flights)
    queues = admin.queues(topic)
    give_up(server, topic, slow, 3)
    ends = {queue: lag.end for queue, lag in admin.lag(slow, topic=topic).queues.items()}
    behind = {queue: end - min(end, 7) for queue, end in ends.items()}
    admin.create_group(ready)
    admin.commit(slow, behind)
    admin.commit(ready, ends)

    found = [one for one in reporting.positions(admin) if one.topic == topic]
    messages = reporting.unread(spark, server.nameserver, found)
    rows = {row.group: row for row in reporting.lags(spark, found, messages)}
    assert (rows[ready].messages, rows[ready].since) == (0, None)
    assert rows[slow].messages == 7 * len(queues)
    assert rows[slow].seconds >= 0
    stored = messages.collect()
    assert rows[slow].since == min(row.storeTimestamp for row in stored)
    assert sum(row["count"] for row in reporting.throughput(messages)) == 7 * len(queues)
    counts = Counter(row["keys"] for row in stored if row["keys"])
    (first,) = reporting.top_keys(messages, 1)
    assert first["count"] == counts[first.key] == max(counts.values())

    dead = [one for one in admin.topics(internal=True) if one == f"%DLQ%{slow}"]
    (row,) = reporting.dead_letters(spark, server.nameserver, dead)
    assert (row["count"], row["from"]) == (3, topic)
    assert row.reason.startswith("tried ")


def give_up(server: StandaloneServer, topic: str, group: str, count: int) -> None:
    """Consume a topic in a group to its end, and dead-letter some messages."""
    handled = threading.Semaphore(0)
    left = iter(range(count))
    lock = threading.Lock()

    def handle(message: client.ReceivedMessage[bytes]) -> None:
        with lock:
            unwanted = next(left, None) is not None
        handled.release()
        if unwanted:
            raise client.DeadLetter("nobody wants it")

    total = 1000
    with PushConsumer(
        server.nameserver, group=group, subscribe={topic: "*"}, handler=handle, start_from=FIRST
    ):
        for _ in range(total):
            assert handled.acquire(timeout=30)
