"""Requests for offsets and queue locks."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from broker.store.limits import StoreLimits
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers import pull as headers
from remoting.protocol.queue import MessageQueue
from remoting.runtime import DOCS
from tests.unit.broker.harness import Bench, fields_of
from tests.unit.broker.store.test_cold_reads import SlowFiles


def update(bench: Bench, offset: int, group: str = "g", queue_id: int = 0, **fields) -> Command:
    bench.topic("T")
    header = headers.UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic="T", queue_id=queue_id, commit_offset=offset, **fields
    )
    return bench.must(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header))


def query(bench: Bench, queue_id: int = 0, **fields) -> Command:
    header = headers.QueryConsumerOffsetRequestHeader(
        consumer_group="g", topic="T", queue_id=queue_id, **fields
    )
    return bench.must(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, header))


def ask_bound(bench: Bench, code: int, header_type, queue_id: int = 0, **fields) -> dict:
    header = header_type(topic="T", queue_id=queue_id, **fields)
    reply = bench.must(Command.request(code, header))
    assert reply.code == 0
    return fields_of(reply)


def test_a_committed_offset_is_returned(bench):
    assert update(bench, 7).code == 0
    reply = query(bench)
    assert (reply.code, fields_of(reply)) == (0, {"offset": "7"})


def test_a_slaves_commit_does_not_take_an_offset_back(bench):
    for offset, forward, kept in ((7, True, "7"), (5, True, "7"), (9, True, "9"), (5, None, "5")):
        assert update(bench, offset, forward=forward).code == 0
        assert fields_of(query(bench)) == {"offset": kept}


def test_a_oneway_commit_is_stored_without_an_answer(bench):
    bench.topic("T")
    header = headers.UpdateConsumerOffsetRequestHeader(
        consumer_group="g", topic="T", queue_id=0, commit_offset=7
    )
    command = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header, oneway=True)
    assert bench.ask(command) is None
    assert fields_of(query(bench)) == {"offset": "7"}


def test_offsets_are_stored_in_queues_that_the_topic_has_or_had(bench):
    bench.topic("T", queues=3)
    bench.send("T", queue_id=2)
    codes = [update(bench, 1, queue_id=queue_id).code for queue_id in (-1, 0, 1, 2, 3)]
    assert codes == [1, 0, 1, 0, 1], "it has 1 queue now"
    assert bench.state.offsets.queues_of("g", "T") == {0: 1, 2: 1}


@pytest.mark.parametrize(("group", "topic"), [("g" * 256, "T"), ("g", "t" * 128), ("g", "a@b")])
def test_offsets_of_illegal_names_are_refused(bench, group, topic):
    bench.topic("T")
    header = headers.UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=topic, queue_id=0, commit_offset=1
    )
    assert bench.must(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 1
    assert len(bench.state.offsets) == 0


def test_a_new_group_starts_at_0_while_the_first_message_is_in_memory(bench):
    bench.topic("T")
    bench.send("T")
    reply = query(bench)
    assert (reply.code, fields_of(reply)) == (0, {"offset": "0"})


def test_a_new_group_starts_at_0_in_a_queue_that_does_not_exist(bench):
    assert fields_of(query(bench, queue_id=9)) == {"offset": "0"}


NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


def test_a_queue_that_has_lost_its_beginning_says_not_found(tmp_path):
    before = Bench(tmp_path)
    before.topic("T")
    for _ in range(5):
        before.send("T", bytes(300_000))
    before.close()
    min((tmp_path / "commitlog").iterdir()).unlink()
    bench = Bench(tmp_path)
    assert bench.store.queries.min_offset("T", 0) > 0
    reply = query(bench)
    bench.close()
    assert (reply.code, reply.remark) == (22, NOT_FOUND)


def test_a_queue_whose_beginning_is_only_on_disk_says_not_found(make_bench):
    disk = SlowFiles()
    limits = StoreLimits(hot_log_bytes=0, hot_queue_entries=0)
    bench = make_bench(files=disk, store_limits=limits, access_message_in_memory_max_ratio=0)
    bench.topic("T")
    bench.send("T")
    disk.cold = True
    assert query(bench).code == 22


def test_a_client_may_request_not_found_instead_of_zero(bench):
    assert query(bench, set_zero_if_not_found=False).code == 22
    assert query(bench, set_zero_if_not_found=True).code == 0


def test_a_step_back_is_stored_counted_and_logged_at_a_limited_rate(bench):
    update(bench, 9)
    with capture_logs() as logs:
        for offset in (5, 4, 3):
            assert update(bench, offset).code == 0
        bench.clock.advance(301)
        update(bench, 2)
    assert fields_of(query(bench)) == {"offset": "2"}
    assert [(entry["stored"], entry["committed"]) for entry in logs] == [(9, 5), (3, 2)]
    assert logs[0]["docs"] == f"{DOCS}consumer-groups.md#an-offset-that-goes-backwards"
    assert bench.state.counters.commits_backwards == 4


def test_the_bounds_of_a_queue(bench):
    bench.topic("T")
    for _ in range(3):
        bench.send("T")
        bench.clock.advance(1)
    start = bench.clock.now_ms() - 3000
    assert ask_bound(bench, RequestCode.GET_MAX_OFFSET, headers.GetMaxOffsetRequestHeader) == {
        "offset": "3"
    }
    assert ask_bound(bench, RequestCode.GET_MIN_OFFSET, headers.QueueRequestHeader) == {
        "offset": "0"
    }
    assert ask_bound(
        bench,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        headers.QueueRequestHeader,
    ) == {"timestamp": str(start)}


@pytest.mark.parametrize(
    ("after_ms", "boundary", "offset"),
    [(-5000, None, 0), (0, None, 0), (1000, None, 1), (99_000, None, 2), (99_000, "LOWER", 3)],
)
def test_messages_are_found_by_time(bench, after_ms, boundary, offset):
    bench.topic("T")
    start = bench.clock.now_ms()
    for _ in range(3):
        bench.send("T")
        bench.clock.advance(1)
    assert ask_bound(
        bench,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        headers.SearchOffsetRequestHeader,
        timestamp=start + after_ms,
        boundary_type=boundary,
    ) == {"offset": str(offset)}


def test_a_queue_that_does_not_exist_is_empty(bench):
    for code, header_type, fields in (
        (RequestCode.GET_MAX_OFFSET, headers.GetMaxOffsetRequestHeader, {}),
        (RequestCode.GET_MIN_OFFSET, headers.QueueRequestHeader, {}),
        (
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            headers.SearchOffsetRequestHeader,
            {"timestamp": 5},
        ),
    ):
        assert ask_bound(bench, code, header_type, 9, **fields) == {"offset": "0"}
    assert ask_bound(
        bench,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        headers.QueueRequestHeader,
        9,
    ) == {"timestamp": "-1"}


def test_all_offsets_are_returned_in_one_answer(bench):
    update(bench, 7)
    update(bench, 3, "h")
    reply = bench.must(Command.request(RequestCode.GET_ALL_CONSUMER_OFFSET))
    version = b'"dataVersion":{"counter":2,"timestamp":%d}' % bench.state.started_ms
    assert bytes(reply.body) == b'{%s,"offsetTable":{"T@g":{0:7},"T@h":{0:3}}}' % version
    assert decode(ConsumerOffsetSerializeWrapper, reply.body).offset_table == {
        "T@g": {0: 7},
        "T@h": {0: 3},
    }


# --- locks

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


def lock(bench: Bench, client_id: str, *queues: MessageQueue) -> list[MessageQueue]:
    body = LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=list(queues))
    reply = bench.must(Command.request(RequestCode.LOCK_BATCH_MQ, body=encode(body)))
    assert reply.code == 0
    return decode(LockBatchResponseBody, reply.body).lock_ok_mq_set


def unlock(bench: Bench, client_id: str, *queues: MessageQueue) -> None:
    body = LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=list(queues))
    assert bench.must(Command.request(RequestCode.UNLOCK_BATCH_MQ, body=encode(body))).code == 0


def test_a_queue_is_locked_by_the_first_client_and_unlocked(bench):
    assert lock(bench, "a", Q0, Q1) == [Q0, Q1]
    assert lock(bench, "b", Q0) == []
    unlock(bench, "b", Q0)
    assert lock(bench, "b", Q0) == []
    unlock(bench, "a", Q0)
    assert lock(bench, "b", Q0, Q1) == [Q0]
    bench.clock.advance(61)
    assert lock(bench, "b", Q1) == [Q1]


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_lock_lasts_a_minute_whatever_is_done_to_the_wall_clock(bench, hours):
    lock(bench, "a", Q0)
    bench.clock.jump(hours * 3_600_000)
    bench.clock.advance(60)
    assert lock(bench, "b", Q0) == []
    bench.clock.advance(1)
    assert lock(bench, "b", Q0) == [Q0]


@pytest.mark.parametrize(
    ("group", "client_id", "queue"),
    [
        ("no group!", "a", Q0),
        ("g", "", Q0),
        ("g", "c" * 513, Q0),
        ("g", "a", MessageQueue("t" * 200, "broker-a", 0)),
        ("g", "a", MessageQueue("T", "b" * 256, 0)),
    ],
)
def test_locks_of_illegal_names_are_refused(bench, group, client_id, queue):
    body = LockBatchRequestBody(consumer_group=group, client_id=client_id, mq_set=[queue])
    assert bench.must(Command.request(RequestCode.LOCK_BATCH_MQ, body=encode(body))).code == 1
    assert len(bench.state.locks) == 0


def test_an_invalid_lock_request_is_refused(bench):
    for body in (b"", b"{", b'{"mqSet":[1]}', b"\xff"):
        reply = bench.must(Command.request(RequestCode.LOCK_BATCH_MQ, body=body))
        assert reply.code == 1
        assert reply.remark
