"""Topics, routes, key-value configuration and broker permissions."""

from __future__ import annotations

from remoting.protocol.command import Header, Int, header


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
class TopicRequestHeader(Header):
    """Only a topic.

    DELETE_TOPIC_IN_BROKER, GET_TOPIC_CONFIG, GET_TOPIC_STATS_INFO, QUERY_TOPIC_CONSUME_BY_WHO,
    REGISTER_TOPIC_IN_NAMESRV, ROUTE_CHANGED.
    """

    topic: str


@header
class DeleteTopicFromNamesrvRequestHeader(Header):
    """DELETE_TOPIC_IN_NAMESRV; with ``clusterName``, only for the brokers of that cluster."""

    topic: str
    cluster_name: str | None = None


@header
class GetBrokerConfigResponseHeader(Header):
    """Answer to GET_BROKER_CONFIG; ``version`` is the configuration's data version, as JSON."""

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
class BrokerNameRequestHeader(Header):
    """WIPE_WRITE_PERM_OF_BROKER and ADD_WRITE_PERM_OF_BROKER: stop or allow sends to a broker."""

    broker_name: str


@header
class WipeWritePermOfBrokerResponseHeader(Header):
    """Answer to WIPE_WRITE_PERM_OF_BROKER: the number of topics changed."""

    wipe_topic_count: Int


@header
class AddWritePermOfBrokerResponseHeader(Header):
    """Answer to ADD_WRITE_PERM_OF_BROKER: the number of topics changed."""

    add_topic_count: Int


@header
class PutKVConfigRequestHeader(Header):
    """PUT_KV_CONFIG."""

    namespace: str
    key: str
    value: str


@header
class KVKeyRequestHeader(Header):
    """GET_KV_CONFIG and DELETE_KV_CONFIG."""

    namespace: str
    key: str


@header
class GetKVConfigResponseHeader(Header):
    """Answer to GET_KV_CONFIG."""

    value: str | None = None


@header
class GetKVListByNamespaceRequestHeader(Header):
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: str


@header
class CreateAccessConfigRequestHeader(Header):
    """UPDATE_AND_CREATE_ACL_CONFIG (4.9): one account."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@header
class DeleteAccessConfigRequestHeader(Header):
    """DELETE_ACL_CONFIG (4.9)."""

    access_key: str


@header
class UpdateGlobalWhiteAddrsConfigRequestHeader(Header):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (4.9)."""

    global_white_addrs: str
    acl_file_full_path: str


@header
class GetBrokerAclConfigResponseHeader(Header):
    """GET_BROKER_CLUSTER_ACL_INFO (4.9): versions of the rule files."""

    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str
