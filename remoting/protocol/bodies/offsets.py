"""Tables of offsets: what brokers and clients keep in files and what admin commands move."""

from __future__ import annotations

from msgspec import field

from remoting.protocol.bodies.body import Body, Int, Long, Queue
from remoting.protocol.bodies.topic import DataVersion


class ConsumerOffsetSerializeWrapper(Body):
    """``consumerOffset.json`` and GET_ALL_CONSUMER_OFFSET."""

    offset_table: dict[str, dict[Int, Long]] = field(default_factory=dict)
    """``topic@group`` to queue id to offset."""
    data_version: DataVersion | None = None
    """5.x, as the next."""
    group_topic_map: dict[str, list[str]] | None = None


class DelayOffsetSerializeWrapper(Body):
    """``delayOffset.json`` and GET_ALL_DELAY_OFFSET."""

    offset_table: dict[Int, Long] = field(default_factory=dict)
    """Delay level to offset."""
    data_version: DataVersion | None = None
    """5.x."""


class OffsetSerializeWrapper(Body):
    """``offsets.json`` of a broadcasting client."""

    offset_table: dict[Queue, Long] = field(default_factory=dict)


class ResetOffsetBody(Body):
    """Body of RESET_CONSUMER_CLIENT_OFFSET, answer of INVOKE_BROKER_TO_RESET_OFFSET."""

    offset_table: dict[Queue, Long] = field(default_factory=dict)


class MessageQueueForC(Body):
    """A queue with its offset, for readers without maps keyed by objects."""

    topic: str = ""
    broker_name: str = ""
    queue_id: Int = 0
    offset: Long = 0


class ResetOffsetBodyForC(Body):
    """The same for a requester whose language is CPP."""

    offset_table: list[MessageQueueForC] = field(default_factory=list)


class GetConsumerStatusBody(Body):
    """A consumer's offsets: of one client, or of all of a group by client id."""

    message_queue_table: dict[Queue, Long] = field(default_factory=dict)
    consumer_table: dict[str, dict[Queue, Long]] = field(default_factory=dict)


class QueryCorrectionOffsetBody(Body):
    """Answer of QUERY_CORRECTION_OFFSET: queue id to offset."""

    correction_offsets: dict[Int, Long] = field(default_factory=dict)


class OffsetMovedEvent(Body):
    """What a broker tells about an offset that it had to correct."""

    consumer_group: str = ""
    message_queue: Queue | None = None
    offset_request: Long = 0
    offset_new: Long = 0
