"""What each request code needs when ACL is on; codes that are not listed need an administrator.

RocketMQ 4.9.7 has rules for nine codes (cf. PlainAccessValidator) and five that need an
administrator (cf. Permission.ADMIN_CODE); every account may send all others. Ours deny more:

- a send to a retry topic needs SUB on its group, whatever group the request names;
- a message that recalls another one needs PUB on the topic of that one, too;
- SEND_BATCH_MESSAGE needs what SEND_MESSAGE_V2 needs; replies need PUB, except on the reply topic;
- requests for offsets, messages and locks need SUB, as a pull;
- a message read, sent back or committed by its position needs the permission on its topic;
- every other request that changes something needs an administrator, and so does the list of
  accounts, which has their keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.delivery import timer_rules
from broker.limits import MAX_HEARTBEAT_BYTES
from broker.state import BrokerState
from remoting.access.accounts import PUB, SUB
from remoting.access.guard import Needs, Permissions, Resource
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.group import topics_to_lock
from remoting.protocol.bodies.heartbeat import HeartbeatData
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.errors import ProtocolError
from remoting.protocol.headers.query import ViewMessageRequestHeader
from remoting.protocol.headers.send import (
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
)
from remoting.protocol.message import properties, recall_handle
from remoting.protocol.names import (
    HALF_TOPIC,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from remoting.protocol.own_codes import OwnRequestCode

if TYPE_CHECKING:
    from remoting.connection import Connection

Fields = Mapping[str, str]

_MOVED: Final = frozenset({HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC})
"""Topics whose messages belong to another one, which a property names."""

_REAL_TOPIC: Final = b"REAL_TOPIC"

_ACCOUNT_ONLY: Final = (
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.QUERY_CORRECTION_OFFSET,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_TOPIC_CONFIG,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.QUERY_TOPICS_BY_CONSUMER,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_TIMER_CHECK_POINT,
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.VIEW_BROKER_STATS_DATA,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.GET_BROKER_EPOCH_CACHE,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
    OwnRequestCode.DESCRIBE_CONSUMER_GROUP,
    OwnRequestCode.GET_GROUP_PROGRESS,
    OwnRequestCode.LIST_CONNECTIONS,
)
"""Requests that read what administrators look at: every account may, as in RocketMQ."""


def permissions(state: BrokerState) -> Permissions:
    """Return what the requests of a broker need."""
    sub_topic = partial(_on, topic="topic")
    sub_group = partial(_on, group="consumerGroup")
    sub_both = partial(_on, topic="topic", group="consumerGroup")
    replies = state.config.cluster_name + REPLY_TOPIC_SUFFIX
    send_v2 = partial(_send, topic="b", group="a", text="i")
    needs: dict[int, Needs] = {
        RequestCode.SEND_MESSAGE: partial(_send, topic="topic", group="group", text="properties"),
        RequestCode.SEND_MESSAGE_V2: send_v2,
        RequestCode.SEND_BATCH_MESSAGE: send_v2,
        RequestCode.SEND_REPLY_MESSAGE: partial(_reply, topic="topic", replies=replies),
        RequestCode.SEND_REPLY_MESSAGE_V2: partial(_reply, topic="b", replies=replies),
        RequestCode.RECALL_MESSAGE: _recall,
        RequestCode.END_TRANSACTION: _account,
        RequestCode.CONSUMER_SEND_MSG_BACK: partial(_on, group="group"),
        RequestCode.PULL_MESSAGE: sub_both,
        RequestCode.LITE_PULL_MESSAGE: sub_both,
        RequestCode.QUERY_MESSAGE: sub_topic,
        RequestCode.VIEW_MESSAGE_BY_ID: _account,
        RequestCode.QUERY_CONSUME_QUEUE: sub_topic,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: sub_topic,
        RequestCode.GET_MAX_OFFSET: sub_topic,
        RequestCode.GET_MIN_OFFSET: sub_topic,
        RequestCode.GET_EARLIEST_MSG_STORETIME: sub_topic,
        RequestCode.QUERY_CONSUMER_OFFSET: sub_both,
        RequestCode.UPDATE_CONSUMER_OFFSET: sub_both,
        RequestCode.UNREGISTER_CLIENT: sub_group,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: sub_group,
        RequestCode.HEART_BEAT: _heartbeat,
        RequestCode.LOCK_BATCH_MQ: _lock,
        RequestCode.UNLOCK_BATCH_MQ: _lock,
    }
    needs |= dict.fromkeys(_ACCOUNT_ONLY, _account)

    def group_settings(fields: Fields, command: Command) -> Iterable[Resource]:
        # A group without settings gets some.
        is_new = state.groups.get(fields.get("group", "")) is None
        return _on(fields, command, group="group") if is_new else ()

    needs[RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG] = group_settings

    async def topic_at(command: Command, connection: Connection) -> Iterable[Resource]:
        try:
            offset, permission = _position(command)
        except ProtocolError:
            return ()  # the handler refuses it
        record = await state.record_at(connection, offset)
        if record is None:
            return ()
        topic = record.topic
        if topic in _MOVED:
            real = properties.find(record.properties_text, _REAL_TOPIC)
            topic = topic if real is None else real.decode("utf-8", "replace")
        return ((topic, permission),)

    positions = (
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
    )
    return Permissions(needs=needs, lookups=dict.fromkeys(positions, topic_at))


def _position(command: Command) -> tuple[int, int]:
    """Return the offset in the log that a request names, and the permission it needs."""
    if command.code == RequestCode.END_TRANSACTION:
        return command.read(EndTransactionRequestHeader).commit_log_offset, PUB
    if command.code == RequestCode.VIEW_MESSAGE_BY_ID:
        return command.read(ViewMessageRequestHeader).offset, SUB
    return command.read(ConsumerSendMsgBackRequestHeader).offset, SUB


def _account(_: Fields, __: Command) -> Iterable[Resource]:
    return ()


def _on(fields: Fields, _: Command, *, topic: str = "", group: str = "") -> Iterable[Resource]:
    """Return SUB on the group and the topic in these fields; the handler refuses absent ones."""
    if group and (name := fields.get(group)) is not None:
        yield _retry(name), SUB
    if topic and (name := fields.get(topic)) is not None:
        yield name, SUB


def _send(
    fields: Fields, _: Command, *, topic: str, group: str, text: str = ""
) -> Iterable[Resource]:
    recalled = timer_rules.recalled(fields.get(text, "").encode("utf-8", "replace"))
    if recalled is not None:
        yield timer_rules.recalled_topic(recalled), PUB
    name = fields.get(topic)
    if name is None:
        return
    if not name.startswith(RETRY_PREFIX):
        yield name, PUB
        return
    if (sender := fields.get(group)) is not None:
        yield _retry(sender), SUB
    yield name, SUB


def _reply(fields: Fields, command: Command, *, topic: str, replies: str) -> Iterable[Resource]:
    if fields.get(topic) == replies:
        return ()
    return _send(fields, command, topic=topic, group="")


def _recall(fields: Fields, _: Command) -> Iterable[Resource]:
    if "topic" in fields:
        yield fields["topic"], PUB
    try:
        handle = recall_handle.decode(fields.get("recallHandle", ""))
    except ValueError:
        return  # the handler refuses it
    yield handle.topic, PUB


def _heartbeat(_: Fields, command: Command) -> Iterable[Resource]:
    if len(command.body) > MAX_HEARTBEAT_BYTES:
        return  # the handler refuses it
    for consumer in decode(HeartbeatData, command.body).consumer_data_set:
        yield _retry(consumer.group_name), SUB
        for subscription in consumer.subscription_data_set:
            yield subscription.topic, SUB


def _lock(_: Fields, command: Command) -> Iterable[Resource]:
    group, topics = topics_to_lock(command.body)
    yield _retry(group), SUB
    for topic in topics:
        yield topic, SUB


def _retry(group: str) -> str:
    # cf. PlainAccessResource.getRetryTopic
    return group if group.startswith(RETRY_PREFIX) else RETRY_PREFIX + group
