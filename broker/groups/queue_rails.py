"""What is wrong with the queues of a consumer group: who has none, and which has nobody. Pure.

A queue that nobody pulls is one with messages to come for which, for 30 s, no live member has
asked, no progress was committed, and no live member has held the lock. A consumer that is full
stops pulling too: its progress shows that it lives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.groups.conflicts import make
from broker.groups.consumers import ConsumerGroup
from remoting.protocol.bodies.description import FindingKind, GroupFinding
from remoting.protocol.bodies.heartbeat import ConsumeType
from remoting.protocol.queue import MessageQueue

UNPULLED_SECONDS: Final = 30.0

_BY_INDEX: Final = frozenset({"AVG", "AVG_BY_CIRCLE"})
"""Strategies that give the first queue to the first member, of each topic anew."""

_NAMED: Final = 5
"""Members that a sentence names."""


@dataclass(frozen=True, slots=True)
class QueueNow:
    """One queue at this moment.

    Args:
        waiting: messages that the group has not consumed.
        alive: when there last was a sign that it is consumed, monotonic.
    """

    topic: str
    queue_id: int
    waiting: int
    alive: float


def strategy_of(group: ConsumerGroup) -> str:
    """The strategy of all members that tell it; empty when none does, or they differ."""
    told = {profile.strategy for profile in group.profiles} - {""}
    return told.pop() if len(told) == 1 else ""


def owner_by_average(
    queue: MessageQueue, queues: Sequence[MessageQueue], members: Sequence[str]
) -> str | None:
    """Whom the strategy AVG gives a queue (cf. AllocateMessageQueueAveragely).

    Args:
        queue: the queue.
        queues: all of its topic, in order.
        members: the client ids of all members, in order.
    """
    if queue not in queues or not members:
        return None
    each, more = divmod(len(queues), len(members))
    index = queues.index(queue)
    if index < more * (each + 1):
        return members[index // (each + 1)]
    return members[more + (index - more * (each + 1)) // each]


def idle_members(group: ConsumerGroup, queues: dict[str, int]) -> GroupFinding | None:
    """More members than queues.

    Args:
        group: the group.
        queues: how many queues each of its topics has, at all brokers.
    """
    if group.is_broadcasting or not queues:
        return None
    strategy = strategy_of(group)
    if group.consume_type == ConsumeType.CONSUME_ACTIVELY and not strategy:
        return None
    members = sorted(group.ids)
    # Where every topic begins with the same member, the largest topic decides.
    owners = sum(queues.values()) if strategy == "STICKY" else max(queues.values())
    idle = members[owners:]
    if not idle:
        return None
    named = idle if strategy in _BY_INDEX else []
    who = f" ({', '.join(named[:_NAMED])})" if named else ""
    return make(
        FindingKind.IDLE_MEMBERS,
        f"group {group.name} has {len(members)} members for {_count(owners, 'queue')} of "
        f"{', '.join(sorted(queues)[:_NAMED])}: no message reaches {len(idle)} of them{who}; give "
        "the topic more queues or run fewer members",
        members=named,
    )


def unpulled(
    group: ConsumerGroup, queue: QueueNow, now: float, owner: str | None
) -> GroupFinding | None:
    """A queue that nobody pulls."""
    quiet = now - queue.alive
    if queue.waiting <= 0 or quiet < UNPULLED_SECONDS:
        return None
    last = group.pulls.get((queue.topic, queue.queue_id))
    before = f"; {last[0]} was the last to pull it" if last is not None else ""
    whose = f"; by the strategy it belongs to {owner}" if owner is not None else ""
    return make(
        FindingKind.UNPULLED_QUEUE,
        f"{_count(queue.waiting, 'message')} to come in queue {queue.queue_id} of {queue.topic}, "
        f"and no live member of group {group.name} has asked for {quiet:.0f} s{whose}{before}; "
        "look whether all members subscribe the topic, whether a handler hangs, and whether one "
        "died",
        members=[] if owner is None else [owner],
        topic=queue.topic,
        queue_id=queue.queue_id,
    )


def blocked(
    group: ConsumerGroup, broker_name: str, committed: Callable[[str, str, int], int]
) -> list[GroupFinding]:
    """The queues of a broker that members say they can't go on with.

    Args:
        group: the group.
        broker_name: the broker's.
        committed: gives the offset of a group, topic and queue; one beyond the message means that
            somebody has skipped it since.
    """
    return [
        make(
            FindingKind.BLOCKED_QUEUE,
            f"queue {one.queue_id} of {one.topic} stands at offset {one.offset}: message "
            f"{one.msg_id} fails again and again at {member.text} of group {group.name}: "
            f"{one.error}; repair the handler, or skip the message with `pocketmq group skip`",
            members=[member.client_id],
            topic=one.topic,
            queue_id=one.queue_id,
            since_ms=one.since_ms,
        )
        for member in group.members.values()
        for one in member.blocked
        if one.broker in {"", broker_name}
        and committed(group.name, one.topic, one.queue_id) <= one.offset
    ]


def queues_changed(group: str, topic: str, before: int, after: int) -> GroupFinding:
    """A topic has another number of queues than it had while the group consumed it."""
    return make(
        FindingKind.QUEUES_CHANGED,
        f"topic {topic} had {_count(before, 'queue')} and now has {after} while group {group} "
        "consumes it: messages with one sharding key may now be in two queues, so that the order "
        "by key holds only from the change on; let the group catch up before changing the number",
        topic=topic,
    )


def went_backwards(
    group: str, topic: str, queue_id: int, stored: int, committed: int
) -> GroupFinding:
    """A group's offset was set back."""
    return make(
        FindingKind.OFFSET_BACKWARDS,
        f"the offset of group {group} in queue {queue_id} of {topic} went back from {stored} to "
        f"{committed}: {_count(stored - committed, 'message')} will be delivered again; unless "
        "somebody reset it, two members consume the queue",
        topic=topic,
        queue_id=queue_id,
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
