"""Pulling messages, committed offsets, and the offset ranges of queues."""

from __future__ import annotations

from remoting.protocol.command import Header, Int, Long, header


@header
class PullMessageRequestHeader(Header):
    """PULL_MESSAGE and LITE_PULL_MESSAGE; for ``sysFlag`` see PullSysFlag."""

    consumer_group: str
    topic: str
    queue_id: Int
    queue_offset: Long
    max_msg_nums: Int
    sys_flag: Int
    commit_offset: Long
    suspend_timeout_millis: Long
    subscription: str | None = None
    sub_version: Long
    expression_type: str | None = None
    bname: str | None = None
    max_msg_bytes: Int | None = None  # 5.x
    request_source: Int | None = None  # 5.x
    proxy_froward_client_id: str | None = None  # 5.x


@header
class PullMessageResponseHeader(Header):
    """The offset to pull from next, and the queue's range of offsets."""

    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long
    offset_delta: Long | None = None  # 5.x
    topic_sys_flag: Int | None = None  # 5.x
    group_sys_flag: Int | None = None  # 5.x
    forbidden_type: Int | None = None  # 5.x


@header
class QueryConsumerOffsetRequestHeader(Header):
    """QUERY_CONSUMER_OFFSET: a group's committed offset in a queue."""

    consumer_group: str
    topic: str
    queue_id: Int
    bname: str | None = None
    set_zero_if_not_found: bool | None = None  # 5.x


@header
class OffsetResponseHeader(Header):
    """A queue offset: a committed one, the lowest, the next, or one found by time."""

    offset: Long


@header
class UpdateConsumerOffsetRequestHeader(Header):
    """UPDATE_CONSUMER_OFFSET: commit a group's offset in a queue.

    Attributes:
        forward: keep a higher offset; PocketMQ's slaves ask for it.
    """

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long
    bname: str | None = None
    forward: bool | None = None


@header
class SearchOffsetRequestHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP; ``boundaryType`` is LOWER (the default) or UPPER."""

    topic: str
    queue_id: Int
    timestamp: Long
    bname: str | None = None
    boundary_type: str | None = None  # 5.x


@header
class GetMaxOffsetRequestHeader(Header):
    """GET_MAX_OFFSET; the default of ``committed`` is true."""

    topic: str
    queue_id: Int
    bname: str | None = None
    committed: bool | None = None  # 5.x


@header
class QueueRequestHeader(Header):
    """GET_MIN_OFFSET and GET_EARLIEST_MSG_STORETIME: one queue."""

    topic: str
    queue_id: Int
    bname: str | None = None


@header
class GetEarliestMsgStoretimeResponseHeader(Header):
    """The store time of the queue's first message, ms since 1970; -1 for none."""

    timestamp: Long


@header
class ResetOffsetRequestHeader(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET, and RESET_CONSUMER_CLIENT_OFFSET to clients.

    ``timestamp`` -1 means the end; ``queueId`` absent or -1 (5.x) means all queues.
    """

    topic: str
    group: str
    timestamp: Long
    is_force: bool
    queue_id: Int | None = None  # 5.x
    offset: Long | None = None  # 5.x


@header
class CloneGroupOffsetRequestHeader(Header):
    """CLONE_GROUP_OFFSET: copy the offsets of one group to another."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None


@header
class QueryCorrectionOffsetHeader(Header):
    """QUERY_CORRECTION_OFFSET: the lowest offsets among groups.

    ``filterGroups`` is separated by commas.
    """

    filter_groups: str | None = None
    compare_group: str
    topic: str
