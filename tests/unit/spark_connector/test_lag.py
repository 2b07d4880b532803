"""The lag of streaming queries, from the events of Spark's listeners, without Spark."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from remoting.protocol.queue import MessageQueue
from spark_connector.lag import LagListener, QueryLag, lag_of
from spark_connector.source.offsets import to_json

KAFKA = '{"topic":{"0":100}}'


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def offsets(*values: int, topic: str = "T") -> str:
    return json.dumps(to_json({queue(n, topic): value for n, value in enumerate(values)}))


def source(end: str, latest: str) -> Any:
    return SimpleNamespace(endOffset=end, latestOffset=latest)


def progress(*sources: Any, query_id: str = "id-1", name: str | None = "delays") -> Any:
    return SimpleNamespace(
        progress=SimpleNamespace(
            id=query_id,
            name=name,
            batchId=7,
            timestamp="2026-11-20T10:00:00.000Z",
            sources=list(sources),
        )
    )


def lag(*sources: Any) -> QueryLag:
    found = lag_of(progress(*sources).progress)
    assert found is not None
    return found


def test_lag_is_what_is_not_read_yet() -> None:
    found = lag(source(offsets(10, 20), offsets(15, 20)))
    assert [(one.queue.queue_id, one.offset, one.latest, one.messages) for one in found.queues] == [
        (0, 10, 15, 5),
        (1, 20, 20, 0),
    ]
    assert found.messages == 5
    assert found.worst is found.queues[0]
    assert (found.query_id, found.name, found.batch_id) == ("id-1", "delays", 7)


def test_sources_add_up_and_others_do_not_count() -> None:
    found = lag(
        source(offsets(1), offsets(2)),
        source(KAFKA, KAFKA),
        source(offsets(5, topic="U"), offsets(9, topic="U")),
    )
    assert found.messages == 1 + 4


def test_a_topic_read_twice_counts_as_its_slower_reader() -> None:
    assert lag(source(offsets(8), offsets(9)), source(offsets(2), offsets(9))).messages == 7


def test_added_and_removed_queues_are_omitted() -> None:
    assert len(lag(source(offsets(1), offsets(2, 3))).queues) == 1
    assert len(lag(source(offsets(1, 2), offsets(2))).queues) == 1
    assert lag(source(offsets(), offsets())).worst is None


def test_an_end_that_is_older_than_the_offset_is_no_negative_lag() -> None:
    assert lag(source(offsets(9), offsets(5))).messages == 0


@pytest.mark.parametrize("text", [KAFKA, "null", "None", "", "[]", '{"v":2,"topics":{}}'])
def test_a_query_of_other_sources_has_no_lag(text: str) -> None:
    assert lag_of(progress(source(text, offsets(1))).progress) is None
    assert lag_of(progress(source(offsets(1), text)).progress) is None


def test_a_line_is_logged_for_each_batch(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pocketmq.spark"):
        LagListener().onQueryProgress(progress(source(offsets(1, 7), offsets(2, 9))))
        LagListener().onQueryProgress(progress(source(offsets(1), offsets(1)), name=None))
        LagListener(log=False).onQueryProgress(progress(source(offsets(1), offsets(1))))
    assert [line.getMessage() for line in caplog.records] == [
        "lag: query=delays batch=7 messages=3 queues=2 worst=T/broker-a/1:2",
        "lag: query=id-1 batch=7 messages=0 queues=1 worst=none",
    ]


def test_a_callback_gets_each_lag_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def callback(found: QueryLag) -> None:
        seen.append(found.messages)
        raise ValueError("pager is broken")

    listener = LagListener(callback)
    for latest in (4, 5):
        listener.onQueryProgress(progress(source(offsets(1), offsets(latest))))
    listener.onQueryProgress(progress(source(KAFKA, KAFKA)))
    assert seen == [3, 4]
    assert "the callback for lag failed: query=delays" in caplog.text
    assert listener.lags["id-1"].messages == 4


def test_queries_are_forgotten_when_they_end() -> None:
    listener = LagListener()
    listener.onQueryStarted(SimpleNamespace(id="id-1"))
    listener.onQueryProgress(progress(source(offsets(1), offsets(2))))
    listener.onQueryProgress(progress(source(offsets(1), offsets(5)), query_id="id-2"))
    listener.onQueryIdle(SimpleNamespace(id="id-1"))
    listener.onQueryTerminated(SimpleNamespace(id="id-1"))
    listener.onQueryTerminated(SimpleNamespace(id="never seen"))
    assert list(listener.lags) == ["id-2"]


def test_no_more_queries_are_kept_than_the_limit() -> None:
    listener = LagListener(max_queries=2)
    for number in range(4):
        one = progress(source(offsets(1), offsets(2)), query_id=f"id-{number}")
        listener.onQueryProgress(one)
    assert list(listener.lags) == ["id-2", "id-3"]


def test_prometheus_gets_each_queue() -> None:
    listener = LagListener()
    listener.onQueryProgress(
        progress(source(offsets(1, 7), offsets(2, 9)), name='odd "name"\\ of\na query')
    )
    samples = {
        (sample.name, sample.labels["query"], sample.labels.get("queue")): sample.value
        for family in text_string_to_metric_families(listener.prometheus())
        for sample in family.samples
    }
    name = 'odd "name"\\ of\na query'
    assert samples == {
        ("pocketmq_spark_lag_messages", name, "0"): 1,
        ("pocketmq_spark_lag_messages", name, "1"): 2,
        ("pocketmq_spark_batch", name, None): 7,
    }
    registry = CollectorRegistry()
    registry.register(listener)
    labels = {"query": name, "query_id": "id-1", "topic": "T", "broker": "broker-a", "queue": "1"}
    assert registry.get_sample_value("pocketmq_spark_lag_messages", labels) == 2
