"""Problems of consumer groups: contradicting members, queues that nobody pulls. No I/O.

All members of a group must subscribe to the same topics in the same way. RocketMQ assumes this, and
otherwise messages stay unread. Only members with recent heartbeats count.

A queue counts as unpulled if it has messages, and for 30 s no live member has pulled from it, no
offset was committed, and no live member has held its lock. A consumer whose process queue is full
stops pulling too, but its commits show that it is alive.

A finding is either a state, which lasts until a check no longer finds it, or an event, which is
kept for ten minutes. It is logged when it begins, and again every five minutes while it lasts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import TYPE_CHECKING, Final

from broker.groups.consumers import ConsumerGroup, ConsumerMember, Profile
from broker.limits import LIMITS, MAX_FINDING_TEXT_LENGTH, MAX_PROFILES_COMPARED
from remoting.protocol.bodies.description import FindingKind, GroupFinding
from remoting.protocol.bodies.heartbeat import ConsumeType
from remoting.protocol.queue import MessageQueue
from remoting.runtime import DOCS
from remoting.runtime.clock import Clock, monotonic_ms

if TYPE_CHECKING:
    from remoting.connection import Connection


ANCHORS: Final = {
    FindingKind.SUBSCRIPTION: "one-group-one-subscription",
    FindingKind.CONSUME_TYPE: "all-else-must-match-too",
    FindingKind.MESSAGE_MODEL: "all-else-must-match-too",
    FindingKind.CONSUME_FROM_WHERE: "all-else-must-match-too",
    FindingKind.STRATEGY: "all-else-must-match-too",
    FindingKind.CLIENT_ID: "one-client-id-one-client",
    FindingKind.IDLE_MEMBERS: "one-owner-per-queue",
    FindingKind.UNPULLED_QUEUE: "a-queue-that-nobody-pulls",
    FindingKind.BLOCKED_QUEUE: "one-failing-message-stops-its-queue",
    FindingKind.OFFSET_BACKWARDS: "an-offset-that-goes-backwards",
    FindingKind.QUEUES_CHANGED: "another-number-of-queues",
}
"""The section of ``consumer-groups.md`` that explains each kind of finding."""

TITLES: Final = {
    FindingKind.SUBSCRIPTION: "members of a group subscribe differently",
    FindingKind.CONSUME_TYPE: "members of a group consume in different ways",
    FindingKind.MESSAGE_MODEL: "members of a group have different message models",
    FindingKind.CONSUME_FROM_WHERE: "members of a group start in different places",
    FindingKind.STRATEGY: "members of a group share out queues differently",
    FindingKind.CLIENT_ID: "two members of a group have one client id",
    FindingKind.IDLE_MEMBERS: "a group has more members than queues",
    FindingKind.UNPULLED_QUEUE: "nobody pulls a queue that has messages",
    FindingKind.BLOCKED_QUEUE: "a failing message stops a queue",
    FindingKind.OFFSET_BACKWARDS: "a group's offset goes back: messages will be delivered again",
    FindingKind.QUEUES_CHANGED: "the number of queues changes while a group consumes them",
}
"""The event of the log line for each kind of finding."""

CONFLICTS: Final = frozenset(
    {
        FindingKind.SUBSCRIPTION,
        FindingKind.CONSUME_TYPE,
        FindingKind.MESSAGE_MODEL,
        FindingKind.CONSUME_FROM_WHERE,
        FindingKind.STRATEGY,
        FindingKind.CLIENT_ID,
    }
)
"""Kinds of findings about contradictions between members."""

Profiles = Mapping[Profile, Mapping["Connection", ConsumerMember]]

_PLAIN: Final[tuple[tuple[FindingKind, str, Callable[[Profile], str]], ...]] = (
    (FindingKind.MESSAGE_MODEL, "message model", lambda profile: profile.message_model),
    (FindingKind.CONSUME_TYPE, "consume type", lambda profile: profile.consume_type),
    (FindingKind.CONSUME_FROM_WHERE, "start", lambda profile: profile.consume_from_where),
    (FindingKind.STRATEGY, "strategy", lambda profile: profile.strategy),
)
_CURES: Final = {
    FindingKind.MESSAGE_MODEL: "give all members the same model, or each model a group of its own",
    FindingKind.CONSUME_TYPE: "let all members push or all pull, or use two groups",
    FindingKind.CONSUME_FROM_WHERE: "let all members start in the same place",
    FindingKind.STRATEGY: "give all members the same strategy, or queues have two owners or none",
    FindingKind.SUBSCRIPTION: (
        "give all members the same subscriptions, or each subscription a group of its own: "
        "else messages may stay unread"
    ),
}


def contradictions(
    group: str, newcomer: ConsumerMember, other: ConsumerMember
) -> Iterator[GroupFinding]:
    """Yield a finding for each setting that two members disagree on, the most severe first."""
    mine, theirs = newcomer.profile, other.profile
    for kind, what, read in _PLAIN:
        a, b = read(mine), read(theirs)
        if a != b and (kind is not FindingKind.STRATEGY or (a and b)):
            yield _conflict(kind, group, (newcomer, f"{what} {a}"), (other, f"{what} {b}"))
        if kind is FindingKind.MESSAGE_MODEL and mine.subscriptions != theirs.subscriptions:
            yield _conflict(
                FindingKind.SUBSCRIPTION,
                group,
                (newcomer, _difference(mine, theirs)),
                (other, _difference(theirs, mine)),
            )


def conflicts_of_newcomer(
    group: str, newcomer: ConsumerMember, profiles: Profiles, now_ms: int
) -> Iterator[GroupFinding]:
    """Yield how a member that is about to join contradicts live members.

    Members with the same client id are left out: such a connection is taken for an earlier one of
    the same client.
    """
    for profile, members in islice(profiles.items(), MAX_PROFILES_COMPARED):
        if profile == newcomer.profile:
            continue
        other = _first(members.values(), now_ms, besides=newcomer.client_id)
        if other is not None:
            yield from contradictions(group, newcomer, other)


def conflicts_within(group: str, profiles: Profiles, now_ms: int) -> list[GroupFinding]:
    """Return how the live members of a group contradict each other: one pair for each kind."""
    if len(profiles) < 2:
        return []
    several = islice(profiles.values(), MAX_PROFILES_COMPARED)
    live = [_first(members.values(), now_ms) for members in several]
    conflicts: dict[str, GroupFinding] = {}
    for other, newcomer in combinations([member for member in live if member is not None], 2):
        if other.client_id == newcomer.client_id:
            continue
        for finding in contradictions(group, newcomer, other):
            conflicts.setdefault(finding.kind, finding)
    return list(conflicts.values())


def same_id(group: str, member: ConsumerMember, other: ConsumerMember) -> GroupFinding:
    """Return the finding for two live connections with one client id."""
    return make(
        FindingKind.CLIENT_ID,
        f"group {group} has two members with the client id {member.client_id}, from "
        f"{member.address} and from {other.address}: both work on the same queues and repeat each "
        "other's messages, while other queues may have none; give each its own instance name",
        members=[member.client_id, other.client_id],
    )


def make(
    kind: FindingKind,
    text: str,
    *,
    members: list[str] | None = None,
    topic: str | None = None,
    queue_id: int | None = None,
    since_ms: int = 0,
) -> GroupFinding:
    """Build a finding, with the link to the docs that explain it."""
    return GroupFinding(
        kind=kind,
        text=text,
        members=members or [],
        docs=f"{DOCS}consumer-groups.md#{ANCHORS[kind]}",
        topic=topic,
        queue_id=queue_id,
        since_ms=since_ms,
    )


def _conflict(
    kind: FindingKind,
    group: str,
    first: tuple[ConsumerMember, str],
    second: tuple[ConsumerMember, str],
) -> GroupFinding:
    (a, of_a), (b, of_b) = first, second
    return make(
        kind,
        f"the members of group {group} contradict each other: {a.text} has {of_a}, "
        f"{b.text} has {of_b}; {_CURES[kind]}",
        members=[a.client_id, b.client_id],
    )


def _difference(mine: Profile, theirs: Profile) -> str:
    only = sorted(mine.subscriptions - theirs.subscriptions)
    if not only:
        return "no other subscription"
    text = ", ".join(map(str, only))
    length = MAX_FINDING_TEXT_LENGTH // 2
    return f"subscribed {text if len(text) <= length else text[:length] + '...'}"


def _first(
    members: Iterable[ConsumerMember], now_ms: int, *, besides: str = ""
) -> ConsumerMember | None:
    return next(
        (member for member in members if member.is_live(now_ms) and member.client_id != besides),
        None,
    )


UNPULLED_SECONDS: Final = 30.0

_BY_INDEX: Final = frozenset({"AVG", "AVG_BY_CIRCLE"})
"""Strategies that start with the first member for each topic, so the last members are idle."""

_NAMED: Final = 5
"""The most members or topics that one message names."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The state of one queue at a check.

    Args:
        topic: the topic.
        queue_id: the queue in it.
        waiting: messages that the group has not consumed.
        alive: the monotonic time of the last sign that the queue is consumed.
    """

    topic: str
    queue_id: int
    waiting: int
    alive: float


def strategy_of(group: ConsumerGroup) -> str:
    """Return the strategy that all members have; empty if none is known or they differ."""
    strategies = {profile.strategy for profile in group.profiles} - {""}
    return strategies.pop() if len(strategies) == 1 else ""


def owner_by_average(
    queue: MessageQueue, queues: Sequence[MessageQueue], members: Sequence[str]
) -> str | None:
    """Return the member that the strategy AVG assigns a queue to.

    cf. AllocateMessageQueueAveragely

    Args:
        queue: the queue.
        queues: all queues of its topic, in order.
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
    """Return the finding for a group with more members than queues, or None.

    Members with different topics are left to the finding about their subscriptions.

    Args:
        group: the group.
        queues: the number of queues of each of its topics, over all brokers.
    """
    if group.is_broadcasting or not queues or group.topic_sets():
        return None
    strategy = strategy_of(group)
    if group.consume_type == ConsumeType.CONSUME_ACTIVELY and not strategy:
        return None
    members = sorted(group.ids)
    # STICKY balances all topics together. Other strategies start with the same member for every
    # topic, so the largest topic determines how many members get a queue.
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
    group: ConsumerGroup, queue: QueueStatus, now: float, owner: str | None
) -> GroupFinding:
    """Return the finding for a queue that nobody has pulled for ``UNPULLED_SECONDS``."""
    quiet = now - queue.alive
    last = group.pulls.get((queue.topic, queue.queue_id))
    before = f"; {last[0]} was the last to pull it" if last is not None else ""
    whose = f"; by the strategy it belongs to {owner}" if owner is not None else ""
    return make(
        FindingKind.UNPULLED_QUEUE,
        f"queue {queue.queue_id} of {queue.topic} has {_count(queue.waiting, 'message')} waiting, "
        f"and no live member of group {group.name} has pulled from it for {quiet:.0f} s{whose}"
        f"{before}; check that all members subscribe to the topic, that no handler hangs, and that "
        "no member has died",
        members=[] if owner is None else [owner],
        topic=queue.topic,
        queue_id=queue.queue_id,
    )


def blocked(
    group: ConsumerGroup, broker_name: str, committed: Callable[[str, str, int], int]
) -> list[GroupFinding]:
    """Return a finding for each queue of a broker in which a failing message blocks a member.

    Args:
        group: the group.
        broker_name: the broker's name.
        committed: returns the committed offset of a group, topic and queue. An offset beyond the
            message means that the message has been skipped since the heartbeat.
    """
    return [
        make(
            FindingKind.BLOCKED_QUEUE,
            f"queue {queue.queue_id} of {queue.topic} is blocked at offset {queue.offset}: message "
            f"{queue.msg_id} fails again and again at {member.text} of group {group.name}: "
            f"{queue.error}; repair the handler, or skip the message with `pocketmq group skip`",
            members=[member.client_id],
            topic=queue.topic,
            queue_id=queue.queue_id,
            since_ms=queue.since_ms,
        )
        for member, queue in group.blocked(broker_name)
        if committed(group.name, queue.topic, queue.queue_id) <= queue.offset
    ]


def queues_changed(group: str, topic: str, before: int, after: int) -> GroupFinding:
    """Return the finding for a topic whose number of queues changed while the group consumes it."""
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
    """Return the finding for a group's offset that went backwards."""
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


EVENT_LIFE_MS: Final = 600_000
REMIND_MS: Final = 300_000

EVENTS: Final = frozenset({FindingKind.OFFSET_BACKWARDS, FindingKind.QUEUES_CHANGED})
STATES: Final = frozenset(FindingKind) - EVENTS

_Key = tuple[str, str | None, int | None]


@dataclass(slots=True)
class _Reported:
    finding: GroupFinding
    logged_ms: int
    ends_ms: int | None  # both by the monotonic clock


class GroupIssues:
    """The findings of all groups.

    Args:
        clock: the time.
        limit: the most findings that are kept; further ones are dropped and not reported.

    Attributes:
        begun: counts the findings since the start, by kind.
    """

    __slots__ = ("_clock", "_count", "_groups", "_limit", "begun")

    def __init__(self, clock: Clock, *, limit: int = LIMITS.findings) -> None:
        self._clock = clock
        self._groups: dict[str, dict[_Key, _Reported]] = {}
        self._count = 0
        self._limit = limit
        self.begun: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._count

    def update(
        self, group: str, kinds: Container[str], findings: Iterable[GroupFinding]
    ) -> list[GroupFinding]:
        """Replace a group's states of these kinds with those a check has found.

        Return the findings to log: new ones, and those last logged ``REMIND_MS`` ago.
        """
        seen: set[_Key] = set()
        worth = []
        for finding in findings:
            seen.add(_key(finding))
            if self._note(group, finding, None):
                worth.append(finding)
        reported = self._groups.get(group, {})
        gone = [key for key in reported if key[0] in kinds and key not in seen]
        self._drop(group, gone)
        return worth

    def event(self, group: str, finding: GroupFinding) -> bool:
        """Keep an event of a group; return whether to log it."""
        return self._note(group, finding, monotonic_ms(self._clock) + EVENT_LIFE_MS)

    def of(self, group: str) -> list[GroupFinding]:
        """Return the current findings of a group."""
        return [reported.finding for reported in self._groups.get(group, {}).values()]

    def groups(self) -> list[str]:
        """Return the groups that have findings."""
        return list(self._groups)

    def counts(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield group, kind, the number of findings, and the start of the oldest in ms."""
        for group, reported in self._groups.items():
            since: dict[str, list[int]] = {}
            for report in reported.values():
                since.setdefault(report.finding.kind, []).append(report.finding.since_ms)
            for kind, times in since.items():
                yield group, kind, len(times), min(times)

    def sweep(self, group: str) -> None:
        """Remove a group's events that are older than ``EVENT_LIFE_MS``."""
        now_ms = monotonic_ms(self._clock)
        reported = self._groups.get(group, {})
        gone = [
            key
            for key, report in reported.items()
            if report.ends_ms is not None and report.ends_ms < now_ms
        ]
        self._drop(group, gone)

    def _note(self, group: str, finding: GroupFinding, ends_ms: int | None) -> bool:
        wall_ms, now_ms = self._clock.now_ms(), monotonic_ms(self._clock)
        key = _key(finding)
        report = self._groups.get(group, {}).get(key)
        if report is None:
            if self._count >= self._limit:
                return False
            self._count += 1
            self.begun[finding.kind] += 1
            finding.since_ms = finding.since_ms or wall_ms
            self._groups.setdefault(group, {})[key] = _Reported(finding, now_ms, ends_ms)
            return True
        finding.since_ms = report.finding.since_ms if ends_ms is None else wall_ms
        report.finding, report.ends_ms = finding, ends_ms
        if now_ms - report.logged_ms < REMIND_MS:
            return False
        report.logged_ms = now_ms
        return True

    def _drop(self, group: str, keys: list[_Key]) -> None:
        if not keys:
            return
        reported = self._groups[group]
        for key in keys:
            del reported[key]
        self._count -= len(keys)
        if not reported:
            del self._groups[group]


def is_conflict(finding: GroupFinding) -> bool:
    """Return whether a finding is a contradiction between members."""
    return finding.kind in CONFLICTS


def _key(finding: GroupFinding) -> _Key:
    return finding.kind, finding.topic, finding.queue_id
