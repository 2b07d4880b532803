"""Topic configurations, and the data version of configuration tables.

Fields marked 5.x are None, and not written, unless a 5.x peer or file has set them.
"""

from __future__ import annotations

import msgspec
from msgspec import field

from remoting.protocol.bodies.body import Body, Int, Long


class DataVersion(msgspec.Struct, rename="camel", frozen=True):
    """The version of a table: equal versions mean equal tables (cf. DataVersion)."""

    timestamp: Long = 0
    """When the table last changed, ms since 1970."""
    counter: Long = 0
    """The number of changes so far."""
    state_version: Long | None = None
    """5.x: the controller's state version."""

    def next(self, now_ms: int) -> DataVersion:
        """Return the version after one more change, made at ``now_ms``."""
        return DataVersion(now_ms, self.counter + 1, self.state_version)


class TopicConfig(Body):
    """A topic's configuration at one broker (cf. TopicConfig).

    Also the answer to GET_TOPIC_CONFIG, without the mapping of a static topic.
    """

    topic_name: str = ""
    read_queue_nums: Int = 16
    write_queue_nums: Int = 16
    perm: Int = 6
    topic_filter_type: str = "SINGLE_TAG"
    """Or ``MULTI_TAG``."""
    topic_sys_flag: Int = 0
    order: bool = False
    attributes: dict[str, str] | None = None
    """5.x."""


class LogicQueueMappingItem(Body):
    """5.x static topics: one stretch of a logical queue."""

    gen: Int = 0
    queue_id: Int = 0
    bname: str | None = None
    logic_offset: Long = 0
    start_offset: Long = 0
    end_offset: Long = -1
    time_of_start: Long = -1
    time_of_end: Long = -1


class TopicQueueMappingInfo(Body):
    """5.x static topics: which logical queues a broker hosts."""

    topic: str | None = None
    scope: str | None = "__global__"
    total_queues: Int = 0
    bname: str | None = None
    epoch: Long = 0
    dirty: bool = False
    curr_id_map: dict[Int, Int] | None = None


class TopicQueueMappingDetail(TopicQueueMappingInfo):
    """5.x static topics: the same, with each queue's history."""

    hosted_queues: dict[Int, list[LogicQueueMappingItem]] | None = None


class TopicConfigSerializeWrapper(Body):
    """All topics of a broker: ``topics.json``, GET_ALL_TOPIC_CONFIG and part of a registration."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    mapping_data_version: DataVersion | None = None
    """5.x registrations, as the next two."""
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] | None = None
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] | None = None


class CreateTopicListRequestBody(Body):
    """5.x: body of UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: list[TopicConfig] = field(default_factory=list)
