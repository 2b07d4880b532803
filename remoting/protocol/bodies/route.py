"""Topic routes and broker addresses, as returned by name servers."""

from __future__ import annotations

from msgspec import field

from remoting.protocol.bodies.body import Body, Int, Long
from remoting.protocol.bodies.topic import TopicQueueMappingInfo


class QueueData(Body):
    """A topic's queues at one broker."""

    broker_name: str = ""
    read_queue_nums: Int = 0
    write_queue_nums: Int = 0
    perm: Int = 0
    topic_sys_flag: Int = 0


class BrokerData(Body):
    """The addresses of a broker's master (id 0) and slaves."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[Long, str] = field(default_factory=dict)
    """Broker id to ``ip:port``."""
    enable_acting_master: bool | None = None
    """5.x, as the next."""
    zone_name: str | None = None


class TopicRouteData(Body):
    """Answer to GET_ROUTEINFO_BY_TOPIC (cf. TopicRouteData)."""

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None
    """5.x."""


class ClusterInfo(Body):
    """Answer to GET_BROKER_CLUSTER_INFO."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)
    """Cluster to broker names."""


class BrokerMemberGroup(Body):
    """5.x: the members of one broker name."""

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[Long, str] = field(default_factory=dict)


class GetBrokerMemberGroupResponseBody(Body):
    """5.x: answer to GET_BROKER_MEMBER_GROUP."""

    broker_member_group: BrokerMemberGroup | None = None
