"""Queue entries and message times, as administrators query them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from broker.processors.queries import MAX_ENTRIES
from remoting.protocol.bodies import decode, relaxed_json
from remoting.protocol.bodies.stats import (
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
)
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.query import (
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
)
from remoting.protocol.message.tags import tags_code
from tests.unit.broker.harness import Bench
from tests.unit.broker.processors.replay import captured

TOPIC = "OneQueue"


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def entries(bench: Bench, **fields: Any) -> Command:
    wanted = {"topic": TOPIC, "queue_id": 0, "index": 0, "count": 5, **fields}
    header = QueryConsumeQueueRequestHeader(**wanted)
    return bench.must(Command.request(RequestCode.QUERY_CONSUME_QUEUE, header))


def spans(bench: Bench) -> list[QueueTimeSpan]:
    header = QueryConsumeTimeSpanRequestHeader(topic=TOPIC, group="g")
    answer = bench.must(Command.request(RequestCode.QUERY_CONSUME_TIME_SPAN, header))
    assert answer.code == 0
    return decode(QueryConsumeTimeSpanBody, answer.body).consume_time_span_set


def apaches(code: RequestCode) -> dict[str, Any]:
    """Return the body of Apache's captured answer."""
    (one,) = [one for one in captured("admin.jsonl") if one.request.code == code]
    assert one.theirs is not None
    found = relaxed_json.loads(one.theirs.body)
    assert isinstance(found, dict)
    return found


def test_entries_of_a_queue_are_shown_as_apache_shows_them(bench: Bench) -> None:
    bench.topic(TOPIC)
    tags = ["Tag0", "Tag1", "Tag0", "Tag1", "Tag0", "Tag1"]
    for tag in tags:
        bench.send(TOPIC, properties=f"TAGS\x01{tag}")
    bench.subscribe("cg_adm", TOPIC, "Tag0 || Tag1")

    answer = entries(bench, consumer_group="cg_adm")
    ours, theirs = relaxed_json.loads(answer.body), apaches(RequestCode.QUERY_CONSUME_QUEUE)

    assert isinstance(ours, dict)
    assert (answer.code, answer.remark) == (0, "not set any response code")
    assert ours.keys() == theirs.keys()
    assert ours["filterData"] == theirs["filterData"] == "null"
    assert (ours["minQueueIndex"], ours["maxQueueIndex"]) == (0, 6)
    assert ours["subscriptionData"].keys() == theirs["subscriptionData"].keys()
    assert [row["tagsCode"] for row in ours["queueData"]] == [tags_code(tag) for tag in tags[:5]]
    assert all(row.keys() == theirs["queueData"][0].keys() for row in ours["queueData"])
    at = 0
    for row in ours["queueData"]:
        assert row["physicOffset"] == at
        at += row["physicSize"]


def test_an_offline_group_is_an_error(bench: Bench) -> None:
    bench.topic(TOPIC)
    bench.send(TOPIC)
    body = decode(QueryConsumeQueueResponseBody, entries(bench, consumer_group="away").body)
    assert body.filter_data == f"away@{TOPIC} is not online!"
    assert body.subscription_data is None
    body = decode(QueryConsumeQueueResponseBody, entries(bench).body)
    assert (body.filter_data, body.subscription_data) == (None, None)


@pytest.mark.parametrize("index", [-1, 1, 2**62])
def test_there_are_no_entries_beyond_a_queue(bench: Bench, index: int) -> None:
    bench.topic(TOPIC)
    bench.send(TOPIC)
    answer = entries(bench, index=index)
    assert (answer.code, answer.remark) == (0, f"Index {index} of 0@{TOPIC} is not exist!")
    assert decode(QueryConsumeQueueResponseBody, answer.body).max_queue_index == 1


@pytest.mark.parametrize("count", [-1, 0])
def test_a_request_for_zero_entries_returns_none(bench: Bench, count: int) -> None:
    bench.topic(TOPIC)
    bench.send(TOPIC)
    body = decode(QueryConsumeQueueResponseBody, entries(bench, count=count).body)
    assert not body.queue_data


@pytest.mark.parametrize("fields", [{"queue_id": 7}, {"topic": "nowhere"}, {"queue_id": -1}])
def test_a_queue_that_is_not_there_is_refused(bench: Bench, fields: dict[str, Any]) -> None:
    bench.topic(TOPIC)
    bench.send(TOPIC)
    answer = entries(bench, **fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").endswith("is not exist!")


def test_an_answer_ends_with_its_file_and_is_bounded(bench: Bench) -> None:
    bench.topic(TOPIC)
    for _ in range(1005):
        bench.send(TOPIC)
    body = decode(QueryConsumeQueueResponseBody, entries(bench, index=990, count=2**31 - 1).body)
    assert len(body.queue_data or []) == 10
    assert MAX_ENTRIES < 10_000


def test_the_time_span_of_a_group_is_that_of_apache(bench: Bench) -> None:
    bench.topic(TOPIC)
    for _ in range(3):
        bench.send(TOPIC)
        bench.clock.advance(2)
    header = QueryConsumeTimeSpanRequestHeader(topic=TOPIC, group="g")
    answer = bench.must(Command.request(RequestCode.QUERY_CONSUME_TIME_SPAN, header))
    ours, theirs = relaxed_json.loads(answer.body), apaches(RequestCode.QUERY_CONSUME_TIME_SPAN)
    assert isinstance(ours, dict)
    (ours,), (theirs,) = ours["consumeTimeSpanSet"], theirs["consumeTimeSpanSet"]
    assert ours.keys() == theirs.keys()
    for span in (ours, theirs):
        for name in ("minTimeStamp", "maxTimeStamp", "consumeTimeStamp"):
            begin, _, rest = span[f"{name}Str"].partition("#")
            at = time.strptime(f"{begin}#{rest[:8]}", "%Y-%m-%d#%H:%M:%S")
            # The captured one was in the local time of its machine: whole minutes away.
            assert (time.mktime(at) * 1000 + int(rest[9:]) - span[name]) % 60_000 == 0


def test_a_time_span_uses_the_groups_committed_offsets(bench: Bench) -> None:
    bench.topic(TOPIC, queues=2)
    begun = bench.clock.now_ms()
    for _ in range(3):
        bench.send(TOPIC)
        bench.clock.advance(2)

    def first() -> tuple[int, int, int, int]:
        span = spans(bench)[0]
        return (
            span.min_time_stamp - begun,
            span.max_time_stamp - begun,
            span.consume_time_stamp - begun,
            span.delay_time,
        )

    assert first() == (0, 4000, 0, 6000)
    bench.state.offsets.commit("g", TOPIC, 0, 2)
    assert first() == (0, 4000, 2000, 2000)
    bench.state.offsets.commit("g", TOPIC, 0, 3)
    assert first() == (0, 4000, 4000, 0)
    empty = spans(bench)[1]
    assert (empty.min_time_stamp, empty.max_time_stamp, empty.delay_time) == (-1, -1, 0)


def test_the_time_span_of_an_unknown_topic_is_refused(bench: Bench) -> None:
    header = QueryConsumeTimeSpanRequestHeader(topic="nowhere", group="g")
    answer = bench.must(Command.request(RequestCode.QUERY_CONSUME_TIME_SPAN, header))
    assert (answer.code, answer.remark) == (
        ResponseCode.TOPIC_NOT_EXIST,
        "topic[nowhere] not exist",
    )


def test_the_filter_of_a_group_is_shown_as_the_broker_keeps_it(bench: Bench) -> None:
    bench.topic(TOPIC)
    bench.send(TOPIC)
    bench.subscribe("g", TOPIC, "a > 1", expression_type="SQL92")
    body = decode(QueryConsumeQueueResponseBody, entries(bench, consumer_group="g").body)
    assert body.filter_data is not None
    shown = json.loads(body.filter_data)
    assert (shown["expression"], shown["dead"], shown["topic"]) == ("a > 1", False, TOPIC)
