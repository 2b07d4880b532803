"""The description of a consumer group: the answers of all brokers, merged.

A PocketMQ broker describes members, queues and problems. An Apache broker lists the connections and
the subscriptions of the group as a whole, so that all members appear to have the same
subscriptions. No I/O: decoded bodies are converted to the public classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from client.positions import instant, known_instant
from remoting.protocol.bodies import description as wire
from remoting.protocol.bodies.clients import ConsumerConnection
from remoting.protocol.queue import MessageQueue

OWNER_SECONDS = 60.0
"""Age in seconds of the last pull up to which its member counts as the queue's owner; a pull is
held for at most 30 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One consumer in a group.

    Attributes:
        address: ``ip:port`` from which it is connected to the broker.
        subscriptions: topic to tag expression.
        consume_type: ``CONSUME_ACTIVELY`` for pull consumers, ``CONSUME_PASSIVELY`` for push
            consumers.
        model: ``CLUSTERING`` or ``BROADCASTING``.
        start_from: where it starts a queue without a committed offset.
        strategy: the name of its allocation strategy; None if unknown.
        joined_at, last_heartbeat_at: None if the broker doesn't report them.
        ours: whether it is a PocketMQ client.
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
        begin, end: the offsets of the oldest message and of the next message.
        committed: the committed offset, which is the next to consume; None if nothing is committed.
        owner: the client id of the live member that reads it.
        lock_owner: the client id that holds its lock.
        last_pull_at, last_puller: time and client id of the last pull.
        blocked: the message that blocks it, or None.
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
    """A message that fails again and again and so blocks an orderly consumer's queue.

    Attributes:
        offset, message_id: the message.
        since: when it failed first; None if its member names no time.
        member: the client id that reported it.
        error: the error its handler raised.
    """

    offset: int
    message_id: str
    since: datetime | None
    member: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem of a group.

    Attributes:
        kind: see ``remoting.protocol.bodies.description.FindingKind``.
        text: the problem, the members, and what to do.
        members: the client ids concerned.
        docs: URL of the explanation.
        conflict: True: members contradict each other; False: any other warning.
    """

    kind: str
    text: str
    members: tuple[str, ...] = ()
    docs: str = ""
    conflict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A consumer group as reported by its brokers.

    Attributes:
        members: sorted by client id; a client id with two connections to one broker appears twice.
        problems: problems that the brokers found.
        queues: of the topics it subscribes to or has offsets in; empty if the brokers don't report
            them.
        complete: whether all brokers are PocketMQ brokers; Apache's report only connections.
    """

    group: str
    members: tuple[Member, ...] = ()
    problems: tuple[Problem, ...] = ()
    queues: tuple[QueueState, ...] = ()
    complete: bool = True

    @property
    def online(self) -> bool:
        """Whether the group has members now."""
        return bool(self.members)

    @property
    def owners(self) -> dict[MessageQueue, str]:
        """The client id of the live member that reads each queue."""
        return {state.queue: state.owner for state in self.queues if state.owner is not None}


def of_ours(
    group: str, broker: str, answer: wire.GroupDescriptionBody, now_ms: int
) -> GroupDescription:
    """Return the description from a PocketMQ broker's answer."""
    live = {member.client_id for member in answer.members}
    conflicts = [_problem(finding, conflict=True) for finding in answer.conflicts]
    warnings = [_problem(finding, conflict=False) for finding in answer.warnings]
    return GroupDescription(
        group=group,
        members=tuple(_member(member) for member in answer.members),
        problems=tuple(conflicts + warnings),
        queues=tuple(_queue(broker, queue, live, now_ms) for queue in answer.queues),
    )


def of_apache(group: str, answer: ConsumerConnection) -> GroupDescription:
    """Return the description from an Apache broker's answer.

    Every member gets the group's subscriptions.
    """
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
    """Merge the descriptions of several brokers; a member connected to several appears once."""
    members: list[Member] = []
    problems: dict[tuple[str, str], Problem] = {}
    queues: dict[MessageQueue, QueueState] = {}
    complete = True
    for part in parts:
        ids = {member.client_id for member in members}
        members += [member for member in part.members if member.client_id not in ids]
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
        joined_at=known_instant(info.joined_ms),
        last_heartbeat_at=known_instant(info.last_heartbeat_ms),
        ours=info.ours,
    )


def _queue(broker: str, info: wire.GroupQueueInfo, live: set[str], now_ms: int) -> QueueState:
    owner = None
    if info.lock_owner in live:
        owner = info.lock_owner
    elif now_ms - info.last_pull_ms <= OWNER_SECONDS * 1000:
        owner = info.last_puller if info.last_puller in live else None
    return QueueState(
        queue=MessageQueue(info.topic, broker, info.queue_id),
        begin=info.min_offset,
        end=info.max_offset,
        committed=info.committed if info.committed >= 0 else None,
        owner=owner,
        lock_owner=info.lock_owner,
        last_pull_at=known_instant(info.last_pull_ms),
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
