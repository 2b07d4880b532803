"""What a client tells a broker about itself."""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from remoting.protocol.bodies.body import Body, Int, Long


class ConsumeType(StrEnum):
    """How a consumer gets its messages."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    """Pulls."""
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    """Is pushed to, as the application sees it."""
    CONSUME_POP = "CONSUME_POP"
    """5.x."""


class MessageModel(StrEnum):
    """Whether a group's members share the messages or each gets all."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFromWhere(StrEnum):
    """Where a group without an offset starts. Peers may send deprecated names beside these."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(Body):
    """What a consumer wants of one topic (cf. SubscriptionData)."""

    topic: str = ""
    sub_string: str = ""
    """The expression as the application gave it; exactly ``*`` is everything."""
    tags_set: list[str] = field(default_factory=list)
    code_set: list[Int] = field(default_factory=list)
    """The hash of each tag."""
    sub_version: Long = 0
    """When the client made it, milliseconds."""
    expression_type: str | None = "TAG"
    """Or ``SQL92``."""
    class_filter_mode: bool = False


class ConsumerData(Body):
    """One group that a client consumes in."""

    group_name: str = ""
    consume_type: str = ConsumeType.CONSUME_PASSIVELY
    message_model: str = MessageModel.CLUSTERING
    consume_from_where: str = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


class ProducerData(Body):
    """One group that a client produces in."""

    group_name: str = ""


class HeartbeatData(Body):
    """Body of HEART_BEAT."""

    client_id: str = field(name="clientID", default="")
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: Int | None = None
    """5.x, as the next: a short heartbeat names its subscriptions by this alone."""
    without_sub: bool | None = None


class CheckClientRequestBody(Body):
    """Body of CHECK_CLIENT_CONFIG: may this subscription be made?"""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData = field(default_factory=SubscriptionData)
    namespace: str | None = None
    """5.x."""
