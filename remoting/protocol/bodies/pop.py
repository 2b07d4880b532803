"""Bodies of the 5.x assignment and pop requests."""

from __future__ import annotations

from msgspec import field

from remoting.protocol.bodies.body import Body, Int, Long, Queue


class MessageQueueAssignment(Body):
    """One queue that a consumer is to work on."""

    message_queue: Queue | None = None
    mode: str = "PULL"
    """Or ``POP``."""
    attachments: dict[str, str] | None = None


class QueryAssignmentRequestBody(Body):
    """Body of QUERY_ASSIGNMENT."""

    topic: str = ""
    consumer_group: str = ""
    client_id: str = ""
    strategy_name: str | None = None
    message_model: str | None = None


class QueryAssignmentResponseBody(Body):
    """Answer of QUERY_ASSIGNMENT."""

    message_queue_assignments: list[MessageQueueAssignment] = field(default_factory=list)


class SetMessageRequestModeRequestBody(Body):
    """Body of SET_MESSAGE_REQUEST_MODE."""

    topic: str = ""
    consumer_group: str = ""
    mode: str = "PULL"
    pop_share_queue_num: Int = 0


class BatchAck(Body):
    """Acknowledgements of one pop; the wire's names are single letters."""

    consumer_group: str = field(name="c", default="")
    topic: str = field(name="t", default="")
    retry: str | None = field(name="r", default=None)
    start_offset: Long = field(name="so", default=0)
    queue_id: Int = field(name="q", default=0)
    revive_queue_id: Int = field(name="rq", default=0)
    pop_time: Long = field(name="pt", default=0)
    invisible_time: Long = field(name="it", default=0)
    bit_set: str | None = field(name="b", default=None)
    """Base64 of little-endian bits: bit i acknowledges start offset + i."""


class BatchAckMessageRequestBody(Body):
    """Body of BATCH_ACK_MESSAGE."""

    broker_name: str | None = None
    acks: list[BatchAck] = field(default_factory=list)
