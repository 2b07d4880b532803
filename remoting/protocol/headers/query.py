"""Queries for messages, queues and statistics."""

from __future__ import annotations

from typing import Final

from remoting.protocol.command import Header, Int, Long, header

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""Ext field of QUERY_MESSAGE: the key is a unique id (cf. MixAll.UNIQUE_MSG_QUERY_FLAG)."""


@header
class QueryMessageRequestHeader(Header):
    """QUERY_MESSAGE: messages by key and store time, ms since 1970."""

    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long


@header
class QueryMessageResponseHeader(Header):
    """Answer to QUERY_MESSAGE: store time and offset of the last message in the index."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


@header
class ViewMessageRequestHeader(Header):
    """VIEW_MESSAGE_BY_ID: the message at a physical offset."""

    offset: Long
    topic: str | None = None  # 5.x


@header
class QueryConsumeQueueRequestHeader(Header):
    """QUERY_CONSUME_QUEUE: raw entries of a consume queue."""

    topic: str | None = None
    queue_id: Int | None = None
    index: Long | None = None
    count: Int | None = None
    consumer_group: str | None = None


@header
class QueryConsumeTimeSpanRequestHeader(Header):
    """QUERY_CONSUME_TIME_SPAN: store times of the first, last and consumed message per queue."""

    topic: str
    group: str


@header
class GetConsumeStatsRequestHeader(Header):
    """GET_CONSUME_STATS; ``topicList`` (5.x) is separated by semicolons."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None  # 5.x


@header
class GetConsumeStatsInBrokerHeader(Header):
    """GET_BROKER_CONSUME_STATS."""

    is_order: bool


@header
class ViewBrokerStatsDataRequestHeader(Header):
    """VIEW_BROKER_STATS_DATA: one statistic by name and key."""

    stats_name: str
    stats_key: str
