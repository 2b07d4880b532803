"""Checks of consumer groups: members, offsets, blocked queues, dead letters.

PocketMQ brokers report a group's problems themselves. For Apache's brokers the doctor requests
connections, offsets, and the running info of each member. Every remedy ends with the section of the
docs that explains it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from client.admin.descriptions import (
    GroupDescription,
    Problem,
    QueueState,
    merged,
    of_apache,
    of_ours,
)
from pocketmq.doctor.case import Case, CheckResult, failed, ok, warning
from pocketmq.output import count
from pocketmq.server.probe import NoAnswer
from remoting.protocol.bodies import description as wire
from remoting.protocol.bodies.clients import ConsumerConnection, ConsumerRunningInfo
from remoting.protocol.bodies.description import FindingKind
from remoting.protocol.bodies.group import SubscriptionGroupWrapper
from remoting.protocol.bodies.heartbeat import ConsumeFromWhere, MessageModel
from remoting.protocol.bodies.stats import ConsumeStats, TopicStatsTable
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.admin import TopicRequestHeader
from remoting.protocol.headers.group import (
    ConsumerGroupRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from remoting.protocol.headers.query import GetConsumeStatsRequestHeader
from remoting.protocol.names import RETRY_PREFIX, dlq_topic, is_system_group, is_tool_group
from remoting.protocol.own_codes import OwnRequestCode
from remoting.runtime import DOCS

PAGE: Final = f"{DOCS}consumer-groups.md"

MAX_GROUPS: Final = 200
"""Most groups checked if none is named: one request each to every broker."""

MAX_ASKED_MEMBERS: Final = 20
"""Most members whose running info is requested: a hanging member takes three seconds."""

SILENT_SECONDS: Final = 45.0
"""Seconds since the last heartbeat after which a member has missed one: the period is 30 s."""

_CHECKS: Final = {
    FindingKind.SUBSCRIPTION: "subscriptions",
    FindingKind.CONSUME_TYPE: "consume type",
    FindingKind.MESSAGE_MODEL: "message model",
    FindingKind.CONSUME_FROM_WHERE: "start",
    FindingKind.STRATEGY: "strategy",
    FindingKind.CLIENT_ID: "client id",
    FindingKind.IDLE_MEMBERS: "idle members",
    FindingKind.UNPULLED_QUEUE: "unpulled queue",
    FindingKind.BLOCKED_QUEUE: "blocked queue",
    FindingKind.OFFSET_BACKWARDS: "offset backwards",
    FindingKind.QUEUES_CHANGED: "queues changed",
}
"""Names of a broker's findings in the report; other kinds are reported under their own name."""


def all_groups(case: Case) -> Iterator[CheckResult]:
    """If no group is named, yield the problems of all groups that PocketMQ brokers report."""
    if case.group is not None:
        return
    tables = case.ask_masters(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupWrapper
    )
    known = {name for table in tables for name in table.subscription_group_table}
    names = sorted(name for name in known if not is_system_group(name) and not is_tool_group(name))
    wrong = 0
    for name in names[:MAX_GROUPS]:
        for problem in _describe(case, name).problems:
            wrong += 1
            yield _problem_result(problem)
    if names and not wrong:
        yield ok("groups", f"no problem in {count(min(len(names), MAX_GROUPS), 'group')}")
    if len(names) > MAX_GROUPS:
        text = f"{count(len(names) - MAX_GROUPS, 'more group')} not checked"
        yield warning("groups", text, "name one with --group")


def group(case: Case) -> Iterator[CheckResult]:
    """If a group is named, check it."""
    if case.group is None or not case.masters:
        return
    description = _describe(case, case.group)
    yield from _unreachable(case, case.group)
    if description.online:
        yield ok("group", f"{case.group} has {count(len(description.members), 'member')}")
    else:
        yield warning("group", f"{case.group} has no member online", "start a consumer of it")
    for problem in description.problems:
        yield _problem_result(problem)
    if not description.complete:
        yield from _idle_members(case, description)
    yield from _silent_members(description, case.clock.now_ms())
    yield from _endless_retries(case, description)
    yield from _without_offset(description)
    for address in case.masters.values():
        yield from _progress(case, case.group, address)
    yield from _dead_letters(case, description)


# Requests


def _describe(case: Case, name: str) -> GroupDescription:
    """Return the description of a group, merged from all brokers that answer."""
    now_ms = case.clock.now_ms()
    parts = [_described(case, broker, name, now_ms) for broker in case.masters]
    return merged(name, [part for part in parts if part is not None])


def _described(case: Case, broker: str, name: str, now_ms: int) -> GroupDescription | None:
    address = case.masters[broker]
    own = ConsumerGroupRequestHeader(consumer_group=name)
    code = OwnRequestCode.DESCRIBE_CONSUMER_GROUP
    try:
        return of_ours(
            name, broker, case.ask(address, code, wire.GroupDescriptionBody, own), now_ms
        )
    except NoAnswer as problem:
        if problem.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
    try:
        return of_apache(name, _connections(case, address, name))
    except NoAnswer:
        return GroupDescription(group=name, complete=False)


def _connections(case: Case, address: str, name: str) -> ConsumerConnection:
    header = ConsumerGroupRequestHeader(consumer_group=name)
    return case.ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerConnection, header)


def _unreachable(case: Case, name: str) -> Iterator[CheckResult]:
    for address in case.masters.values():
        try:
            _connections(case, address, name)
        except NoAnswer as problem:
            if problem.code != ResponseCode.CONSUMER_NOT_ONLINE:
                yield failed("group", str(problem), "look at the broker's log")


# Members


def _problem_result(problem: Problem) -> CheckResult:
    check = next((text for kind, text in _CHECKS.items() if kind == problem.kind), problem.kind)
    return warning(check, problem.text, f"see {problem.docs}")


def _idle_members(case: Case, description: GroupDescription) -> Iterator[CheckResult]:
    """Check for more members than queues at Apache's brokers, which don't report it."""
    members = description.members
    if any(member.model == MessageModel.BROADCASTING for member in members):
        return
    header = GetConsumeStatsRequestHeader(consumer_group=description.group)
    stats = case.ask_masters(RequestCode.GET_CONSUME_STATS, ConsumeStats, header)
    queues = Counter(queue.topic for one in stats for queue in one.offset_table)
    topics = {topic: count for topic, count in queues.items() if not topic.startswith(RETRY_PREFIX)}
    largest = max(topics.values(), default=0)
    if 0 < largest < len(members):
        yield warning(
            "idle members",
            f"{description.group} has {len(members)} members and its topics at most {largest}"
            f" queues: {len(members) - largest} of them get nothing",
            f"give the topic more queues, or run fewer members; see {PAGE}#one-owner-per-queue",
        )


def _silent_members(description: GroupDescription, now_ms: int) -> Iterator[CheckResult]:
    for member in description.members:
        at = member.last_heartbeat_at
        silent = 0.0 if at is None else now_ms / 1000 - at.timestamp()
        if silent > SILENT_SECONDS:
            yield warning(
                "silent member",
                f"{member.client_id} of {description.group} sent its last heartbeat "
                f"{silent:.0f} s ago",
                "its host may be down: its queues move to others up to 150 s after that; see "
                f"{PAGE}#clean-close-and-vanished-hosts",
            )


def _endless_retries(case: Case, description: GroupDescription) -> Iterator[CheckResult]:
    """Check for members that retry a failing ordered message endlessly, by their running info."""
    for member in description.members[:MAX_ASKED_MEMBERS]:
        header = GetConsumerRunningInfoRequestHeader(
            consumer_group=description.group, client_id=member.client_id
        )
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        info = next(case.ask_masters(code, ConsumerRunningInfo, header), None)
        if info is None:
            continue
        settings = info.properties
        ordered = settings.get("PROP_CONSUMEORDERLY") == "true"
        if ordered and settings.get("maxReconsumeTimes") in {"-1", str(2**31 - 1)}:
            yield warning(
                "endless retries",
                f"{member.client_id} of {description.group} consumes in order and retries a "
                "failing message endlessly: one message blocks its queue",
                "set max_retries (maxReconsumeTimes); see "
                f"{PAGE}#a-failing-ordered-message-stops-its-queue",
            )


# Offsets


def _without_offset(description: GroupDescription) -> Iterator[CheckResult]:
    """Check for queues with messages in which a group has committed nothing, by topic."""
    topics: dict[str, list[QueueState]] = {}
    for state in description.queues:
        if state.end > 0 and not state.queue.topic.startswith(RETRY_PREFIX):
            topics.setdefault(state.queue.topic, []).append(state)
    starts = {member.start_from for member in description.members}
    for topic, states in topics.items():
        missing = [state for state in states if state.committed is None]
        if not missing:
            continue
        text = (
            f"{description.group} has no committed offset in {len(missing)} of {len(states)} "
            f"queues of {topic} that hold messages"
        )
        if len(missing) < len(states) or ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET not in starts:
            section = "no-stored-offset-is-a-fact"
        else:
            section = "from-last-is-not-always-the-end"
        yield warning(
            "no offset",
            text,
            f"say where they begin: pocketmq group reset {description.group} --topic {topic} "
            f"--to latest --missing-only; see {PAGE}#{section}",
        )


def _progress(case: Case, name: str, address: str) -> Iterator[CheckResult]:
    header = GetConsumeStatsRequestHeader(consumer_group=name)
    try:
        table = case.ask(address, RequestCode.GET_CONSUME_STATS, ConsumeStats, header).offset_table
    except NoAnswer as problem:
        yield warning("offsets", str(problem), "look at the broker's log")
        return
    if not table:
        yield warning(
            "offsets",
            f"{address} has no committed offset of {name}",
            "nothing to do if it never consumed; else look for config/consumerOffset.json in "
            f"the broker's store; see {PAGE}#no-stored-offset-is-a-fact",
        )
        return
    unread = sum(max(o.broker_offset - o.consumer_offset, 0) for o in table.values())
    yield ok("offsets", f"{name} is {count(unread, 'message')} behind at {address}")
    ahead = [str(queue) for queue, o in table.items() if o.consumer_offset > o.broker_offset]
    if ahead:
        yield failed(
            "offsets",
            f"{name} is ahead of what {', '.join(ahead)} hold",
            f"the store was replaced or cut: pocketmq group reset {name}",
        )


def _dead_letters(case: Case, description: GroupDescription) -> Iterator[CheckResult]:
    name = description.group
    header = TopicRequestHeader(topic=dlq_topic(name))
    sent_back = {state.queue: state.committed or 0 for state in description.queues}
    waiting = 0
    for stats in case.ask_masters(RequestCode.GET_TOPIC_STATS_INFO, TopicStatsTable, header):
        for queue, held in stats.offset_table.items():
            begin = max(held.min_offset, sent_back.get(queue, 0))
            waiting += max(held.max_offset - begin, 0)
    if waiting:
        yield warning(
            "dead letters",
            f"{name} has {count(waiting, 'dead letter')} that were not sent back",
            f"pocketmq message dlq list {name}, and redrive when the cause is fixed; see "
            f"{PAGE}#a-failing-ordered-message-stops-its-queue",
        )
    else:
        yield ok("dead letters", f"{name} has none")
