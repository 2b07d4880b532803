"""The heartbeat, in which a client registers its groups and subscriptions with a broker."""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from remoting.protocol.bodies.body import Body, Int, Long


class ConsumeType(StrEnum):
    """How a consumer gets its messages."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    """A pull consumer."""
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    """A push consumer (which pulls in the background)."""
    CONSUME_POP = "CONSUME_POP"
    """5.x."""


class MessageModel(StrEnum):
    """Whether a group's members share the messages, or each gets all of them."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFromWhere(StrEnum):
    """Where a group without a committed offset starts. Peers may send other, deprecated names."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(Body):
    """A consumer's subscription to one topic (cf. SubscriptionData)."""

    topic: str = ""
    sub_string: str = ""
    """The expression as given by the application; only ``*`` itself selects all messages."""
    tags_set: list[str] = field(default_factory=list)
    code_set: list[Int] = field(default_factory=list)
    """The hash code of each tag."""
    sub_version: Long = 0
    """When the client created it, ms since 1970."""
    expression_type: str | None = "TAG"
    """Or ``SQL92``."""
    class_filter_mode: bool = False


class ConsumerData(Body):
    """A consumer group of a client."""

    group_name: str = ""
    consume_type: str = ConsumeType.CONSUME_PASSIVELY
    message_model: str = MessageModel.CLUSTERING
    consume_from_where: str = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


class ProducerData(Body):
    """A producer group of a client."""

    group_name: str = ""


class HeartbeatData(Body):
    """Body of HEART_BEAT."""

    client_id: str = field(name="clientID", default="")
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: Int | None = None
    """5.x, as the next: in a heartbeat without subscriptions, the hash that stands for them."""
    without_sub: bool | None = None


class CheckClientRequestBody(Body):
    """Body of CHECK_CLIENT_CONFIG, which asks whether the broker accepts a subscription."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData = field(default_factory=SubscriptionData)
    namespace: str | None = None
    """5.x."""
