"""Statistics of topics, groups and queues, and lists of names. Times are in ms since 1970."""

from __future__ import annotations

from msgspec import field

from remoting.protocol.bodies.body import Body, Int, Long, Queue
from remoting.protocol.bodies.heartbeat import SubscriptionData


class TopicOffset(Body):
    """The range of offsets in a queue."""

    min_offset: Long = 0
    max_offset: Long = 0
    last_update_timestamp: Long = 0


class TopicStatsTable(Body):
    """Answer to GET_TOPIC_STATS_INFO."""

    offset_table: dict[Queue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float | None = None
    """5.x."""


class OffsetWrapper(Body):
    """A group's progress in a queue."""

    broker_offset: Long = 0
    consumer_offset: Long = 0
    last_timestamp: Long = 0
    pull_offset: Long | None = None
    """5.x."""


class ConsumeStats(Body):
    """Answer to GET_CONSUME_STATS."""

    offset_table: dict[Queue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0


class ConsumeStatsList(Body):
    """Answer to GET_BROKER_CONSUME_STATS: by group, then by topic."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    broker_addr: str | None = None
    total_diff: Long = 0
    total_inflight_diff: Long | None = None
    """5.x."""


class TopicProgress(Body):
    """A group's progress in the queues of a topic."""

    topic: str
    queues: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Of each queue its id, end and committed offset, and when the last consumed message was
    stored, or 0."""


class GroupProgress(Body):
    """A group's progress in all its topics; ``tps``: messages that it gets per second."""

    group: str
    tps: float = 0.0
    topics: list[TopicProgress] = field(default_factory=list)


class GroupProgressPage(Body):
    """Answer to GET_GROUP_PROGRESS (PocketMQ's own): the groups in the order of their names."""

    groups: list[GroupProgress] = field(default_factory=list)
    next: str | None = None
    """The name after which the next page begins; None after the last group."""


class BrokerStatsItem(Body):
    """One statistic over one span of time."""

    sum: Long = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body):
    """Answer to VIEW_BROKER_STATS_DATA."""

    stats_minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = field(default_factory=BrokerStatsItem)


class QueueTimeSpan(Body):
    """The store times of a queue's first and last message, and of the group's position."""

    message_queue: Queue | None = None
    min_time_stamp: Long = 0
    max_time_stamp: Long = 0
    consume_time_stamp: Long = 0
    delay_time: Long = 0
    min_time_stamp_str: str | None = None
    """``yyyy-MM-dd#HH:mm:ss:SSS`` in local time, as the next two; for display only."""
    max_time_stamp_str: str | None = None
    consume_time_stamp_str: str | None = None


class QueryConsumeTimeSpanBody(Body):
    """Answer to QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


class ConsumeQueueData(Body):
    """One entry of a consume queue."""

    physic_offset: Long = 0
    physic_size: Int = 0
    tags_code: Long = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(Body):
    """Answer to QUERY_CONSUME_QUEUE."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] | None = None
    max_queue_index: Long = 0
    min_queue_index: Long = 0


class KVTable(Body):
    """Names and values: runtime information, or a namespace of the name server."""

    table: dict[str, str] = field(default_factory=dict)


class KVConfigSerializeWrapper(Body):
    """The name server's ``kvConfig.json``: namespace to key to value."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class TopicList(Body):
    """Names of topics (and, for GET_SYSTEM_TOPIC_LIST_FROM_NS, of brokers and clusters)."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


class QuerySubscriptionResponseBody(Body):
    """Answer to QUERY_SUBSCRIPTION_BY_CONSUMER (5.x)."""

    subscription_data: SubscriptionData | None = None
    group: str | None = None
    topic: str | None = None


class GroupList(Body):
    """Names of groups."""

    group_list: list[str] = field(default_factory=list)


class MemberTopics(Body):
    """The members of a group that subscribe to the same topics (PocketMQ's own)."""

    topics: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    """Their client ids."""
    ours: bool = False
    """Whether they are PocketMQ clients."""


class GetConsumerListByGroupResponseBody(Body):
    """Client ids of a group's members."""

    consumer_id_list: list[str] = field(default_factory=list)
    member_topics: list[MemberTopics] | None = None
    """PocketMQ's own: sent to PocketMQ members only, if not all members have the same topics."""


class HAConnectionInfo(Body):
    """A slave, as its master sees it; ``in_sync``: it lacks less than 256 MiB."""

    addr: str = ""
    slave_ack_offset: Long = 0
    diff: Long = 0
    in_sync: bool = False
    transferred_byte_in_second: Long = 0
    transfer_from_where: Long = 0


class HAClientInfo(Body):
    """A slave's connection to its master."""

    master_addr: str | None = None
    transferred_byte_in_second: Long = 0
    max_offset: Long = 0
    last_read_timestamp: Long = 0
    last_write_timestamp: Long = 0
    activated: bool = False


class HARuntimeInfo(Body):
    """Answer to GET_BROKER_HA_STATUS of 5.x: a master with its slaves, or a slave."""

    master: bool = False
    master_commit_log_max_offset: Long = 0
    in_sync_slave_nums: Int = 0
    ha_connection_info: list[HAConnectionInfo] = field(default_factory=list)
    ha_client_runtime_info: HAClientInfo = field(default_factory=HAClientInfo)
