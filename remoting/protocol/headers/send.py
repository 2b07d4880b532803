"""Sending, sending back and recalling messages; transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from remoting.protocol.command import Header, Int, Long, header


@header
class _MessageHeader(Header):
    """The attributes of a message that its three headers begin with."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool = False


@header
class SendMessageRequestHeader(_MessageHeader):
    """SEND_MESSAGE and SEND_REPLY_MESSAGE: the message's attributes, with long names."""

    batch: bool = False
    max_reconsume_times: Int | None = None
    bname: str | None = None


@header
class SendMessageRequestHeaderV2(_MessageHeader):
    """SEND_MESSAGE_V2, SEND_BATCH_MESSAGE, SEND_REPLY_MESSAGE_V2: the same, in one-letter names."""

    wire_names: ClassVar[Mapping[str, str]] = {
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_timestamp": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "bname": "n",
    }

    max_reconsume_times: Int | None = None
    batch: bool = False
    bname: str | None = None


@header
class SendMessageResponseHeader(Header):
    """Queue and offset of a stored message; ``msgId`` is its offset id (a batch's: by commas)."""

    msg_id: str
    queue_id: Int
    queue_offset: Long
    transaction_id: str | None = None
    batch_uniq_id: str | None = None  # 5.x
    recall_handle: str | None = None  # 5.x


@header
class ReplyMessageRequestHeader(_MessageHeader):
    """PUSH_REPLY_MESSAGE_TO_CLIENT: a reply's attributes; hosts are ``ip:port``."""

    born_host: str
    store_host: str
    store_timestamp: Long


@header
class ConsumerSendMsgBackRequestHeader(Header):
    """CONSUMER_SEND_MSG_BACK: deliver the message at ``offset`` again, or make it a dead letter."""

    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    bname: str | None = None


@header
class RecallMessageRequestHeader(Header):
    """RECALL_MESSAGE (5.x): cancel a delayed message."""

    producer_group: str | None = None
    topic: str
    recall_handle: str


@header
class RecallMessageResponseHeader(Header):
    """Answer to RECALL_MESSAGE (5.x): the unique id of the recalled message."""

    msg_id: str


@header
class EndTransactionRequestHeader(Header):
    """END_TRANSACTION; ``commitOrRollback`` is 0 unknown, 8 commit, 12 rollback."""

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None
    bname: str | None = None
    topic: str | None = None  # 5.x


@header
class CheckTransactionStateRequestHeader(Header):
    """CHECK_TRANSACTION_STATE: a broker asks a producer for the state of a half message."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None
    topic: str | None = None  # 5.x


@header
class ResumeCheckHalfMessageRequestHeader(Header):
    """RESUME_CHECK_HALF_MESSAGE: check the half message with this offset id again."""

    msg_id: str | None = None
    topic: str | None = None  # 5.x
