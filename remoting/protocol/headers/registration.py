"""Registration of brokers with a name server."""

from __future__ import annotations

from remoting.protocol.command import Header, Int, Long, header


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
