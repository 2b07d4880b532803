"""The POP protocol of 5.x."""

from __future__ import annotations

from remoting.protocol.headers.base import Header, Int, Long, header


@header
class PopMessageRequestHeader(Header):
    """POP_MESSAGE: messages for this group, invisible to others for a while."""

    consumer_group: str
    topic: str
    queue_id: Int
    max_msg_nums: Int
    invisible_time: Long
    poll_time: Long
    born_time: Long
    init_mode: Int
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


@header
class PopMessageResponseHeader(Header):
    """What the client needs to acknowledge each message (also for PEEK_MESSAGE)."""

    pop_time: Long
    invisible_time: Long
    revive_qid: Int
    rest_num: Long
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@header
class PeekMessageRequestHeader(Header):
    """PEEK_MESSAGE: look at messages without taking them."""

    topic: str
    queue_id: Int
    max_msg_nums: Int
    consumer_group: str


@header
class AckMessageRequestHeader(Header):
    """ACK_MESSAGE: one message is done; ``extraInfo`` is its POP_CK property."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long


@header
class ChangeInvisibleTimeRequestHeader(Header):
    """CHANGE_MESSAGE_INVISIBLETIME: keep one message invisible for longer or shorter."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    invisible_time: Long


@header
class ChangeInvisibleTimeResponseHeader(Header):
    """The new parts of the message's POP_CK property."""

    pop_time: Long
    invisible_time: Long
    revive_qid: Int


@header
class NotificationRequestHeader(Header):
    """NOTIFICATION: wait until the group has something to pop."""

    consumer_group: str
    topic: str
    queue_id: Int
    poll_time: Long
    born_time: Long
    order: bool | None = None
    attempt_id: str | None = None


@header
class NotificationResponseHeader(Header):
    """Whether there is something to pop."""

    has_msg: bool
    polling_full: bool | None = None


@header
class PollingInfoRequestHeader(Header):
    """POLLING_INFO: how many pops are waiting."""

    consumer_group: str
    topic: str
    queue_id: Int


@header
class PollingInfoResponseHeader(Header):
    """The number of waiting pops."""

    polling_num: Int
