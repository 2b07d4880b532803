"""The description of one consumer group: the answers of all brokers, merged.

A broker of ours tells everything about its part of a group. An Apache broker tells who is connected
and what the group as a whole subscribes, so that the members look alike whatever they really said.
Pure: bodies come in, views come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from client.positions import instant
from remoting.protocol.bodies import description as wire
from remoting.protocol.bodies.clients import ConsumerConnection
from remoting.protocol.queue import MessageQueue

OWNER_SECONDS = 60.0
"""A member whose last pull of a queue is older doesn't own it: a pull is held 30 s at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One consumer of a group.

    Attributes:
        address: ``ip:port`` as a broker sees it.
        subscriptions: topic to expression.
        consume_type: ``CONSUME_ACTIVELY`` pulls, ``CONSUME_PASSIVELY`` is pushed to.
        model: ``CLUSTERING`` or ``BROADCASTING``.
        start_from: where it begins a queue without an offset.
        strategy: the name of its allocation strategy, as far as it tells.
        joined_at, last_heartbeat_at: None when the broker doesn't tell.
        ours: a client of PocketMQ.
    """

    client_id: str
    address: str
    language: str | None = None
    version: int = 0
    subscriptions: Mapping[str, str] = field(default_factory=dict)
    consume_type: str | None = None
    model: str | None = None
    start_from: str | None = None
    strategy: str | None = None
    joined_at: datetime | None = None
    last_heartbeat_at: datetime | None = None
    ours: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """A group's state in one queue.

    Attributes:
        begin, end: the first offset that is there, and the one the next message will get.
        committed: the offset the group wants next; None: it has committed nothing.
        owner: the client id of the live member that reads it.
        lock_owner: the client id that holds its lock.
        last_pull_at, last_puller: when a member asked for messages last, and which.
        blocked: what stops it, None for nothing.
    """

    queue: MessageQueue
    begin: int
    end: int
    committed: int | None
    owner: str | None = None
    lock_owner: str | None = None
    last_pull_at: datetime | None = None
    last_puller: str | None = None
    blocked: Blockage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blockage:
    """A message that fails again and again, and stops an orderly consumer's queue.

    Attributes:
        offset, message_id: of the message.
        since: when it failed first.
        member: the client id that says so.
        error: what its handler raised.
    """

    offset: int
    message_id: str
    since: datetime
    member: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem of a group.

    Attributes:
        kind: see ``remoting.protocol.bodies.description.FindingKind``.
        text: what, with whom, and what to do.
        members: the client ids it is about.
        docs: where it is explained.
        conflict: members contradict each other; else it is a warning of another kind.
    """

    kind: str
    text: str
    members: tuple[str, ...] = ()
    docs: str = ""
    conflict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A consumer group as its brokers see it.

    Attributes:
        members: sorted by client id; one client id on two connections is there twice.
        problems: what its brokers find wrong with it.
        queues: of the topics it subscribes or has offsets in; empty where brokers don't tell.
        complete: every broker told everything; False with one of Apache's among them.
    """

    group: str
    members: tuple[Member, ...] = ()
    problems: tuple[Problem, ...] = ()
    queues: tuple[QueueState, ...] = ()
    complete: bool = True

    @property
    def online(self) -> bool:
        """Whether it has a member now."""
        return bool(self.members)

    @property
    def owners(self) -> dict[MessageQueue, str]:
        """The queues that a live member reads, and the client ids."""
        return {state.queue: state.owner for state in self.queues if state.owner is not None}


def of_ours(
    group: str, broker: str, answer: wire.GroupDescriptionBody, now: datetime
) -> GroupDescription:
    """The description by a broker of ours."""
    live = {member.client_id for member in answer.members}
    conflicts = [_problem(finding, conflict=True) for finding in answer.conflicts]
    warnings = [_problem(finding, conflict=False) for finding in answer.warnings]
    return GroupDescription(
        group=group,
        members=tuple(_member(member) for member in answer.members),
        problems=tuple(conflicts + warnings),
        queues=tuple(_queue(broker, queue, live, now) for queue in answer.queues),
    )


def of_apache(group: str, answer: ConsumerConnection) -> GroupDescription:
    """The description by an Apache broker: its members all have the subscriptions of the group."""
    subscriptions = {
        topic: subscription.sub_string for topic, subscription in answer.subscription_table.items()
    }
    members = tuple(
        Member(
            client_id=connection.client_id,
            address=connection.client_addr,
            language=connection.language,
            version=connection.version,
            subscriptions=subscriptions,
            consume_type=answer.consume_type,
            model=answer.message_model,
            start_from=answer.consume_from_where,
        )
        for connection in answer.connection_set
    )
    return GroupDescription(group=group, members=members, complete=False)


def merged(group: str, parts: Iterable[GroupDescription]) -> GroupDescription:
    """The answers of several brokers as one: a member that is known to each counts once."""
    members: list[Member] = []
    problems: dict[tuple[str, str], Problem] = {}
    queues: dict[MessageQueue, QueueState] = {}
    complete = True
    for part in parts:
        known = {member.client_id for member in members}
        members += [member for member in part.members if member.client_id not in known]
        for problem in part.problems:
            problems.setdefault((problem.kind, problem.text), problem)
        queues |= {state.queue: state for state in part.queues}
        complete = complete and part.complete
    return GroupDescription(
        group=group,
        members=tuple(sorted(members, key=lambda member: (member.client_id, member.address))),
        problems=tuple(problems.values()),
        queues=tuple(queues[queue] for queue in sorted(queues)),
        complete=complete,
    )


def _member(info: wire.GroupMemberInfo) -> Member:
    return Member(
        client_id=info.client_id,
        address=info.client_addr,
        language=info.language,
        version=info.version,
        subscriptions={one.topic: one.sub_string for one in info.subscriptions},
        consume_type=info.consume_type,
        model=info.message_model,
        start_from=info.consume_from_where,
        strategy=info.strategy or None,
        joined_at=_moment(info.joined_ms),
        last_heartbeat_at=_moment(info.last_heartbeat_ms),
        ours=info.ours,
    )


def _queue(broker: str, info: wire.GroupQueueInfo, live: set[str], now: datetime) -> QueueState:
    pulled = _moment(info.last_pull_ms)
    owner = None
    if info.lock_owner in live:
        owner = info.lock_owner
    elif pulled is not None and (now - pulled).total_seconds() <= OWNER_SECONDS:
        owner = info.last_puller if info.last_puller in live else None
    return QueueState(
        queue=MessageQueue(info.topic, broker, info.queue_id),
        begin=info.min_offset,
        end=info.max_offset,
        committed=info.committed if info.committed >= 0 else None,
        owner=owner,
        lock_owner=info.lock_owner,
        last_pull_at=pulled,
        last_puller=info.last_puller,
        blocked=_blockage(info),
    )


def _blockage(info: wire.GroupQueueInfo) -> Blockage | None:
    if info.blocked is None:
        return None
    return Blockage(
        offset=info.blocked.offset,
        message_id=info.blocked.msg_id,
        since=instant(info.blocked.since_ms),
        member=info.blocked_by or "",
        error=info.blocked.error,
    )


def _problem(finding: wire.GroupFinding, *, conflict: bool) -> Problem:
    return Problem(
        kind=finding.kind,
        text=finding.text,
        members=tuple(finding.members),
        docs=finding.docs,
        conflict=conflict,
    )


def _moment(timestamp_ms: int) -> datetime | None:
    return instant(timestamp_ms) if timestamp_ms > 0 else None
