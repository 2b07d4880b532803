"""Pulling messages."""

from __future__ import annotations

from remoting.protocol.headers.base import Header, Int, Long, header


@header
class PullMessageRequestHeader(Header):
    """PULL_MESSAGE and LITE_PULL_MESSAGE; ``sysFlag`` says which fields count (cf. PullSysFlag)."""

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
    """Where to pull next, and the queue's bounds."""

    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long
    offset_delta: Long | None = None  # 5.x
    topic_sys_flag: Int | None = None  # 5.x
    group_sys_flag: Int | None = None  # 5.x
    forbidden_type: Int | None = None  # 5.x
