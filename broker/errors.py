"""The broker's exceptions, common error texts, and checks of names.

Error texts begin like RocketMQ's, because clients and their users recognise those.
"""

from __future__ import annotations

from typing import Final

from broker.limits import MAX_BROKER_NAME_LENGTH, MAX_CLIENT_ID_LENGTH, MAX_REMARK_LENGTH
from remoting.protocol import names
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Extra


class StartError(Exception):
    """The broker can't start; the text gives the reason and the remedy."""


class LimitReached(Exception):
    """A request exceeds one of the broker's limits; the text becomes the response's remark."""


class RequestRefused(Exception):
    """A request is answered with a code other than success.

    Args:
        code: the response code.
        remark: the response's remark.
        extra: ext fields of the response.
    """

    def __init__(self, code: int, remark: str, *, extra: Extra = ()) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.extra = extra


FAQ: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
"""The end of some of RocketMQ's remarks (cf. FAQUrl)."""

NOT_SAVED: Final = (
    "the change is in effect but could not be written to the broker's disk, so a restart would "
    "undo it; the broker's log says why"
)


def without_filter(expression_type: str | None) -> RequestRefused:
    """Return the refusal of a broker with ``enablePropertyFilter=false``."""
    return RequestRefused(
        ResponseCode.SYSTEM_ERROR,
        f"The broker does not support consumer to filter message by {expression_type}",
    )


def remark_of(text: str) -> str:
    """Return a text that quotes a client, cut to fit into a remark."""
    return text if len(text) <= MAX_REMARK_LENGTH else f"{text[:MAX_REMARK_LENGTH]}..."


def is_tag_type(expression_type: str | None) -> bool:
    """Return whether a subscription filters by tags, the default (cf. ExpressionType)."""
    return not expression_type or expression_type == "TAG"


def topic_text(config: TopicConfig) -> str:
    """Format a topic's settings as RocketMQ's remarks do."""
    perm = "".join(
        letter if config.perm & bit else "-"
        for letter, bit in (
            ("R", names.PERM_READ),
            ("W", names.PERM_WRITE),
            ("X", names.PERM_INHERIT),
        )
    )
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={'true' if config.order else 'false'}]"
    )


def check_topic(name: str) -> None:
    """Raise ``RequestRefused`` if this isn't a valid topic name."""
    try:
        names.validate_topic(name)
    except ValueError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None


def check_group(name: str) -> None:
    """Raise ``RequestRefused`` if this isn't a valid group name."""
    try:
        names.validate_group(name)
    except ValueError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None


def check_client_id(client_id: str) -> None:
    """Raise ``RequestRefused`` if a client id is empty or too long."""
    if not 0 < len(client_id) <= MAX_CLIENT_ID_LENGTH:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"a client's id has 1 to {MAX_CLIENT_ID_LENGTH} characters, not {len(client_id)}",
        )


def check_broker_name(name: str) -> None:
    """Raise ``RequestRefused`` if a broker's name is too long."""
    if len(name) > MAX_BROKER_NAME_LENGTH:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"a broker's name has at most {MAX_BROKER_NAME_LENGTH} characters, not {len(name)}",
        )
