"""Consumer groups over sockets: notifications, and requests forwarded to a consumer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from structlog.testing import capture_logs

from broker.app import Broker
from nameserver.app import NameServer
from nameserver.config import NameServerConfig
from pocketmq.server.metrics_page import MetricsPage
from pocketmq.server.process import LoopMonitor, RequestTimes
from remoting.connection import Connection
from remoting.pool import ConnectionPool
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.clients import ConsumerRunningInfo
from remoting.protocol.bodies.description import GroupDescriptionBody
from remoting.protocol.bodies.group import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    ResetOffsetBody,
)
from remoting.protocol.bodies.heartbeat import ConsumerData, SubscriptionData
from remoting.protocol.codes import RequestCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import CreateTopicRequestHeader
from remoting.protocol.headers.group import (
    ConsumerGroupRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    UnregisterClientRequestHeader,
)
from remoting.protocol.headers.pull import (
    ResetOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.protocol.own_codes import CONFLICT, ON_CONFLICT, OwnRequestCode
from remoting.protocol.queue import MessageQueue
from remoting.runtime import DOCS
from tests.integration.broker.client import TIMEOUT, Client
from tests.support.clock import ManualClock
from tests.unit.broker.harness import heartbeat, pull_command

Connect = Callable[[Broker], Any]
QUEUE = MessageQueue("T", "broker-a", 0)


def beat(client_id: str, expression: str = "*", **fields: str) -> Command:
    subscription = SubscriptionData(topic="T", sub_string=expression, sub_version=1)
    consumer = ConsumerData(group_name="g", subscription_data_set=[subscription])
    command = heartbeat(client_id, consumers=[consumer])
    command.pairs = tuple(fields.items())
    return command


async def join(client: Client, client_id: str) -> None:
    """Join, and read the notification about it."""
    assert (await client.ask(beat(client_id))).code == 0
    await pushed(client, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)


async def pushed(client: Client, code: int) -> Command:
    """Return the next request from the broker, which must have this code."""
    command = await asyncio.wait_for(client.pushed.get(), TIMEOUT)
    assert command.code == code
    return command


async def describe(client: Client) -> GroupDescriptionBody:
    header = ConsumerGroupRequestHeader(consumer_group="g")
    reply = await client.ask(Command.request(OwnRequestCode.DESCRIBE_CONSUMER_GROUP, header))
    return decode(GroupDescriptionBody, reply.body)


def locks(client_id: str) -> Command:
    body = LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=[QUEUE])
    return Command.request(RequestCode.LOCK_BATCH_MQ, body=encode(body))


def held(reply: Command) -> list[MessageQueue]:
    return decode(LockBatchResponseBody, reply.body).lock_ok_mq_set


async def test_members_are_notified_when_others_join_or_leave(
    broker: Broker, connect: Connect
) -> None:
    first, second = await connect(broker), await connect(broker)
    await join(first, "a")
    await join(second, "b")
    await pushed(first, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    goodbye = UnregisterClientRequestHeader(client_id="b", consumer_group="g")
    await second.ask(Command.request(RequestCode.UNREGISTER_CLIENT, goodbye))
    await pushed(first, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)


async def test_members_are_notified_when_a_connection_is_cut(
    broker: Broker, connect: Connect
) -> None:
    first, second = await connect(broker), await connect(broker)
    await join(first, "a")
    await join(second, "b")
    await pushed(first, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    second.connection.close()
    await pushed(first, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)


async def test_members_are_notified_after_the_expiry_scan(
    make_broker: Any, connect: Connect
) -> None:
    clock = ManualClock()
    broker = make_broker(clock=clock)
    await broker.start()
    first, second = await connect(broker), await connect(broker)
    await join(first, "a")
    await join(second, "b")
    await pushed(first, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    clock.advance(121)
    await first.ask(beat("a"))
    broker.processors.clients.scan()
    await pushed(first, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    assert (await describe(first)).members[0].client_id == "a"


async def test_a_lock_outlives_its_connection(broker: Broker, connect: Connect) -> None:
    first, second = await connect(broker), await connect(broker)
    await join(first, "a")
    await join(second, "b")
    assert held(await first.ask(locks("a"))) == [QUEUE]
    first.connection.close()
    await pushed(second, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    assert held(await second.ask(locks("b"))) == []
    body = LockBatchRequestBody(consumer_group="g", client_id="a", mq_set=[QUEUE])
    await second.ask(Command.request(RequestCode.UNLOCK_BATCH_MQ, body=encode(body)))
    assert held(await second.ask(locks("b"))) == [QUEUE]


async def test_an_unregistration_unlocks_nothing_by_itself(
    broker: Broker, connect: Connect
) -> None:
    first, second = await connect(broker), await connect(broker)
    await join(first, "a")
    await first.ask(locks("a"))
    goodbye = UnregisterClientRequestHeader(client_id="a", consumer_group="g")
    await first.ask(Command.request(RequestCode.UNREGISTER_CLIENT, goodbye))
    assert held(await second.ask(locks("b"))) == []


async def test_our_contradicting_member_is_refused_and_a_foreign_one_is_not(
    broker: Broker, connect: Connect
) -> None:
    first, second = await connect(broker), await connect(broker)
    await join(first, "a")
    reply = await second.ask(beat("b", "x", **{ON_CONFLICT: "reject"}))
    assert reply.code == 1
    assert json.loads(reply.fields[CONFLICT])["members"] == ["b", "a"]
    with capture_logs() as logs:
        assert (await second.ask(beat("b", "x"))).code == 0
    assert [line["docs"] for line in logs if "docs" in line] == [
        f"{DOCS}consumer-groups.md#one-group-one-subscription"
    ]
    (conflict,) = (await describe(first)).conflicts
    assert conflict.members == ["b", "a"]


async def test_group_problems_are_a_metric(broker: Broker, connect: Connect) -> None:
    first, second = await connect(broker), await connect(broker)
    await join(first, "a")
    await second.ask(beat("b", "x", **{ON_CONFLICT: "reject"}))
    await second.ask(beat("b", "x"))
    page = MetricsPage([], [broker], RequestTimes(), LoopMonitor().stalls)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in page.collect()
        for sample in metric.samples
    }
    assert found["pocketmq_group_findings", "g", "subscription"] == 1
    assert found["pocketmq_group_finding_seconds", "g", "subscription"] >= 0
    assert found["pocketmq_group_findings_begun_total", "subscription"] == 1
    assert found["pocketmq_group_findings_begun_total", "clientId"] == 0
    assert found["pocketmq_members_refused_total",] == 1


async def test_pulls_of_members_are_recorded(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    await client.send("T")
    await join(client, "a")
    pull = pull_command("T", consumer_group="g")
    pull.serialize = SerializeType.ROCKETMQ
    await client.ask(pull)
    queue = next(one for one in (await describe(client)).queues if one.topic == "T")
    assert (queue.last_puller, queue.max_offset, queue.committed) == ("a", 1, -1)
    assert queue.last_pull_ms > 0


async def test_a_consumer_answers_through_the_broker(broker: Broker, connect: Connect) -> None:
    def answer(command: Command, _: Connection) -> Command | None:
        if command.code != RequestCode.GET_CONSUMER_RUNNING_INFO:
            return None
        assert command.fields["clientId"] == "a"
        return command.reply(body=encode(ConsumerRunningInfo(jstack="all is well")))

    consumer = ConnectionPool(answer)
    try:
        connection = await consumer.get(f"127.0.0.1:{broker.port}")
        await connection.request(beat("a"), timeout=TIMEOUT)
        admin = await connect(broker)
        header = GetConsumerRunningInfoRequestHeader(consumer_group="g", client_id="a")
        reply = await admin.ask(Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header))
        assert decode(ConsumerRunningInfo, reply.body).jstack == "all is well"
    finally:
        await consumer.close()


async def test_a_reset_reaches_the_members(broker: Broker, connect: Connect) -> None:
    member, admin = await connect(broker), await connect(broker)
    await admin.send("T", default_topic_queue_nums=1)
    await join(member, "a")
    commit = UpdateConsumerOffsetRequestHeader(
        consumer_group="g", topic="T", queue_id=0, commit_offset=1
    )
    await member.ask(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit))
    header = ResetOffsetRequestHeader(topic="T", group="g", timestamp=0, is_force=True)
    reply = await admin.ask(Command.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header))
    assert reply.code == 0
    pushed_request = await pushed(member, RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    assert decode(ResetOffsetBody, pushed_request.body).offset_table == {QUEUE: 0}


async def test_idle_members_are_counted_over_all_brokers(
    make_broker: Any, connect: Connect, tmp_path: Any
) -> None:
    async with NameServer(NameServerConfig(listen_port=0)) as name_server:
        brokers = [
            make_broker(
                broker_name=name,
                namesrv_addr=(f"127.0.0.1:{name_server.port}",),
                store_path_root_dir=tmp_path / name,
            )
            for name in ("broker-a", "broker-b")
        ]
        for broker in brokers:
            await broker.start()
            await broker.registration.changed()
        clients = [await connect(brokers[0]) for _ in range(3)]
        for broker in brokers:
            await create_topic(await connect(broker), "T")
        for name, client in zip("abc", clients, strict=True):
            await client.ask(beat(name))
        # The first check requests the route; later ones have it.
        assert (await describe(clients[0])).warnings == []
        await brokers[0].state.spread.refresh()
        (finding,) = (await describe(clients[0])).warnings
        assert finding.kind == "idleMembers"
        assert "3 members for 2 queues" in finding.text


async def create_topic(client: Client, name: str) -> None:
    header = CreateTopicRequestHeader(
        topic=name,
        default_topic="TBW102",
        read_queue_nums=1,
        write_queue_nums=1,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=False,
    )
    reply = await client.ask(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header))
    assert reply.code == 0
