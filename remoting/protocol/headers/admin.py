"""Topics, routes, key-value configuration, accounts, and the brokers of a name server."""

from __future__ import annotations

from typing import ClassVar

from remoting.protocol.command import Header, Int, Long, header


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
class PageRequestHeader(Header):
    """GET_GROUP_PROGRESS, LIST_CONNECTIONS: ``limit`` entries at most, those after a name."""

    after: str = ""
    limit: Int = 0


@header
class HandOverRequestHeader(Header):
    """HAND_OVER: which slave becomes the master; the old one gets its id."""

    slave_address: str
    slave_id: Long


@header
class PromoteRequestHeader(Header):
    """PROMOTE; ``step`` is one of the constants below.

    With TAKE and CONFIRM, ``attempt`` names the hand-over. With TAKE, ``end`` is the physical
    offset where the master's log ends, and ``role`` the master's.
    """

    CHECK: ClassVar[str] = "check"
    """From the master: say whether TAKE would be refused."""
    TAKE: ClassVar[str] = "take"
    """From the master: be the master."""
    CONFIRM: ClassVar[str] = "confirm"
    """From the slave, as its last question: say whether this hand-over is still open."""
    ASK: ClassVar[str] = "ask"
    """From an administrator: say what would be lost."""
    FORCE: ClassVar[str] = "force"
    """From an administrator: be the master, though it is dead."""

    broker_name: str
    step: str
    attempt: str = ""
    end: Long = 0
    role: str = "ASYNC_MASTER"


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
class RegisterBrokerRequestHeader(Header):
    """REGISTER_BROKER; ``bodyCrc32`` is CRC-32 & 0x7fffffff of the body as sent, 0 for none."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    compressed: bool | None = None
    body_crc32: Int | None = None
    heartbeat_timeout_millis: Long | None = None  # 5.x
    enable_acting_master: bool | None = None  # 5.x


@header
class RegisterBrokerResponseHeader(Header):
    """Answer to REGISTER_BROKER: the addresses of a slave's master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@header
class BrokerRequestHeader(Header):
    """UNREGISTER_BROKER, and QUERY_DATA_VERSION: whether a broker has to register again."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@header
class QueryDataVersionResponseHeader(Header):
    """Answer to QUERY_DATA_VERSION: whether the name server has another version."""

    changed: bool


@header
class BrokerHeartbeatRequestHeader(Header):
    """BROKER_HEARTBEAT (5.x)."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long | None = None
    epoch: Int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    heartbeat_timeout_mills: Long | None = None
    election_priority: Int | None = None


@header
class GetBrokerMemberGroupRequestHeader(Header):
    """GET_BROKER_MEMBER_GROUP (5.x): the addresses under one broker name."""

    cluster_name: str
    broker_name: str


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
