"""A whole broker over loopback, tested with raw commands."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from remoting.errors import ConnectionLost
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.group import LockBatchRequestBody, LockBatchResponseBody
from remoting.protocol.bodies.heartbeat import ConsumerData, SubscriptionData
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers import admin, group
from remoting.protocol.headers import pull as offset
from remoting.protocol.message import batch
from remoting.protocol.queue import MessageQueue
from tests.integration.broker.client import TIMEOUT, bodies
from tests.support.waiting import until
from tests.unit.broker.harness import heartbeat


def consumer(group_name: str = "g", topic: str = "T") -> ConsumerData:
    subscription = SubscriptionData(topic=topic, sub_string="*", sub_version=1)
    return ConsumerData(group_name=group_name, subscription_data_set=[subscription])


# --- in and out


async def test_a_message_goes_in_and_comes_out(broker, connect):
    client = await connect(broker)
    sent = await client.send(body=b"hello", properties="TAGS\x01a")
    assert sent.code == 0
    reply = await client.pull()
    assert (reply.code, reply.remark) == (0, "FOUND")
    assert bodies(reply) == [b"hello"]
    assert reply.fields["nextBeginOffset"] == "1"


async def test_many_messages_in_flight_keep_their_order(broker, connect):
    client = await connect(broker)
    await client.send()
    replies = await asyncio.gather(*(client.send(body=b"%d" % n) for n in range(500)))
    assert [int(reply.fields["queueOffset"]) for reply in replies] == list(range(1, 501))
    reply = await client.pull(queue_offset=1, max_msg_nums=500)
    assert bodies(reply) == [b"%d" % n for n in range(500)]


async def test_an_advertised_address_is_in_the_message_ids(make_broker, connect):
    broker = make_broker(broker_ip1="localhost")
    await broker.start()
    assert broker.address == f"localhost:{broker.port}"
    client = await connect(broker)
    reply = await client.send()
    assert reply.fields["msgId"].startswith("7F000001")


async def test_sync_mode_acknowledges_what_is_on_the_disk(make_broker, connect):
    broker = make_broker(flush_disk_type="SYNC_FLUSH")
    await broker.start()
    client = await connect(broker)
    await asyncio.gather(*(client.send(body=b"%d" % n) for n in range(50)))
    assert broker.store.syncer.log.flushed == broker.store.log.end
    assert len(bodies(await client.pull(max_msg_nums=64))) == 50
    assert broker.store.stats.syncs < 50


# --- long polls


async def test_a_held_pull_is_woken_by_a_message(broker, connect):
    consumer_side, producer_side = await connect(broker), await connect(broker)
    await producer_side.send(body=b"old")
    held = await consumer_side.hold()
    await producer_side.send(body=b"new")
    assert bodies(await asyncio.wait_for(held, TIMEOUT)) == [b"new"]


async def test_a_held_pull_gets_all_messages_of_a_batch(broker, connect):
    client = await connect(broker)
    await client.send(body=b"old")
    held = await client.hold()
    body = batch.encode([(0, b"%d" % n, b"") for n in range(5)])
    await client.send(body=body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
    assert bodies(await held) == [b"%d" % n for n in range(5)]


async def test_a_held_pull_ends_in_time(broker, connect):
    client = await connect(broker)
    await client.send()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    reply = await client.pull(queue_offset=1, sys_flag=6, suspend_timeout_millis=300)
    assert reply.code == 19
    assert loop.time() - begun >= 0.3


async def test_a_disconnected_client_leaves_no_parked_pull(broker, connect):
    client = await connect(broker)
    await client.send()
    held = await client.hold()
    assert len(broker.state.long_polls) == 1
    client.connection.abort()
    await until(lambda: not len(broker.state.long_polls))
    with pytest.raises(ConnectionLost):
        await held


async def test_a_stop_answers_held_pulls(broker, connect):
    client = await connect(broker)
    await client.send()
    held = await client.hold()
    await broker.stop()
    assert (await held).code == 19


# --- groups


async def test_members_of_a_group_are_notified_of_each_other(broker, connect):
    first, second = await connect(broker), await connect(broker)
    await first.ask(heartbeat("first", consumers=[consumer()]))
    assert (await first.pushed.get()).fields == {"consumerGroup": "g"}
    await second.ask(heartbeat("second", consumers=[consumer()]))
    for client in (first, second):
        pushed = await asyncio.wait_for(client.pushed.get(), TIMEOUT)
        assert pushed.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    second.connection.abort()
    await asyncio.wait_for(first.pushed.get(), TIMEOUT)
    header = group.ConsumerGroupRequestHeader(consumer_group="g")
    listed = await first.ask(Command.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header))
    assert bytes(listed.body) == b'{"consumerIdList":["first"]}'


async def test_a_queue_is_locked_by_one_client(broker, connect):
    client = await connect(broker)
    queue = MessageQueue("T", "broker-a", 0)

    async def lock(client_id: str) -> list[MessageQueue]:
        body = LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=[queue])
        reply = await client.ask(Command.request(RequestCode.LOCK_BATCH_MQ, body=encode(body)))
        return decode(LockBatchResponseBody, reply.body).lock_ok_mq_set

    assert await lock("a") == [queue]
    assert await lock("b") == []


# --- restarts


async def test_a_restart_keeps_everything(make_broker, connect):
    first = make_broker()
    await first.start()
    client = await connect(first)
    header = admin.CreateTopicRequestHeader(
        topic="Made",
        default_topic="TBW102",
        read_queue_nums=3,
        write_queue_nums=3,
        perm=6,
        topic_filter_type="SINGLE_TAG",
    )
    await client.ask(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header))
    sent = [await client.send("T", b"%d" % n, queue_id=n % 2) for n in range(10)]
    await client.pull(sys_flag=5, commit_offset=4)
    await client.ask(heartbeat(consumers=[consumer("other")]))
    await first.stop()

    second = make_broker()
    await second.start()
    client = await connect(second)
    assert bodies(await client.pull()) == [b"0", b"2", b"4", b"6", b"8"]
    assert second.state.topics.get("Made").write_queue_nums == 3
    assert "%RETRY%other" in second.state.topics
    assert second.state.groups.get("g") is not None
    query = offset.QueryConsumerOffsetRequestHeader(consumer_group="g", topic="T", queue_id=0)
    reply = await client.ask(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, query))
    assert reply.fields == {"offset": "4"}
    again = await client.send("T", b"more")
    assert int(again.fields["queueOffset"]) == 5
    assert again.fields["msgId"][16:] > sent[-1].fields["msgId"][16:]


async def test_a_created_topic_is_on_disk_when_the_send_is_answered(broker, connect, tmp_path):
    client = await connect(broker)
    await client.send("Fresh")
    assert '"Fresh"' in (tmp_path / "store" / "config" / "topics.json").read_text()


async def test_no_group_skips_messages_of_a_log_that_has_lost_its_end(
    make_broker, connect, tmp_path
):
    first = make_broker()
    await first.start()
    await (await connect(first)).send()
    for topic, queue_id, number in (("T", 0, 7), ("T", 1, 2), ("Unknown", 0, 5)):
        first.state.offsets.commit("g", topic, queue_id, number)
    first.state.offsets.commit("behind", "T", 0, 0)
    await first.stop()
    second = make_broker()
    with capture_logs() as logs:
        await second.start()
    offsets = second.state.offsets
    assert offsets.queues_of("g", "T") == {0: 1, 1: 0}
    assert offsets.queues_of("g", "Unknown") == {0: 5}
    assert offsets.queues_of("behind", "T") == {0: 0}
    (logged,) = [entry for entry in logs if "the log has lost" in entry["event"]]
    assert logged["queues"] == 2


async def test_lost_offsets_are_logged_as_an_error_if_there_are_messages(
    make_broker, connect, tmp_path
):
    first = make_broker()
    await first.start()
    await (await connect(first)).send()
    await first.stop()
    for path in (tmp_path / "store" / "config").glob("consumerOffset*"):
        path.unlink()
    second = make_broker()
    with capture_logs() as logs:
        await second.start()
    (logged,) = [entry for entry in logs if "consumerOffset.json" in entry["event"]]
    assert logged["log_level"] == "error"
    assert "stop this broker and put the file back" in logged["event"]
    assert second.state.offsets_lost
    await second.stop()
    third = make_broker()
    with capture_logs() as logs:
        await third.start()
    assert not any("consumerOffset.json" in entry["event"] for entry in logs)
    assert not third.state.offsets_lost
