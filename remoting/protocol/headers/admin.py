"""Topics, routes, key-value configuration and broker permissions."""

from __future__ import annotations

from remoting.protocol.headers.base import Header, Int, header


@header
class CreateTopicRequestHeader(Header):
    """UPDATE_AND_CREATE_TOPIC, UPDATE_AND_CREATE_STATIC_TOPIC; ``perm`` as in ``names``."""

    topic: str
    default_topic: str
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    topic_filter_type: str
    topic_sys_flag: Int | None = None
    order: bool = False
    attributes: str | None = None  # 5.x
    force: bool | None = None  # 5.x


@header
class CreateTopicListRequestHeader(Header):
    """UPDATE_AND_CREATE_TOPIC_LIST (5.x): no fields."""


@header
class DeleteTopicRequestHeader(Header):
    """DELETE_TOPIC_IN_BROKER."""

    topic: str


@header
class DeleteTopicFromNamesrvRequestHeader(Header):
    """DELETE_TOPIC_IN_NAMESRV; with ``clusterName`` only that cluster's brokers."""

    topic: str
    cluster_name: str | None = None


@header
class GetTopicConfigRequestHeader(Header):
    """GET_TOPIC_CONFIG (5.x)."""

    topic: str


@header
class GetAllTopicConfigResponseHeader(Header):
    """No fields; the table is in the body."""


@header
class GetBrokerConfigResponseHeader(Header):
    """``version`` is the configuration's data version, as JSON."""

    version: str


@header
class GetRouteInfoRequestHeader(Header):
    """GET_ROUTEINFO_BY_TOPIC."""

    topic: str
    accept_standard_json_only: bool | None = None


@header
class GetTopicsByClusterRequestHeader(Header):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str


@header
class WipeWritePermOfBrokerRequestHeader(Header):
    """WIPE_WRITE_PERM_OF_BROKER: no more sends to a broker."""

    broker_name: str


@header
class WipeWritePermOfBrokerResponseHeader(Header):
    """How many topics were changed."""

    wipe_topic_count: Int


@header
class AddWritePermOfBrokerRequestHeader(Header):
    """ADD_WRITE_PERM_OF_BROKER: sends to a broker are allowed again."""

    broker_name: str


@header
class AddWritePermOfBrokerResponseHeader(Header):
    """How many topics were changed."""

    add_topic_count: Int


@header
class PutKVConfigRequestHeader(Header):
    """PUT_KV_CONFIG."""

    namespace: str
    key: str
    value: str


@header
class GetKVConfigRequestHeader(Header):
    """GET_KV_CONFIG."""

    namespace: str
    key: str


@header
class GetKVConfigResponseHeader(Header):
    """The value."""

    value: str | None = None


@header
class DeleteKVConfigRequestHeader(Header):
    """DELETE_KV_CONFIG."""

    namespace: str
    key: str


@header
class GetKVListByNamespaceRequestHeader(Header):
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: str
