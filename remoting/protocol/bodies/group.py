"""Subscription groups. Fields marked 5.x are None, and not written, unless a 5.x peer had them."""

from __future__ import annotations

from msgspec import field

from remoting.protocol.bodies.body import Body, Int, Long
from remoting.protocol.bodies.topic import DataVersion


class CustomizedRetryPolicy(Body):
    """5.x: the waits before each retry, milliseconds."""

    next: list[Long] = field(default_factory=list)


class ExponentialRetryPolicy(Body):
    """5.x: waits that grow, milliseconds."""

    initial: Long = 5000
    max: Long = 7_200_000
    multiplier: Long = 2


class GroupRetryPolicy(Body):
    """5.x: how a group retries."""

    type: str = "CUSTOMIZED"
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


class SimpleSubscriptionData(Body):
    """5.x: a subscription kept with its group."""

    topic: str | None = None
    expression_type: str | None = None
    expression: str | None = None
    version: Long = 0


class SubscriptionGroupConfig(Body):
    """A consumer group at one broker (cf. SubscriptionGroupConfig)."""

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
    """5.x: UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


class GroupForbidden(Body):
    """5.x: whether a group may read a topic."""

    topic: str | None = None
    group: str | None = None
    readable: bool | None = None
