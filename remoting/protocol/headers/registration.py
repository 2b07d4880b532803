"""Brokers at the name server."""

from __future__ import annotations

from remoting.protocol.headers.base import Header, Int, Long, header


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
    """Where a slave finds its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@header
class UnRegisterBrokerRequestHeader(Header):
    """UNREGISTER_BROKER: a broker leaves."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@header
class QueryDataVersionRequestHeader(Header):
    """QUERY_DATA_VERSION: whether a broker has to register again."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@header
class QueryDataVersionResponseHeader(Header):
    """Whether the name server knows another version."""

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
class RegisterTopicRequestHeader(Header):
    """REGISTER_TOPIC_IN_NAMESRV (5.x)."""

    topic: str


@header
class NotifyMinBrokerIdChangeRequestHeader(Header):
    """NOTIFY_MIN_BROKER_ID_CHANGE (5.x): which broker of a name acts as master."""

    min_broker_id: Long | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


@header
class AddBrokerRequestHeader(Header):
    """ADD_BROKER (5.x), to a broker container."""

    config_path: str | None = None


@header
class RemoveBrokerRequestHeader(Header):
    """REMOVE_BROKER (5.x), to a broker container."""

    broker_name: str
    broker_cluster_name: str
    broker_id: Long


@header
class ExchangeHAInfoRequestHeader(Header):
    """EXCHANGE_BROKER_HA_INFO (5.x), between brokers of one name."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


@header
class ExchangeHAInfoResponseHeader(Header):
    """The other broker's part of EXCHANGE_BROKER_HA_INFO (5.x)."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


@header
class ResetMasterFlushOffsetHeader(Header):
    """RESET_MASTER_FLUSH_OFFSET (5.x)."""

    master_flush_offset: Long
