"""A topic that is deleted: nothing of it is left for one that is created again."""

from __future__ import annotations

import asyncio

import pytest

from remoting.protocol import names
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.group import ResetOffsetBody
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers import admin
from remoting.protocol.headers.pull import (
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.protocol.headers.send import ResumeCheckHalfMessageRequestHeader
from remoting.protocol.message.ids import offset_id_of
from remoting.protocol.message.view import iter_records
from remoting.protocol.own_codes import TOPIC_DELETED
from remoting.protocol.queue import MessageQueue
from tests.unit.broker.harness import Bench, FakeConnection, fields_of, pull_command
from tests.unit.broker.processors.pulls import pull
from tests.unit.broker.processors.sends import stored
from tests.unit.broker.processors.test_send_back import put, send_back, waiting
from tests.unit.broker.processors.test_transactions import COMMIT, check, end, half, late, ops

RETRY = names.retry_topic("g")


def deletion(topic: str = "T") -> Command:
    header = admin.TopicRequestHeader(topic=topic)
    return Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, header)


def recreate(bench: Bench, queues: int = 1) -> None:
    assert bench.must(deletion()).code == 0
    bench.topic("T", queues=queues)


def test_the_offsets_of_all_groups_in_it_are_deleted(bench):
    bench.topic("T", queues=2)
    for group in ("g", "h"):
        bench.state.offsets.commit(group, "T", 0, 6)
        bench.state.offsets.commit(group, "T", 1, 7)
        bench.state.offsets.commit(group, "Other", 0, 5)
    recreate(bench)
    header = QueryConsumerOffsetRequestHeader(consumer_group="g", topic="T", queue_id=0)
    answer = bench.must(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, header))
    assert (answer.code, answer.header.offset) == (0, 0)
    assert bench.state.offsets.table == {"Other@g": {0: 5}, "Other@h": {0: 5}}
    assert len(bench.state.offsets) == 2


def test_the_locks_of_its_queues_are_free(bench):
    bench.topic("T")
    queues = [MessageQueue(topic, "broker-a", 0) for topic in ("T", "Other")]
    bench.state.locks.lock("g", "a", queues, 0)
    recreate(bench)
    assert bench.state.locks.lock("g", "b", queues, 0) == queues[:1]


def test_filters_are_kept_only_for_groups_that_are_there(bench):
    bench.topic("T")
    for group, port in (("g", 1), ("gone", 2)):
        connection = FakeConnection(port)
        bench.subscribe(group, "T", "a > 1", expression_type="SQL92", connection=connection)
    bench.processors.clients.closed(connection)
    recreate(bench)
    assert bench.state.filters.get("T", "g") is not None
    assert bench.state.filters.get("T", "gone") is None


def test_pulls_that_wait_are_told_that_it_does_not_exist(bench):
    bench.topic("T")
    bench.topic("Other")
    fields = {"sys_flag": 4 | 2, "suspend_timeout_millis": 60_000}
    assert pull(bench, **fields) is None
    assert bench.ask(pull_command("Other", **fields)) is None

    async def delete() -> None:
        bench.must(deletion())
        await asyncio.sleep(0)

    asyncio.run(delete())
    (answer,) = bench.connection.sent
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert len(bench.state.long_polls) == 1


def test_members_that_read_it_are_told_to_start_over(bench):
    bench.topic("T", queues=2)
    reader, other = FakeConnection(1), FakeConnection(2)
    bench.subscribe("g", "T", connection=reader)
    bench.subscribe("h", "Other", connection=other)
    for connection in (reader, other):
        connection.pushed.clear()
    bench.must(deletion())
    (told,) = reader.pushed
    assert told.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    assert decode(ResetOffsetBody, told.body).offset_table == {
        MessageQueue("T", "broker-a", number): 0 for number in range(2)
    }
    assert fields_of(told)[TOPIC_DELETED] == "true"
    assert other.pushed == []


def test_a_commit_in_it_is_refused_until_it_is_created_again(bench):
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group="g", topic="T", queue_id=0, commit_offset=6
    )
    command = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    bench.topic("T")
    bench.must(deletion())
    assert bench.must(command).code == ResponseCode.TOPIC_NOT_EXIST
    assert bench.state.offsets.table == {}
    bench.topic("T")
    assert bench.must(command).code == 0


def test_its_messages_can_not_be_sent_back_any_more(bench):
    old = put(bench)
    recreate(bench)
    assert send_back(bench, old).code == 0
    assert waiting(bench) == []
    new = put(bench)
    assert send_back(bench, new).code == 0
    assert len(waiting(bench)) == 1


def test_its_retries_are_not_delivered_among_those_of_other_topics(bench):
    for topic in ("T", "Other", "T", "Other"):
        bench.topic(topic)
        bench.topic(RETRY)
        text = f"RETRY_TOPIC\x01{topic}"
        bench.send(RETRY, topic.encode(), properties=text, reconsume_times=1)
    recreate(bench)
    bench.send(RETRY, b"new", properties="RETRY_TOPIC\x01T", reconsume_times=1)
    found = bench.must(pull_command(RETRY))
    assert [one.body for one in iter_records(found.body)] == [b"Other", b"Other", b"new"]
    assert found.header.next_begin_offset == 5
    first = bench.must(pull_command(RETRY, max_msg_nums=1))
    assert [one.body for one in iter_records(first.body)] == [b"Other"]
    assert first.header.next_begin_offset == 2


def test_its_open_transactions_end_without_a_message(bench):
    first, second = half(bench), half(bench)
    recreate(bench, queues=4)
    end(bench, first, COMMIT)
    assert stored(bench, "T", 2) == []
    late(bench)
    check(bench)
    assert ops(bench) == [first[0], second[0]]
    assert bench.state.transactions.open_count == 0


def test_a_discarded_transaction_of_it_is_not_checked_again(make_bench):
    bench = make_bench(transaction_check_max=0)
    half(bench)
    late(bench)
    check(bench)
    (discarded,) = stored(bench, names.CHECK_MAX_TIME_TOPIC)
    recreate(bench)
    text = offset_id_of(discarded.store_host_bytes, discarded.physical_offset)
    header = ResumeCheckHalfMessageRequestHeader(topic="T", msg_id=text)
    assert bench.must(Command.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)).code == 1


@pytest.mark.parametrize("saves", [True, False])
def test_the_deletion_is_answered_when_all_of_it_is_on_the_disk(bench, saves):
    bench.topic("T")
    bench.changes.saves = saves
    assert bench.must(deletion()).code == (0 if saves else 1)


def test_deleting_a_topic_that_does_not_exist_writes_nothing(bench):
    assert bench.must(deletion("Unknown")).code == 0
    assert not bench.store.paths.deleted_topics.exists()
    assert TopicConfig(topic_name="Unknown") not in bench.state.topics.table.values()
