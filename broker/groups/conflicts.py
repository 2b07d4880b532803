"""How members of a consumer group contradict each other, in sentences. Pure.

All members of a group have to subscribe the same, in the same way: RocketMQ takes that for granted,
and messages stay unread when it isn't so. Only members that are heard of regularly count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations, islice
from typing import TYPE_CHECKING, Final

from broker.groups.members import Member, Profile
from broker.limits import MAX_FINDING_TEXT_LENGTH, MAX_PROFILES_COMPARED
from remoting.docs import DOCS
from remoting.protocol.bodies.description import FindingKind, GroupFinding

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
"""Where the docs explain a finding."""

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
"""How log lines begin that tell a finding."""

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
"""The findings that are between members."""

Profiles = Mapping[Profile, Mapping["Connection", Member]]

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
        "else messages stay unread"
    ),
}


def contradictions(group: str, newcomer: Member, other: Member) -> Iterator[GroupFinding]:
    """What two members don't agree in, the worst first."""
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


def against_others(
    group: str, newcomer: Member, profiles: Profiles, now_ms: int
) -> Iterator[GroupFinding]:
    """How a member that wants to join contradicts live ones that are there.

    Another connection with its own client id is taken for its own, before it reconnected.
    """
    for profile, members in islice(profiles.items(), MAX_PROFILES_COMPARED):
        if profile == newcomer.profile:
            continue
        other = _first(members.values(), now_ms, besides=newcomer.client_id)
        if other is not None:
            yield from contradictions(group, newcomer, other)


def within(group: str, profiles: Profiles, now_ms: int) -> list[GroupFinding]:
    """How the live members of a group contradict each other: of each kind the first pair."""
    if len(profiles) < 2:
        return []
    several = islice(profiles.values(), MAX_PROFILES_COMPARED)
    live = [_first(members.values(), now_ms) for members in several]
    found: dict[str, GroupFinding] = {}
    for other, newcomer in combinations([member for member in live if member is not None], 2):
        if other.client_id == newcomer.client_id:
            continue
        for finding in contradictions(group, newcomer, other):
            found.setdefault(finding.kind, finding)
    return list(found.values())


def same_id(group: str, one: Member, other: Member) -> GroupFinding:
    """Two live connections with one client id."""
    return make(
        FindingKind.CLIENT_ID,
        f"group {group} has two members with the client id {one.client_id}, from {one.address} "
        f"and from {other.address}: both work on the same queues and repeat each other's "
        "messages, while other queues may have none; give each its own instance name",
        members=[one.client_id, other.client_id],
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
    """A finding with the place of the docs that explains it."""
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
    kind: FindingKind, group: str, one: tuple[Member, str], other: tuple[Member, str]
) -> GroupFinding:
    (a, of_a), (b, of_b) = one, other
    return make(
        kind,
        f"the members of group {group} contradict each other: {a.text} has {of_a}, "
        f"{b.text} has {of_b}; {_CURES[kind]}",
        members=[a.client_id, b.client_id],
    )


def _difference(mine: Profile, theirs: Profile) -> str:
    only = sorted(mine.subscriptions - theirs.subscriptions)
    if not only:
        return "no subscription beside"
    text = ", ".join(map(str, only))
    return "subscribed " + _shortened(text)


def _shortened(text: str) -> str:
    most = MAX_FINDING_TEXT_LENGTH // 2
    return text if len(text) <= most else f"{text[:most]}..."


def _first(members: Iterable[Member], now_ms: int, *, besides: str = "") -> Member | None:
    return next(
        (one for one in members if one.is_live(now_ms) and one.client_id != besides),
        None,
    )
