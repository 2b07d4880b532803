"""What a member subscribes, as heartbeats say it. Pure.

A subscription has the time at which it was made as its version. It changes with its expression and
with nothing else: a broker keeps the highest version it has seen, and a version that rose by itself
would overwrite what other members said later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from client.errors import UsageError
from client.names import check_topic_name
from client.places import Place, Position
from remoting.protocol.bodies.heartbeat import ConsumeFromWhere, SubscriptionData
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.names import retry_topic

EVERYTHING = TagExpression.parse("*")


class Subscribed:
    """The topics of one member.

    Args:
        now_ms: gives versions.
        retry: the group's retry topic is read too.
    """

    def __init__(
        self,
        group: str,
        expressions: Mapping[str, TagExpression],
        now_ms: Callable[[], int],
        *,
        retry: bool,
    ) -> None:
        self._now_ms = now_ms
        self._own = retry_topic(group) if retry else None
        self._versions: dict[str, tuple[TagExpression, int]] = {}
        for topic, expression in expressions.items():
            self.put(topic, expression)
        if self._own is not None:
            self._versions[self._own] = (EVERYTHING, now_ms())

    @property
    def topics(self) -> list[str]:
        """All, the retry topic last."""
        return [*(topic for topic in self._versions if topic != self._own), *self._retry()]

    def _retry(self) -> list[str]:
        return [] if self._own is None else [self._own]

    def expression(self, topic: str) -> TagExpression | None:
        """What is wanted of a topic."""
        found = self._versions.get(topic)
        return None if found is None else found[0]

    def put(self, topic: str, expression: TagExpression) -> bool:
        """Subscribe a topic, or change what is wanted of it; False if that is so already.

        Raises:
            UsageError: this can't be a topic's name, or is the group's own retry topic.
        """
        check_topic_name(topic)
        if topic == self._own:
            raise UsageError("the retry topic is subscribed by itself", topic=topic)
        known = self._versions.get(topic)
        if known is not None and known[0] == expression:
            return False
        self._versions[topic] = (expression, self._now_ms())
        return True

    def remove(self, topic: str) -> bool:
        """End a subscription; False if there is none."""
        return topic != self._own and self._versions.pop(topic, None) is not None

    def data(self) -> list[SubscriptionData]:
        """For a heartbeat."""
        return [
            SubscriptionData(
                topic=topic,
                sub_string=expression.text,
                tags_set=sorted(expression.tags),
                code_set=sorted(expression.codes),
                sub_version=version_ms,
            )
            for topic, (expression, version_ms) in self._versions.items()
        ]


def from_where(start_from: Position) -> ConsumeFromWhere:
    """How heartbeats name where queues without an offset begin."""
    if start_from is Place.END:
        return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    if isinstance(start_from, datetime):
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
