"""Monitoring of consumer groups: reports their problems, and notifies members of changes.

Conflicts between members are checked on the heartbeats that may cause them. Everything else is
checked in rounds over all groups. A round begins at most every 10 s and is split into steps, so
that it doesn't block the event loop. Problems are kept in ``state.findings``, which the log, the
metrics and DESCRIBE_CONSUMER_GROUP use.

The first change of a group notifies its members at once. Further changes within ``NOTIFY_SECONDS``
are merged into one notification. Each iteration of the event loop notifies a limited number of
members, so a group of thousands doesn't delay other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

import structlog

from broker.groups import health
from broker.groups.consumers import ConsumerGroup
from broker.groups.health import CONFLICTS, STATES, TITLES, QueueStatus
from broker.limits import MAX_QUEUES_WATCHED
from broker.state import BrokerState
from remoting.errors import RemotingError
from remoting.protocol import names
from remoting.protocol.bodies.description import FindingKind, GroupFinding
from remoting.protocol.bodies.heartbeat import ConsumeType
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.group import ConsumerGroupRequestHeader
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import RateLimitedLog

if TYPE_CHECKING:
    pass


ROUND_SECONDS: Final = 10.0
STEP_SECONDS: Final = 0.5
STEP_QUEUES: Final = 512
"""Queues checked in one step, which takes about 2 ms."""

_log = structlog.get_logger("broker")


@dataclass(slots=True)
class _Seen:
    """The state of a group at the last check."""

    group: ConsumerGroup
    queues: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)
    """Topic and queue -> committed offset, and monotonic time of the last sign of a consumer."""
    queue_nums: dict[str, int] = field(default_factory=dict)


class GroupMonitor:
    """Checks the groups of one broker."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._seen: dict[str, _Seen] = {}
        self._pending: list[str] = []
        self._next_round = float("-inf")
        self._logs: dict[str, RateLimitedLog] = {}

    def step(self, budget: int = STEP_QUEUES) -> None:
        """Check the next groups of the round; ``budget`` limits the groups and queues checked."""
        state = self._state
        now = state.clock.monotonic()
        if not self._pending and now >= self._next_round:
            self._next_round = now + ROUND_SECONDS
            self._pending = list({*state.consumers.groups, *self._seen, *state.findings.groups()})
        while self._pending and budget > 0:
            budget -= 1 + self.check(self._pending.pop())

    def check(self, name: str) -> int:
        """Check one group now; return how many of its queues were checked."""
        state = self._state
        state.findings.sweep(name)
        group = state.consumers.groups.get(name)
        if group is None:
            self._seen.pop(name, None)
            state.findings.update(name, STATES, ())
            return 0
        seen = self._seen.get(name)
        if seen is None or seen.group is not group:
            seen = self._seen[name] = _Seen(group)
        self._check_queue_nums(seen)
        queues = self._check_queues(seen)
        self._found(name, STATES, self._states(group, queues))
        return len(queues)

    def check_conflicts(self, name: str) -> None:
        """Check a group for conflicts between members, after they changed."""
        group = self._state.consumers.groups.get(name)
        conflicts = [] if group is None else self._conflicts(group)
        self._found(name, CONFLICTS, conflicts)

    def happened(self, group: str, finding: GroupFinding, **context: object) -> None:
        """Report an event of a group; ``context`` is added to the log line."""
        if self._state.findings.event(group, finding):
            self._log_finding(group, finding, **context)

    def _states(self, group: ConsumerGroup, queues: list[QueueStatus]) -> Iterator[GroupFinding]:
        yield from self._conflicts(group)
        idle = self._idle(group)
        if idle is not None:
            yield idle
        state = self._state
        now = state.clock.monotonic()
        for queue in queues:
            # Finding the owner is slow, so do it only for the few queues that are not pulled.
            if queue.waiting > 0 and now - queue.alive >= health.UNPULLED_SECONDS:
                yield health.unpulled(group, queue, now, self._owner(group, queue))
        yield from health.blocked(group, state.config.broker_name, state.offsets.query)

    def _conflicts(self, group: ConsumerGroup) -> list[GroupFinding]:
        conflicts = health.conflicts_within(group.name, group.profiles, self._state.monotonic_ms)
        for client_id in group.contested:
            members = list(group.ids.get(client_id, {}).values())
            if len(members) > 1:
                conflicts.append(health.same_id(group.name, members[0], members[1]))
                break
        return conflicts

    # queues

    def _check_queue_nums(self, seen: _Seen) -> None:
        for topic in self._topics(seen.group):
            after = topic.read_queue_nums
            before = seen.queue_nums.get(topic.topic_name, after)
            seen.queue_nums[topic.topic_name] = after
            if before != after:
                name = seen.group.name
                self.happened(
                    name,
                    health.queues_changed(name, topic.topic_name, before, after),
                    before=before,
                    after=after,
                )

    def _check_queues(self, seen: _Seen) -> list[QueueStatus]:
        """Return the status of the group's queues here, its retry queues included."""
        group = seen.group
        if group.is_broadcasting:
            return []
        retry = self._state.topics.get(names.retry_topic(group.name))
        keys = [
            (topic.topic_name, queue_id)
            for topic in [*self._topics(group), *([] if retry is None else [retry])]
            if topic.perm & names.PERM_READ
            for queue_id in range(min(topic.read_queue_nums, MAX_QUEUES_WATCHED))
        ][:MAX_QUEUES_WATCHED]
        before, seen.queues = seen.queues, {}
        return [
            queue
            for key in keys
            if (queue := self._check_queue(seen, key, before.get(key))) is not None
        ]

    def _check_queue(
        self, seen: _Seen, key: tuple[str, int], before: tuple[int, float] | None
    ) -> QueueStatus | None:
        state, group = self._state, seen.group
        topic, queue_id = key
        now, now_ms = state.clock.monotonic(), state.monotonic_ms
        committed = state.offsets.query(group.name, topic, queue_id)
        pull = group.pulls.get(key)
        if group.consume_type == ConsumeType.CONSUME_ACTIVELY and pull is None and committed < 0:
            return None  # A client that assigns queues itself may leave some out on purpose.
        waiting = state.store.queries.max_offset(topic, queue_id) - max(
            committed, state.store.queries.min_offset(topic, queue_id), 0
        )
        alive = now
        if before is not None and before[0] == committed and waiting > 0:
            alive = before[1]
            if pull is not None and group.is_live(pull[0], now_ms):
                alive = max(alive, pull[1])
            owner = state.locks.owner(group.name, state.message_queue(topic, queue_id), now_ms)
            if owner is not None and group.is_live(owner, now_ms):
                alive = now
        seen.queues[key] = (committed, alive)
        return QueueStatus(topic, queue_id, waiting, alive)

    def _owner(self, group: ConsumerGroup, queue: QueueStatus) -> str | None:
        if health.strategy_of(group) != "AVG":
            return None
        queues = self._spread(queue.topic)
        if queues is None:
            return None
        own = self._state.message_queue(queue.topic, queue.queue_id)
        return health.owner_by_average(own, sorted(queues), group.sharing(queue.topic))

    def _idle(self, group: ConsumerGroup) -> GroupFinding | None:
        own = {
            topic.topic_name: topic.read_queue_nums
            for topic in self._topics(group)
            if topic.perm & names.PERM_READ
        }
        if health.idle_members(group, own) is None:
            return None
        # Other brokers may have more queues of these topics.
        everywhere: dict[str, int] = {}
        for topic in group.subscriptions:
            if topic == names.retry_topic(group.name):
                continue
            queues = self._spread(topic)
            if queues is None:
                return None
            everywhere[topic] = len(queues)
        return health.idle_members(group, everywhere)

    def _spread(self, topic: str) -> list[MessageQueue] | None:
        state = self._state
        if state.spread is not None:
            return state.spread.queues(topic)
        config = state.topics.get(topic)
        nums = 0 if config is None else config.read_queue_nums
        return [state.message_queue(topic, queue_id) for queue_id in range(nums)]

    def _topics(self, group: ConsumerGroup) -> Iterator[TopicConfig]:
        """Yield the subscribed topics that exist at this broker, without the retry topic."""
        retry = names.retry_topic(group.name)
        for name in group.subscriptions:
            topic = self._state.topics.get(name)
            if topic is not None and name != retry:
                yield topic

    # reporting

    def _found(
        self, group: str, kinds: frozenset[FindingKind], findings: Iterable[GroupFinding]
    ) -> None:
        for finding in self._state.findings.update(group, kinds, findings):
            self._log_finding(group, finding)

    def _log_finding(self, group: str, finding: GroupFinding, **context: object) -> None:
        log = self._logs.get(finding.kind)
        if log is None:
            log = RateLimitedLog(self._state.clock, _log.warning, burst=1)
            self._logs[finding.kind] = log
        if finding.topic is not None:
            context["topic"] = finding.topic
        if finding.queue_id is not None:
            context["queue"] = finding.queue_id
        if finding.members:
            context["members"] = " ".join(finding.members)
        log.write(
            TITLES[FindingKind(finding.kind)],
            group=group,
            **context,
            reason=finding.text,
            docs=finding.docs,
        )


NOTIFY_SECONDS: Final = 0.1
NOTIFIED_AT_ONCE: Final = 128
"""Members notified in one iteration of the event loop, which takes about 2 ms."""

CallLater = Callable[[float, Callable[[], None]], object]


def call_later(delay: float, action: Callable[[], None]) -> object:
    """Schedule ``action`` on the running loop after ``delay`` seconds."""
    return asyncio.get_running_loop().call_later(delay, action)


class GroupNotifier:
    """Notifies members of groups that their group has changed.

    Args:
        state: the groups and their members.
        monitor: checks a group for conflicts after a member left.
        call_later: schedules a call after a number of seconds.
    """

    __slots__ = (
        "_call_later",
        "_changed",
        "_monitor",
        "_next_round",
        "_round",
        "_scheduled",
        "_state",
    )

    def __init__(
        self, state: BrokerState, monitor: GroupMonitor, call_later: CallLater = call_later
    ) -> None:
        self._state = state
        self._monitor = monitor
        self._call_later = call_later
        self._changed: dict[str, bool] = {}
        self._round: Iterator[None] | None = None
        self._next_round = float("-inf")
        self._scheduled = False

    def changed(self, group: str, *, left: bool = False) -> None:
        """Schedule the notification of a group; ``left`` tells that a member left."""
        self._changed[group] = left or self._changed.get(group, False)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        rest = 0.0 if self._round else self._next_round - self._state.clock.monotonic()
        self._scheduled = True
        self._call_later(max(rest, 0.0), self._continue_round)

    def _continue_round(self) -> None:
        self._scheduled = False
        if self._round is None:
            self._next_round = self._state.clock.monotonic() + NOTIFY_SECONDS
            changed, self._changed = self._changed, {}
            self._round = self._notify(changed)
        if sum(1 for _ in islice(self._round, NOTIFIED_AT_ONCE)) < NOTIFIED_AT_ONCE:
            self._round = None
        if self._round is not None or self._changed:
            self._schedule()

    def _notify(self, changed: dict[str, bool]) -> Iterator[None]:
        """Notify groups; yield after each member notified and each group checked."""
        for group, left in changed.items():
            if left:
                self._monitor.check_conflicts(group)
            yield
            state = self._state
            config = state.groups.get(group)
            if not (
                state.config.notify_consumer_ids_changed_enable
                and (config is None or config.notify_consumer_ids_changed_enable)
            ):
                continue
            code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            header = ConsumerGroupRequestHeader(consumer_group=group)
            for connection in self._state.consumers.connections(group):
                # A member that misses it learns of the change at its next periodic rebalance.
                with suppress(RemotingError):
                    connection.send_oneway(Command.request(code, header, oneway=True))
                yield
