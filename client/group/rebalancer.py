"""Calculates from the state of a group which queues a member has to give up and take. Pure.

Topics are independent: while the state of a topic is unknown the member keeps its queues. The one
strategy that looks at all topics together (``Sticky``) leaves out topics, and queues of brokers,
whose state is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from client.errors import PocketMQError
from client.group.strategies import Sticky, Strategy
from remoting.protocol.names import RETRY_PREFIX
from remoting.protocol.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class View:
    """The state of a topic, as a member knows it.

    Attributes:
        queues: all, sorted.
        members: the client ids of the group, sorted; unused when broadcasting.
        owners: who holds the queues' locks, as far as brokers tell.
        silent: names of brokers that should tell but don't answer.
    """

    queues: tuple[MessageQueue, ...]
    members: tuple[str, ...] = ()
    owners: Mapping[MessageQueue, str] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes that a member has to make.

    Attributes:
        lost: to be given up, sorted.
        gained: to be taken, sorted.
        wanted: all queues of the member afterwards.
        unknown: queues that the strategy names and that don't exist.
        failed: topics that the strategy can't share out, and why.
    """

    lost: tuple[MessageQueue, ...]
    gained: tuple[MessageQueue, ...]
    wanted: frozenset[MessageQueue]
    unknown: tuple[MessageQueue, ...] = ()
    failed: Mapping[str, PocketMQError] = field(default_factory=dict)


class Rebalancer:
    """Calculates one member's share of a group.

    Args:
        strategy: shares out queues; None: every member reads all (broadcasting).
    """

    def __init__(self, strategy: Strategy | None, member: str, group: str) -> None:
        self._strategy = strategy
        self._member = member
        self._group = group

    def difference(
        self, views: Mapping[str, View | None], held: Collection[MessageQueue]
    ) -> Difference:
        """The changes that the state of the group requires.

        Args:
            views: every subscribed topic; None: its state is unknown now.
            held: the queues of the member.
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

    def _share(self, view: View) -> Collection[MessageQueue]:
        if self._strategy is None or not view.queues:
            return view.queues
        return self._strategy.allocate(self._member, view.queues, view.members, group=self._group)

    def _together(
        self, strategy: Sticky, views: Mapping[str, View], held: Collection[MessageQueue]
    ) -> set[MessageQueue]:
        """The share over all topics whose brokers name the same members.

        A retry topic is shared out separately: its queues carry little load beside the others.
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
