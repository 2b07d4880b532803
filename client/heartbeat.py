"""Who uses an instance, and what its heartbeats say about them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from remoting.protocol.bodies import encode
from remoting.protocol.bodies.heartbeat import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)

Subscriptions = Callable[[], list[SubscriptionData]]


class Members:
    """The groups of one client's producers and consumers.

    Several members may be in one group: the heartbeat names it once, with all their subscriptions.
    """

    def __init__(self) -> None:
        self._producers: Counter[str] = Counter()
        self._consumers: dict[str, list[Subscriptions]] = {}

    @property
    def empty(self) -> bool:
        """Whether there is nobody to tell of."""
        return not self._producers and not self._consumers

    @property
    def consuming(self) -> bool:
        """Whether anybody reads: then slaves are told too."""
        return bool(self._consumers)

    def add_producer(self, group: str) -> None:
        """A producer joins."""
        self._producers[group] += 1

    def remove_producer(self, group: str) -> bool:
        """A producer leaves; True when it was its group's last."""
        self._producers[group] -= 1
        if self._producers[group] > 0:
            return False
        del self._producers[group]
        return True

    def add_consumer(self, group: str, subscriptions: Subscriptions) -> None:
        """A consumer joins; ``subscriptions`` gives what it reads at the moment."""
        self._consumers.setdefault(group, []).append(subscriptions)

    def remove_consumer(self, group: str, subscriptions: Subscriptions) -> bool:
        """A consumer leaves; True when it was its group's last."""
        members = self._consumers[group]
        members.remove(subscriptions)
        if members:
            return False
        del self._consumers[group]
        return True

    def heartbeat(self, client_id: str) -> bytes:
        """The body of a heartbeat."""
        consumers = [
            ConsumerData(
                group_name=group,
                consume_type=ConsumeType.CONSUME_ACTIVELY,
                message_model=MessageModel.CLUSTERING,
                subscription_data_set=_merged(members),
            )
            for group, members in self._consumers.items()
        ]
        return encode(
            HeartbeatData(
                client_id=client_id,
                producer_data_set=[ProducerData(group_name=group) for group in self._producers],
                consumer_data_set=consumers,
            )
        )


def _merged(members: list[Subscriptions]) -> list[SubscriptionData]:
    """The subscriptions of all members, the latest of each topic."""
    by_topic: dict[str, SubscriptionData] = {}
    for subscriptions in members:
        for subscription in subscriptions():
            by_topic[subscription.topic] = subscription
    return list(by_topic.values())
