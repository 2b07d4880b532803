"""Subscription groups, tables of offsets, and locks on queues.

Fields marked 5.x are None, and not written, unless a 5.x peer has set them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import field

from remoting.protocol.bodies import relaxed_json
from remoting.protocol.bodies.body import Body, Int, Long, Queue, decode
from remoting.protocol.bodies.topic import DataVersion
from remoting.protocol.limits import MAX_JSON_NODES


class CustomizedRetryPolicy(Body):
    """5.x: the delay before each retry, in milliseconds."""

    next: list[Long] = field(default_factory=list)


class ExponentialRetryPolicy(Body):
    """5.x: exponentially growing delays, in milliseconds."""

    initial: Long = 5000
    max: Long = 7_200_000
    multiplier: Long = 2


class GroupRetryPolicy(Body):
    """5.x: a group's retry policy."""

    type: str = "CUSTOMIZED"
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


class SimpleSubscriptionData(Body):
    """5.x: a subscription that is stored with its group."""

    topic: str | None = None
    expression_type: str | None = None
    expression: str | None = None
    version: Long = 0


class BloomFilterData(Body):
    """The bits of a group and topic in RocketMQ's Bloom filter."""

    bit_num: Int = 0
    bit_pos: tuple[Int, ...] = ()


class ConsumerFilterData(Body):
    """By what a group filters a topic (cf. ConsumerFilterData)."""

    consumer_group: str = ""
    topic: str = ""
    expression: str = ""
    expression_type: str = "SQL92"
    born_time: Long = 0
    """When the expression was registered, milliseconds."""
    dead: bool = False
    """Whether ``deadTime`` is not before ``bornTime``."""
    dead_time: Long = 0
    """When the group left, milliseconds; 0: it hasn't."""
    bloom_filter_data: BloomFilterData | None = None
    client_version: Long = 0
    """The subscription's version."""


class FilterDataMapByTopic(Body):
    """The filters of one topic, by group."""

    group_filter_data: dict[str, ConsumerFilterData] = field(default_factory=dict)
    topic: str = ""


class ConsumerFilterWrapper(Body):
    """The file ``consumerFilter.json``."""

    filter_data_by_topic: dict[str, FilterDataMapByTopic] = field(default_factory=dict)


class SubscriptionGroupConfig(Body):
    """A consumer group's configuration at one broker (cf. SubscriptionGroupConfig)."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: Int = 1
    retry_max_times: Int = 16
    broker_id: Long = 0
    which_broker_when_consume_slowly: Long = 1
    notify_consumer_ids_changed_enable: bool = True
    consume_message_orderly: bool | None = None
    """5.x, as all below."""
    group_retry_policy: GroupRetryPolicy | None = None
    group_sys_flag: Int | None = None
    consume_timeout_minute: Int | None = None
    subscription_data_set: list[SimpleSubscriptionData] | None = None
    attributes: dict[str, str] | None = None


class SubscriptionGroupWrapper(Body):
    """All groups of a broker: ``subscriptionGroup.json`` and GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden_table: dict[str, dict[str, Int]] | None = None
    """5.x: group, topic, bits."""


class SubscriptionGroupList(Body):
    """5.x: body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


class GroupForbidden(Body):
    """5.x: whether a group may read a topic."""

    topic: str | None = None
    group: str | None = None
    readable: bool | None = None


class LockBatchRequestBody(Body):
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str = ""
    client_id: str = ""
    mq_set: list[Queue] = field(default_factory=list)
    only_this_broker: bool | None = None
    """5.x: lock at this broker only, not also at its slaves."""


class _LargeLockRequest(Body):
    consumer_group: str = ""
    client_id: str = ""
    mq_set: list[msgspec.Raw] = field(default_factory=list)


def read_lock_request(
    data: relaxed_json.Buffer, most: int
) -> tuple[str, str, list[Callable[[], list[Queue]]]]:
    """Decode a ``LockBatchRequestBody`` in parts, because it may have 100,000 queues.

    Args:
        data: the body.
        most: how many queues a part may have.

    Returns:
        The group, the client id, and a function for each part, which decodes its queues.

    Raises:
        BodyError: it is invalid. The functions also raise it, for their own queues.
    """
    raw = bytes(data)
    if raw.count(b",") < MAX_JSON_NODES // 2:
        # Text in fastjson's own dialect has to be decoded as a whole.
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            large = msgspec.json.decode(raw, type=_LargeLockRequest)
            parts = (large.mq_set[at : at + most] for at in range(0, len(large.mq_set), most))
            return (
                large.consumer_group,
                large.client_id,
                [partial(_queues, part) for part in parts],
            )
    body = decode(LockBatchRequestBody, raw)
    return body.consumer_group, body.client_id, [lambda: body.mq_set]


def _queues(texts: list[msgspec.Raw]) -> list[Queue]:
    return decode(LockBatchRequestBody, b'{"mqSet":[%b]}' % b",".join(texts)).mq_set


class _LockedTopic(Body):
    topic: str = ""


class _LockedTopics(Body):
    consumer_group: str = ""
    mq_set: list[_LockedTopic] = field(default_factory=list)


def topics_to_lock(data: relaxed_json.Buffer) -> tuple[str, set[str]]:
    """Return group and topics of a ``LockBatchRequestBody``; a tenth of the time of ``decode``.

    Raises:
        BodyError: it is invalid.
    """
    try:
        body: _LockedTopics | LockBatchRequestBody = msgspec.json.decode(data, type=_LockedTopics)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        body = decode(LockBatchRequestBody, data)
    return body.consumer_group, {queue.topic for queue in body.mq_set}


class LockBatchResponseBody(Body):
    """Answer to LOCK_BATCH_MQ: the queues that are now locked by this client."""

    lock_ok_mq_set: list[Queue] = field(name="lockOKMQSet", default_factory=list)


class ConsumerOffsetSerializeWrapper(Body):
    """``consumerOffset.json`` and GET_ALL_CONSUMER_OFFSET."""

    offset_table: dict[str, dict[Int, Long]] = field(default_factory=dict)
    """``topic@group`` to queue id to offset."""
    data_version: DataVersion | None = None
    """5.x, as the next."""
    group_topic_map: dict[str, list[str]] | None = None


class DelayOffsetSerializeWrapper(Body):
    """``delayOffset.json`` and GET_ALL_DELAY_OFFSET."""

    offset_table: dict[Int, Long] = field(default_factory=dict)
    """Delay level to offset."""
    data_version: DataVersion | None = None
    """5.x."""


class RequestMode(Body):
    """Whether a group pulls a topic or pops it; body of SET_MESSAGE_REQUEST_MODE (5.x)."""

    topic: str | None = None
    consumer_group: str | None = None
    mode: str | None = None
    """``PULL`` or ``POP``."""
    pop_share_queue_num: Int = 0


class MessageRequestModeSerializeWrapper(Body):
    """``messageRequestMode.json`` and GET_ALL_MESSAGE_REQUEST_MODE (5.x)."""

    message_request_mode_map: dict[str, dict[str, RequestMode]] = field(default_factory=dict)
    """Topic to group to mode."""


class ResetOffsetBody(Body):
    """Body of RESET_CONSUMER_CLIENT_OFFSET, answer to INVOKE_BROKER_TO_RESET_OFFSET.

    Also ``offsets.json`` of a broadcasting client.
    """

    offset_table: dict[Queue, Long] = field(default_factory=dict)


class MessageQueueForC(Body):
    """A queue with its offset, for readers without maps keyed by objects."""

    topic: str = ""
    broker_name: str = ""
    queue_id: Int = 0
    offset: Long = 0


class ResetOffsetBodyForC(Body):
    """``ResetOffsetBody`` in the form for clients whose language is CPP."""

    offset_table: list[MessageQueueForC] = field(default_factory=list)


class GetConsumerStatusBody(Body):
    """A consumer's offsets: of one client, or of all clients of a group by client id."""

    message_queue_table: dict[Queue, Long] = field(default_factory=dict)
    consumer_table: dict[str, dict[Queue, Long]] = field(default_factory=dict)


class QueryCorrectionOffsetBody(Body):
    """Answer to QUERY_CORRECTION_OFFSET: queue id to offset."""

    correction_offsets: dict[Int, Long] = field(default_factory=dict)


class OffsetMovedEvent(Body):
    """An event that reports an offset corrected by the broker."""

    consumer_group: str = ""
    message_queue: Queue | None = None
    offset_request: Long = 0
    offset_new: Long = 0
