"""The rebalance: computes from a group's state which queues a member gains and loses. Does no I/O.

Topics are independent of each other: while the state of a topic is unknown, the member keeps its
queues. Only ``Sticky`` allocates the queues of all topics together; it ignores topics whose state
is unknown, and the queues of brokers that don't respond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from client.errors import PocketMQError, Unavailable
from client.group.strategies import Sticky, Strategy
from client.limits import MAX_QUEUES_HELD
from remoting.protocol.names import RETRY_PREFIX
from remoting.protocol.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class View:
    """The state of a topic, as seen by one member.

    Attributes:
        queues: all queues of the topic, sorted.
        members: the client ids of the members that share the queues, sorted; unused for
            broadcasting.
        owners: the client id that holds each queue's lock, as far as brokers report it.
        silent: names of the brokers that should report lock owners but did not respond.
    """

    queues: tuple[MessageQueue, ...]
    members: tuple[str, ...] = ()
    owners: Mapping[MessageQueue, str] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Difference:
    """The result of a rebalance for one member.

    Attributes:
        lost: queues to give up, sorted.
        gained: queues to take, sorted.
        wanted: all queues of the member afterwards.
        unknown: queues that the strategy returned although they don't exist, sorted.
        failed: topics for which the strategy failed, or with too many queues, and the error.
    """

    lost: tuple[MessageQueue, ...]
    gained: tuple[MessageQueue, ...]
    wanted: frozenset[MessageQueue]
    unknown: tuple[MessageQueue, ...] = ()
    failed: Mapping[str, PocketMQError] = field(default_factory=dict)


class Rebalancer:
    """Computes one member's share of its group's queues.

    Args:
        strategy: allocates queues to members; None: every member gets all (broadcasting).
        member: the member's client id.
    """

    def __init__(self, strategy: Strategy | None, member: str, group: str) -> None:
        self._strategy = strategy
        self._member = member
        self._group = group

    def difference(
        self, views: Mapping[str, View | None], held: Collection[MessageQueue]
    ) -> Difference:
        """Compute the changes that the state of the group requires.

        Args:
            views: the state of each subscribed topic; None: unknown at present.
            held: the queues that the member has now.
        """
        unclear = {topic for topic, view in views.items() if view is None}
        known = {topic: view for topic, view in views.items() if view is not None}
        failed: dict[str, PocketMQError] = {}
        share: set[MessageQueue] = set()
        if isinstance(self._strategy, Sticky):
            share |= self._together(self._strategy, known, held)
        else:
            for topic, view in known.items():
                try:
                    share.update(self._share(view))
                except PocketMQError as error:
                    failed[topic] = error
                    unclear.add(topic)
        # Leave out the largest topics until the rest fits.
        for topic, count in Counter(queue.topic for queue in share).most_common():
            if len(share) <= MAX_QUEUES_HELD:
                break
            failed[topic] = Unavailable(
                f"the member's share of the topic is {count} queues, and it reads at most "
                f"{MAX_QUEUES_HELD} in all",
                topic=topic,
                group=self._group,
                hint="start more members, or give the topic fewer queues",
            )
            unclear.add(topic)
            share = {queue for queue in share if queue.topic != topic}
        existing = {queue for view in known.values() for queue in view.queues}
        wanted = share & existing
        wanted |= {queue for queue in held if queue.topic in unclear}
        unknown = {queue for queue in share - existing if queue.topic not in unclear}
        return Difference(
            lost=tuple(sorted(set(held) - wanted)),
            gained=tuple(sorted(wanted - set(held))),
            wanted=frozenset(wanted),
            unknown=tuple(sorted(unknown)),
            failed=failed,
        )

    def shares_of(self, members: Iterable[str], view: View) -> set[MessageQueue]:
        """Return the queues of a topic allocated to these members; none with ``Sticky``."""
        if self._strategy is None or isinstance(self._strategy, Sticky) or not view.queues:
            return set()
        return {
            queue
            for member in members
            for queue in self._strategy.allocate(
                member, view.queues, view.members, group=self._group
            )
        }

    def _share(self, view: View) -> Collection[MessageQueue]:
        if self._strategy is None or not view.queues:
            return view.queues
        return self._strategy.allocate(self._member, view.queues, view.members, group=self._group)

    def _together(
        self, strategy: Sticky, views: Mapping[str, View], held: Collection[MessageQueue]
    ) -> set[MessageQueue]:
        """Return the share under ``Sticky``, which allocates the queues of all topics together.

        Topics are allocated together only if their brokers report the same members. Retry topics
        are allocated separately, because their queues have little load compared to the others.
        """
        by_members: dict[tuple[tuple[str, ...], bool], list[View]] = {}
        for topic, view in views.items():
            by_members.setdefault((view.members, topic.startswith(RETRY_PREFIX)), []).append(view)
        share: set[MessageQueue] = set()
        for (members, _), alike in by_members.items():
            owners = {queue: owner for view in alike for queue, owner in view.owners.items()}
            queues = [
                queue
                for view in alike
                for queue in view.queues
                if queue.broker_name not in view.silent
            ]
            shares = strategy.share_out(queues, members, owners)
            share |= {queue for queue, owner in shares.items() if owner == self._member}
        silent = {
            queue
            for view in views.values()
            for queue in view.queues
            if queue.broker_name in view.silent
        }
        return share | silent.intersection(held)
