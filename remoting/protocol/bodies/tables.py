"""Plain lists and tables of names."""

from __future__ import annotations

from msgspec import field

from remoting.protocol.bodies.body import Body


class KVTable(Body):
    """Names and values: runtime information, a namespace of the name server."""

    table: dict[str, str] = field(default_factory=dict)


class KVConfigSerializeWrapper(Body):
    """The name server's ``kvConfig.json``: namespace to key to value."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


class TopicList(Body):
    """Names of topics (and, of GET_SYSTEM_TOPIC_LIST_FROM_NS, of brokers and clusters)."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


class GroupList(Body):
    """Names of groups."""

    group_list: list[str] = field(default_factory=list)


class GetConsumerListByGroupResponseBody(Body):
    """Client ids of a group's members."""

    consumer_id_list: list[str] = field(default_factory=list)
