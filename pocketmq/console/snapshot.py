"""One look at the cluster every two seconds, shared by all browsers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple

import client
from client.admin.base import LEFT_OUT
from client.errors import AccessDenied, NoRoute, PocketMQError
from client.positions import instant, known_instant
from pocketmq.console.sessions import ConsoleSessions
from pocketmq.doctor import Case, examine
from pocketmq.doctor.case import CheckResult, CheckVerdict
from pocketmq.server import probe
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.command import natural
from remoting.protocol.names import DLQ_PREFIX, is_internal_topic
from remoting.runtime.tasks import gather_limited, wait_at_most
from remoting.security.credentials import CredentialsSource

EVERY: Final = 2.0
"""Seconds between two looks while somebody watches."""

QUIET_EVERY: Final = 10.0
"""Seconds between two looks while nobody does: enough for the lines over time."""

WATCHED_FOR: Final = 30.0
"""Seconds for which the request of a page counts as somebody who watches."""

SELDOM: Final = 15
"""Looks from one check of dead letters and by the doctor to the next."""

HISTORY: Final = 450
"""Looks that are kept: 15 minutes of them."""

MAX_GROUPS: Final = 10_000
"""Most groups that are shown; their lags come in pages of 1,000."""

MAX_DEAD_TOPICS: Final = 500
"""Most topics of dead letters that are counted: one request to each."""

MAX_TRENDS: Final = 500
"""Most groups whose lag is kept over time: those that are furthest behind."""

REQUEST_TIMEOUT: Final = 3.0
"""Seconds for the answer of a broker; one that is down must not hold up the others."""

FIRST_LOOK: Final = 5.0
"""Most seconds that the start, and signing in, wait for a look, which the next page shows."""

_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """A broker as it was seen.

    Attributes:
        runtime: its own figures; empty if it didn't answer.
        problem: why it didn't answer, or what it reports; empty for none.
    """

    info: client.BrokerInfo
    runtime: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def role(self) -> str:
        """``master`` or ``slave``."""
        return "slave" if self.info.id else "master"

    @property
    def started_at(self) -> datetime | None:
        """When it started."""
        return instant(natural(self.runtime.get("bootTimestamp", ""), 0) or -(2**62))

    @property
    def disk(self) -> float | None:
        """How full the disk of its log is, from 0 to 1; None if it doesn't say."""
        try:
            return float(self.runtime["commitLogDiskRatio"])
        except (KeyError, ValueError):
            return None

    def rate(self, name: str) -> float:
        """Return one of its rates per second, as it was in the last ten seconds."""
        try:
            return float(self.runtime.get(name, "0").split()[0])
        except (ValueError, IndexError):
            return 0.0

    @property
    def messages_in(self) -> float:
        """Messages that it stores per second."""
        return self.rate("putTps")

    @property
    def messages_out(self) -> float:
        """Messages that consumers get per second."""
        return self.rate("getTransferredTps")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic as it was seen.

    Attributes:
        configs: its settings by broker name.
        groups: the groups that have offsets in it, with what they have not consumed of it.
        per_second: messages per second since the look before; None without a group, whose offsets
            say where its queues end.
        lacking: the brokers that don't have it.
    """

    name: str
    configs: Mapping[str, TopicConfig]
    groups: Mapping[str, int] = field(default_factory=dict)
    per_second: float | None = None
    lacking: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What type of messages it has, if it says so."""
        attributes = next(iter(self.configs.values())).attributes or {}
        return attributes.get("message.type", "")

    @property
    def queues(self) -> int:
        """The number of its queues that can be written, at all brokers."""
        return sum(config.write_queue_nums for config in self.configs.values())

    @property
    def lag(self) -> int:
        """What its groups have not consumed."""
        return sum(self.groups.values())


class DeadCount(NamedTuple):
    """The dead letters of a group: how many there are, and when the last one came."""

    group: str
    letters: int
    last_at: datetime | None


class ClusterMoment(NamedTuple):
    """Figures of the cluster at one time; ``at`` is in seconds since 1970."""

    at: float
    messages_in: float
    messages_out: float
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """What the last look found.

    Attributes:
        number: of the look.
        at: when it was; None before the first one.
        problem: why the cluster as a whole can't be seen; empty if it can.
        unreachable: why brokers didn't answer, by name: what they have is missing here.
        counted: the number of the look that counted the dead letters; 0: none has.
        findings: the doctor's, without those that are well.
    """

    number: int = 0
    at: datetime | None = None
    problem: str = ""
    brokers: tuple[BrokerFacts, ...] = ()
    unreachable: Mapping[str, str] = field(default_factory=dict)
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    groups: Mapping[str, client.Lag] = field(default_factory=dict)
    dead: tuple[DeadCount, ...] = ()
    counted: int = 0
    findings: tuple[CheckResult, ...] = ()

    @property
    def lag(self) -> int:
        """What all groups have not consumed."""
        return sum(group.total for group in self.groups.values())

    @property
    def down(self) -> set[str]:
        """The addresses of brokers that didn't answer."""
        return {broker.info.address for broker in self.brokers if not broker.runtime}

    @property
    def names(self) -> list[str]:
        """The brokers' names."""
        return sorted({broker.info.name for broker in self.brokers})


class ClusterPoller:
    """Looks at a cluster again and again, until it is cancelled.

    Args:
        nameserver: the name servers' addresses.
        credentials: the console's own keys; None: it has none, and where brokers ask for some it
            uses those of the person who signed in last, until that session ends.
        sessions: those who have signed in.
    """

    def __init__(
        self, nameserver: str, credentials: CredentialsSource | None, sessions: ConsoleSessions
    ) -> None:
        self.snapshot = ClusterSnapshot()
        self.history: deque[ClusterMoment] = deque(maxlen=HISTORY)
        self.trends: dict[str, deque[float]] = {}
        self._nameserver = nameserver
        self._own = self._credentials = credentials
        self._sessions = sessions
        self._denied: CredentialsSource | None = None
        self._refused = credentials is not None
        self._signs_with: CredentialsSource | None = None
        self._admin: client.Admin | None = None
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._ended = False
        self._watched_at = 0.0
        self._ends: tuple[float, dict[str, dict[client.MessageQueue, int]]] = (0.0, {})

    @property
    def asks_to_sign_in(self) -> bool:
        """Whether what it shows is for those who sign in: brokers don't show it to everybody."""
        return self._refused

    async def signed_in(self) -> None:
        """Return after a look that can use the keys of somebody who has signed in, if it is soon.

        If the console has its own keys, it uses those.
        """
        if self._own is None:
            self.hurry()
            await self.looked()
            if self.snapshot.problem:  # that look had begun before
                await self.looked()

    async def looked(self) -> None:
        """Return after the next look, or after FIRST_LOOK seconds."""
        await wait_at_most(FIRST_LOOK, self._changed)

    def hurry(self) -> None:
        """Look again at once, because something was changed."""
        self._hurry.set()

    def watched(self) -> None:
        """Note that somebody looks at a page."""
        if time.monotonic() - self._watched_at > WATCHED_FOR:
            self._hurry.set()
        self._watched_at = time.monotonic()

    async def numbers(self) -> AsyncIterator[int]:
        """Yield the number of each look, when it has ended, until ``end``."""
        while True:
            await self._changed.wait()
            if self._ended:
                return
            self.watched()
            yield self.snapshot.number

    def end(self) -> None:
        """End ``numbers`` for everybody."""
        self._ended = True
        self._changed.set()

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                await self._look()
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()
                watched = time.monotonic() - self._watched_at < WATCHED_FOR
                await wait_at_most(EVERY if watched else QUIET_EVERY, self._hurry)
                self._hurry.clear()
        finally:
            if self._admin is not None:
                await self._admin.close()

    async def _look(self) -> None:
        before = self.snapshot
        await self._sessions.sweep()
        if self._own is None:
            theirs = (keys for keys in self._sessions.living() if keys is not self._denied)
            self._credentials = next(theirs, None)
        found = replace(before, number=before.number + 1, at=datetime.now(UTC), problem="")
        try:
            found = await self._found(await self._connected(), found)
            if self._credentials is None:
                self._refused = False
        except AccessDenied as error:
            self._refused = True
            self._denied = self._credentials
            found = ClusterSnapshot(number=found.number, at=found.at, problem=str(error))
        except (PocketMQError, OSError) as error:
            found = replace(found, problem=str(error))
        self.snapshot = found
        if not found.problem:
            self._remember(found)

    async def _connected(self) -> client.Admin:
        if self._admin is not None and self._signs_with is not self._credentials:
            await self._admin.close()
            self._admin = None
        if self._admin is None:
            admin = client.Admin(
                self._nameserver,
                credentials=self._credentials,
                request_timeout=REQUEST_TIMEOUT,
                connect_timeout=REQUEST_TIMEOUT,
            )
            await admin.start()
            self._admin, self._signs_with = admin, self._credentials
        return self._admin

    async def _found(self, admin: client.Admin, found: ClusterSnapshot) -> ClusterSnapshot:
        infos = await admin.brokers()
        if not infos:
            raise NoRoute("no broker is registered at the name server", hint="start one")
        brokers = tuple(
            await gather_limited(infos, lambda info: self._broker(admin, info), limit=_AT_ONCE)
        )
        LEFT_OUT.set({one.info.address for one in brokers if not one.runtime})
        unreachable = {
            f"{one.info.name}:{one.info.id}": one.problem for one in brokers if not one.runtime
        }
        readers = {one.info.name: one.info.address for one in reversed(brokers) if one.runtime}
        if not readers:
            first = next(iter(unreachable.values()))
            return replace(found, brokers=brokers, unreachable=unreachable, problem=first)
        configs = await gather_limited(readers.values(), admin.topic_configs, limit=_AT_ONCE)
        tables = dict(zip(readers, configs, strict=True))
        groups: dict[str, client.Lag] = {}
        after: str | None = ""
        while after is not None and len(groups) < MAX_GROUPS:
            page = await admin.lags(after=after)
            groups |= {lag.group: lag for lag in page.groups}
            after = page.next
        found = replace(
            found,
            brokers=brokers,
            unreachable=unreachable,
            groups=groups,
            topics=self._topics(tables, groups, {name for info in infos for name in info[:2]}),
        )
        if not found.counted or found.number - found.counted >= SELDOM:
            found = replace(
                found,
                counted=found.number,
                dead=await self._dead(admin, tables),
                findings=await asyncio.to_thread(self._examined),
            )
        return found

    async def _broker(self, admin: client.Admin, info: client.BrokerInfo) -> BrokerFacts:
        try:
            table = await admin.broker_runtime(info.address)
        except AccessDenied:
            raise
        except PocketMQError as error:
            return BrokerFacts(info=info, problem=str(error))
        problem = (
            table.get("pocketmqWhyNotWritable")
            or table.get("pocketmqGroupProblem")
            or table.get("pocketmqReplicationProblem")
            or ""
        )
        return BrokerFacts(info=info, runtime=table, problem=problem)

    def _topics(
        self,
        tables: Mapping[str, Mapping[str, TopicConfig]],
        groups: Mapping[str, client.Lag],
        system: Collection[str],
    ) -> dict[str, TopicFacts]:
        """Return the topics, without internal ones and those named like a cluster or broker."""
        lags: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[client.MessageQueue, int]] = {}
        for group, lag in groups.items():
            for queue, at in lag.queues.items():
                of_topic = lags.setdefault(queue.topic, {})
                of_topic[group] = of_topic.get(group, 0) + at.messages
                ends.setdefault(queue.topic, {})[queue] = at.end
        now, (then, before) = time.monotonic(), self._ends
        self._ends = now, ends

        def rate(name: str) -> float | None:
            # Of a broker that wasn't there before, nothing is known of the time between.
            both = ends.get(name, {}).keys() & before.get(name, {}).keys()
            more = sum(max(0, ends[name][queue] - before[name][queue]) for queue in both)
            return more / (now - then) if both else None

        known = {name for table in tables.values() for name in table}
        names = sorted(
            known.difference(system) - {name for name in known if is_internal_topic(name)}
        )
        return {
            name: TopicFacts(
                name=name,
                configs={at: table[name] for at, table in tables.items() if name in table},
                groups=lags.get(name, {}),
                per_second=rate(name),
                lacking=tuple(sorted(at for at, table in tables.items() if name not in table)),
            )
            for name in names
        }

    async def _dead(
        self, admin: client.Admin, tables: Mapping[str, Mapping[str, TopicConfig]]
    ) -> tuple[DeadCount, ...]:
        """Count the dead letters of all groups; one that can't be read has none."""
        topics = sorted(
            {name for table in tables.values() for name in table if name.startswith(DLQ_PREFIX)}
        )[:MAX_DEAD_TOPICS]

        async def count(topic: str) -> DeadCount:
            total, last = 0, 0
            try:
                for at in (await admin.topic_stats(topic)).values():
                    total += max(0, at.max_offset - at.min_offset)
                    last = max(last, at.last_update_timestamp)
            except PocketMQError:
                pass
            return DeadCount(topic.removeprefix(DLQ_PREFIX), total, known_instant(last))

        counts = await gather_limited(topics, count, limit=_AT_ONCE)
        return tuple(sorted((one for one in counts if one.letters), key=lambda one: -one.letters))

    def _examined(self) -> tuple[CheckResult, ...]:
        ask = partial(probe.ask, credentials=self._credentials)
        case = Case(name_servers=probe.addresses(self._nameserver), ask=ask)
        return tuple(one for one in examine(case) if one.verdict is not CheckVerdict.OK)

    def _remember(self, found: ClusterSnapshot) -> None:
        self.history.append(
            ClusterMoment(
                time.time(),
                sum(broker.messages_in for broker in found.brokers),
                sum(broker.messages_out for broker in found.brokers),
                found.lag,
            )
        )
        furthest = sorted(found.groups.values(), key=lambda lag: -lag.total)[:MAX_TRENDS]
        self.trends = {
            lag.group: self.trends.get(lag.group, deque(maxlen=HISTORY)) for lag in furthest
        }
        for lag in furthest:
            self.trends[lag.group].append(lag.total)
