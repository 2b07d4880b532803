"""Conflicts between the members of a group, detected on joining or reported by PocketMQ brokers.

A PocketMQ broker compares a new member with its group when it joins, and may refuse it, naming the
conflicting member. An Apache broker never refuses. There the new member compares itself, before it
joins, with the group data that the broker keeps, which is from the last heartbeat of any member.

A broker also detects problems that a member can't: other members differ, or a queue has no owner.
Members request these periodically, and soon after a change of the group, and report each problem
once. A problem that ended and occurs again is reported again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Mapping

from client.errors import GroupConflict, PocketMQError
from client.events import Event, GroupTrouble, MembersDiffer
from client.group.view import describe
from client.limits import WATCH_FIRST, WATCH_PERIOD
from client.network.context import ClientContext
from client.network.heartbeat import Membership
from client.network.routes import MASTER_ID
from remoting.errors import RemotingError
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.clients import ConsumerConnection
from remoting.protocol.bodies.description import FindingKind, GroupDescriptionBody, GroupFinding
from remoting.protocol.bodies.heartbeat import ConsumerData, SubscriptionData
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import BodyError
from remoting.protocol.headers.group import ConsumerGroupRequestHeader
from remoting.protocol.names import retry_topic
from remoting.protocol.own_codes import CONFLICT
from remoting.runtime import DOCS
from remoting.runtime.log import Log
from remoting.runtime.tasks import wait_at_most

_log = Log("client")

_ONLINE_OR_NOT = frozenset({ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE})

SUBSCRIPTION_DOCS = f"{DOCS}consumer-groups.md#one-group-one-subscription"


def contradiction(mine: ConsumerData, theirs: ConsumerConnection) -> GroupFinding | None:
    """Return the most severe difference between a member and its group's data; None: none."""
    for kind, own, other in (
        (FindingKind.MESSAGE_MODEL, mine.message_model, theirs.message_model),
        (FindingKind.CONSUME_TYPE, mine.consume_type, theirs.consume_type),
        (FindingKind.CONSUME_FROM_WHERE, mine.consume_from_where, theirs.consume_from_where),
    ):
        if other is not None and own != other:
            return GroupFinding(kind=kind, text=f"this one is {own}, the other {other}")
    retry = retry_topic(mine.group_name)
    own_topics = _subscribed_topics(mine.subscription_data_set, retry)
    others = _subscribed_topics(theirs.subscription_table.values(), retry)
    for topic in sorted(own_topics.keys() | others.keys()):
        if own_topics.get(topic) != others.get(topic):
            return GroupFinding(
                kind=FindingKind.SUBSCRIPTION,
                text=f"this one wants {_subscription_text(own_topics.get(topic))} of topic {topic},"
                f" the other {_subscription_text(others.get(topic))}",
            )
    return None


def _subscribed_topics(
    subscriptions: Iterable[SubscriptionData], retry: str
) -> Mapping[str, object]:
    return {
        subscription.topic: frozenset(subscription.tags_set) or subscription.sub_string or "*"
        for subscription in subscriptions
        if subscription.topic != retry
    }


def _subscription_text(wanted: object) -> str:
    if wanted is None:
        return "nothing"
    return " || ".join(sorted(wanted)) if isinstance(wanted, frozenset) else str(wanted)


def refusal(answer: Command, group: str, broker: str) -> GroupConflict | None:
    """Return the error if a broker refused a member's first heartbeat; None: it did not."""
    conflict = answer.fields.get(CONFLICT)
    if conflict is None:
        return None
    try:
        finding = decode(GroupFinding, conflict.encode())
    except BodyError:
        finding = GroupFinding(text=answer.remark or "the broker refuses this member")
    return _conflict(finding, group, broker)


def _conflict(finding: GroupFinding, group: str, broker: str | None = None) -> GroupConflict:
    first, second, *_ = [*finding.members, "", ""]
    docs = finding.docs or SUBSCRIPTION_DOCS
    return GroupConflict(
        finding.text,
        members=(first, second),
        kind=finding.kind,
        group=group,
        topic=finding.topic,
        broker=broker,
        hint=f"give all members of a group the same settings, or set on_conflict; see {docs}",
    )


async def join(
    context: ClientContext, member: Membership, addresses: Collection[str]
) -> list[GroupConflict]:
    """Join a group at all brokers, unless a conflict forbids it.

    A broker that can't be reached is joined by a later heartbeat.

    Returns:
        The conflicts to report (``on_conflict="warn"``).

    Raises:
        GroupConflict: a member differs, and ``on_conflict`` is "reject", or one of the two is
            broadcasting and the other clustering, or a broker refused. No broker has the member.
    """
    mine = member.consumer_data()
    checks = await asyncio.gather(*(_check_at(context, mine, address) for address in addresses))
    conflicts = [conflict for conflict in checks if conflict is not None]
    for conflict in conflicts:
        if member.on_conflict == "reject" or conflict.kind == FindingKind.MESSAGE_MODEL:
            raise conflict
    refusals = await asyncio.gather(*(_join_at(context, member, address) for address in addresses))
    for refusal in refusals:
        if refusal is not None:
            await context.heartbeats.unregister(consumer_group=member.group)
            raise refusal
    return conflicts if member.on_conflict == "warn" else []


async def _join_at(
    context: ClientContext, member: Membership, address: str
) -> GroupConflict | None:
    try:
        answer = await context.heartbeats.join(address, member)
    except RemotingError as error:
        _log.warning("not joined", group=member.group, broker=address, error=str(error))
        return None
    refused = refusal(answer, member.group, address)
    if refused is None and answer.code != ResponseCode.SUCCESS:
        _log.warning("not joined", group=member.group, broker=address, error=answer.remark)
    return refused


async def _check_at(
    context: ClientContext, mine: ConsumerData, address: str
) -> GroupConflict | None:
    try:
        if await describe(context, address, mine.group_name) is not None:
            return None
        theirs = await _members_at(context, mine.group_name, address)
    except (PocketMQError, BodyError) as error:
        _log.warning(
            "not compared with the other members",
            group=mine.group_name,
            broker=address,
            error=str(error),
        )
        return None
    ids = [connection.client_id for connection in theirs.connection_set]
    other = next((client_id for client_id in ids if client_id != context.client_id), None)
    difference = contradiction(mine, theirs) if other is not None else None
    if other is None or difference is None:
        return None
    finding = GroupFinding(
        kind=difference.kind,
        text=f"members {context.client_id} and {other} differ: {difference.text}",
        members=[context.client_id, other],
    )
    return _conflict(finding, mine.group_name, address)


async def _members_at(context: ClientContext, group: str, address: str) -> ConsumerConnection:
    answer = await context.remote.call(
        address,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        ConsumerGroupRequestHeader(consumer_group=group),
        accept=_ONLINE_OR_NOT,
        group=group,
    )
    if answer.code != ResponseCode.SUCCESS:
        return ConsumerConnection()
    return decode(ConsumerConnection, answer.body)


class GroupProblemReporter:
    """Reports the problems that PocketMQ brokers detect in one group.

    Args:
        topics: returns the member's topics.
        tell: passes events to the application.
        conflicts: whether to report conflicts between members.
    """

    def __init__(
        self,
        context: ClientContext,
        group: str,
        topics: Callable[[], Iterable[str]],
        tell: Callable[[Event], None],
        *,
        conflicts: bool,
    ) -> None:
        self._context = context
        self._group = group
        self._topics = topics
        self._tell = tell
        self._conflicts = conflicts
        self._reported: frozenset[tuple[object, ...]] = frozenset()
        self._not_ours: set[str] = set()
        self._wake = asyncio.Event()

    def soon(self) -> None:
        """Query the brokers soon, because the group has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Query the brokers periodically until cancelled."""
        spread = random.Random()  # noqa: S311 - spreads load
        while True:
            await asyncio.sleep(WATCH_FIRST)
            self._wake.clear()
            answers = await asyncio.gather(*(self._ask(address) for address in self._masters()))
            self.take([answer for answer in answers if answer is not None])
            await wait_at_most(WATCH_PERIOD * spread.uniform(0.8, 1.2), self._wake)

    async def _ask(self, address: str) -> GroupDescriptionBody | None:
        try:
            answer = await describe(self._context, address, self._group)
        except PocketMQError as error:
            _log.debug("group not watched", group=self._group, error=str(error))
            return None
        if answer is None:
            self._not_ours.add(address)
        return answer

    def _masters(self) -> list[str]:
        routes = [self._context.routes.table.get(topic) for topic in self._topics()]
        addresses = {
            ids[MASTER_ID]
            for route in routes
            if route is not None
            for ids in route.brokers.values()
            if MASTER_ID in ids
        }
        return sorted(addresses - self._not_ours)

    def take(self, descriptions: Iterable[GroupDescriptionBody]) -> None:
        """Report the problems that were not in the previous descriptions."""
        findings: dict[tuple[object, ...], tuple[GroupFinding, bool]] = {}
        for description in descriptions:
            for finding in description.conflicts if self._conflicts else ():
                findings.setdefault(_key(finding), (finding, True))
            for finding in description.warnings:
                findings.setdefault(_key(finding), (finding, False))
        for key, (finding, conflict) in findings.items():
            if key not in self._reported:
                self._report(finding, conflict=conflict)
        self._reported = frozenset(findings)

    def _report(self, finding: GroupFinding, *, conflict: bool) -> None:
        _log.warning(
            "a broker finds something wrong",
            group=self._group,
            kind=finding.kind,
            text=finding.text,
            docs=finding.docs,
        )
        # The same event is used when the member itself detects a conflict on joining.
        if conflict:
            self._tell(MembersDiffer(self._group, _conflict(finding, self._group)))
            return
        self._tell(
            GroupTrouble(
                group=self._group,
                kind=finding.kind,
                text=finding.text,
                members=tuple(finding.members),
                topic=finding.topic,
                queue_id=finding.queue_id,
                docs=finding.docs,
            )
        )


def _key(finding: GroupFinding) -> tuple[object, ...]:
    """Return the identity of a problem, which ignores the text of the finding."""
    return (finding.kind, finding.topic, finding.queue_id, tuple(sorted(finding.members)))
