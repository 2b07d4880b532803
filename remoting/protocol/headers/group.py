"""Clients, their groups, and their subscriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from remoting.protocol.command import Header, Int, header


@header
class UnregisterClientRequestHeader(Header):
    """UNREGISTER_CLIENT: a client leaves a group of producers, of consumers, or both."""

    wire_names: ClassVar[Mapping[str, str]] = {
        "client_id": "clientID",
    }

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


@header
class ConsumerGroupRequestHeader(Header):
    """Only a consumer group.

    GET_CONSUMER_LIST_BY_GROUP, GET_CONSUMER_CONNECTION_LIST, NOTIFY_CONSUMER_IDS_CHANGED,
    DESCRIBE_CONSUMER_GROUP.
    """

    consumer_group: str


@header
class GetProducerConnectionListRequestHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


@header
class GetConsumerRunningInfoRequestHeader(Header):
    """GET_CONSUMER_RUNNING_INFO, which a broker forwards to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


@header
class GetConsumerStatusRequestHeader(Header):
    """GET_CONSUMER_STATUS_FROM_CLIENT, INVOKE_BROKER_TO_GET_CONSUMER_STATUS.

    ``clientAddr`` is a client id; absent or empty means all clients.
    """

    topic: str
    group: str
    client_addr: str | None = None


@header
class ConsumeMessageDirectlyResultRequestHeader(Header):
    """CONSUME_MESSAGE_DIRECTLY: make a client consume this message now."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None  # 5.x
    topic_sys_flag: Int | None = None  # 5.x
    group_sys_flag: Int | None = None  # 5.x


@header
class DeleteSubscriptionGroupRequestHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP; ``removeOffset`` (4.9) and ``cleanOffset`` delete offsets too."""

    group_name: str
    remove_offset: bool | None = None
    clean_offset: bool | None = None  # 5.x


@header
class GroupRequestHeader(Header):
    """GET_SUBSCRIPTIONGROUP_CONFIG and QUERY_TOPICS_BY_CONSUMER (5.x)."""

    group: str


@header
class UpdateGroupForbiddenRequestHeader(Header):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (5.x): set whether a group may read a topic."""

    group: str
    topic: str
    readable: bool | None = None


@header
class QuerySubscriptionByConsumerRequestHeader(Header):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (5.x)."""

    group: str
    topic: str | None = None
