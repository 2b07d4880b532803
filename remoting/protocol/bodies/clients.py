"""Connected clients and their state."""

from __future__ import annotations

from msgspec import field

from remoting.protocol.bodies.body import Body, Int, Long, Queue
from remoting.protocol.bodies.heartbeat import SubscriptionData


class ConnectionInfo(Body):
    """One client's connection."""

    client_id: str = ""
    client_addr: str = ""
    """``ip:port`` as seen by the broker."""
    language: str | None = None
    """The name of the ``Language``."""
    version: Int = 0


class BrokerConnection(Body):
    """An open connection of a broker.

    Attributes:
        address: ``ip:port`` as seen by the broker.
        client_id: None until a heartbeat has arrived: administrators and tools send none.
        language: the name of the ``Language``.
        version: ordinal of the RocketMQ version; 0: not known.
        producer_groups, consumer_groups: the groups that it is in.
    """

    address: str
    tls: bool = False
    client_id: str | None = None
    language: str | None = None
    version: Int = 0
    producer_groups: list[str] = field(default_factory=list)
    consumer_groups: list[str] = field(default_factory=list)


class ConnectionPage(Body):
    """Answer to LIST_CONNECTIONS (PocketMQ's own): connections in the order of their addresses.

    Attributes:
        total: the number of all open connections.
        next: the address after which the next page begins; None after the last connection.
    """

    connections: list[BrokerConnection] = field(default_factory=list)
    total: Int = 0
    next: str | None = None


class ConsumerConnection(Body):
    """Answer to GET_CONSUMER_CONNECTION_LIST."""

    connection_set: list[ConnectionInfo] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class ProducerConnection(Body):
    """Answer to GET_PRODUCER_CONNECTION_LIST."""

    connection_set: list[ConnectionInfo] = field(default_factory=list)


class ProducerInfo(Body):
    """One producer in the list of all."""

    client_id: str = ""
    remote_ip: str = field(name="remoteIP", default="")
    """``/ip:port``, as Java prints an address."""
    language: str | None = None
    version: Int = 0
    last_update_timestamp: Long = 0


class ProducerTableInfo(Body):
    """Answer to GET_ALL_PRODUCER_INFO: by group."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


class ProcessQueueInfo(Body):
    """A consumer's process queue. The wire name is misspelt ``droped``."""

    commit_offset: Long = 0
    cached_msg_min_offset: Long = 0
    cached_msg_max_offset: Long = 0
    cached_msg_count: Int = 0
    cached_msg_size_in_mib: Int = field(name="cachedMsgSizeInMiB", default=0)
    transaction_msg_min_offset: Long = 0
    transaction_msg_max_offset: Long = 0
    transaction_msg_count: Int = 0
    locked: bool = False
    try_unlock_times: Long = 0
    last_lock_timestamp: Long = 0
    droped: bool = False
    last_pull_timestamp: Long = 0
    last_consume_timestamp: Long = 0


class PopProcessQueueInfo(Body):
    """5.x: the same for a queue in pop mode."""

    wait_ack_count: Int = 0
    droped: bool = False
    last_pop_timestamp: Long = 0


class ConsumeStatus(Body):
    """A consumer's rates on one topic. Times are in milliseconds."""

    pull_rt: float = field(name="pullRT", default=0.0)
    pull_tps: float = field(name="pullTPS", default=0.0)
    consume_rt: float = field(name="consumeRT", default=0.0)
    consume_ok_tps: float = field(name="consumeOKTPS", default=0.0)
    consume_failed_tps: float = field(name="consumeFailedTPS", default=0.0)
    consume_failed_msgs: Long = 0


class ConsumeMessageDirectlyResult(Body):
    """Answer to CONSUME_MESSAGE_DIRECTLY; ``consume_result`` is the name of a ``CMResult``."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str | None = None
    remark: str | None = None
    spent_time_mills: Long = 0


class ConsumerRunningInfo(Body):
    """Answer to GET_CONSUMER_RUNNING_INFO."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[Queue, ProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    jstack: str | None = None
    mq_pop_table: dict[Queue, PopProcessQueueInfo] | None = None
    """5.x, as the next."""
    user_consumer_info: dict[str, str] | None = None
