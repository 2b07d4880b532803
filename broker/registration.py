"""The broker at its name servers: registered with each of them, independently of the others.

One task per name server. It registers at start, on change and each period, and after a failure or a
closed connection again and again, so that a name server that comes back knows the broker within
some 2 s. What is asked for meanwhile is merged: one registration tells everything.

How much is told: all topics, as a rule. A change by an administrator tells only its topics, if the
name server is known to have all others: it takes a registration's data version for its own, so one
that missed something must be told everything (cf. RouteInfoManager.isBrokerTopicConfigChanged).
Topics that sends and heartbeats make are told oneway, whose loss the next period repairs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from broker.announcement import Announcement
from remoting.clock import Clock, SystemClock
from remoting.connection import Connection
from remoting.errors import RemotingError
from remoting.pool import ConnectionPool
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.tables import KVTable
from remoting.protocol.bodies.topic import TopicConfigSerializeWrapper
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import ProtocolError
from remoting.protocol.headers.registration import QueryDataVersionResponseHeader
from remoting.tasks import Supervisor

RETRY_FIRST_SECONDS: Final = 0.1
RETRY_MAX_SECONDS: Final = 0.5
"""Pause before a failed registration is tried again, doubled each time. It can be this short, for
the pool in between connects to a dead address less and less often, at least every 2 s."""

UNREGISTER_TIMEOUT_SECONDS: Final = 3.0
"""How long a stop waits for a name server (cf. BrokerOuterAPI.unregisterBroker)."""

MAX_MERGED_TOPICS: Final = 1_000
"""Topics that one incremental registration names; more are a full one."""

TopicsOf = Callable[[Sequence[str] | None], TopicConfigSerializeWrapper]
"""Gives the topics of these names, or all, with the table's data version."""

_log = structlog.get_logger("broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerState:
    """How the broker stands with one name server; for doctor and metrics."""

    address: str
    registered: bool = False
    last_success_ms: int | None = None
    failures: int = 0
    """In a row; 0 after a success."""
    last_error: str | None = None


class RegistrationRefused(Exception):
    """A name server answered a registration with an error."""


class Registration:
    """Keeps a broker registered; made and used on the loop's thread.

    Args:
        name_servers: their addresses.
        announcement: what to tell of the broker.
        topics_of: gives the topics.
        on_order_topics: told the order topics' table that a name server answers.
    """

    def __init__(
        self,
        name_servers: Iterable[str],
        announcement: Announcement,
        topics_of: TopicsOf,
        *,
        on_order_topics: Callable[[Mapping[str, str]], None] | None = None,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.announcement = announcement
        self._topics_of = topics_of
        self._on_order_topics = on_order_topics
        self.clock = clock or SystemClock()
        self.jitter = jitter
        self.pool = ConnectionPool(on_close=self._connection_closed, name="registration")
        self._supervisor = Supervisor("registration")
        self._links = [_Link(address, self) for address in dict.fromkeys(name_servers)]

    @property
    def states(self) -> tuple[NameServerState, ...]:
        """How the broker stands with each name server."""
        return tuple(link.state for link in self._links)

    @property
    def failed(self) -> asyncio.Future[None]:
        """Ends with an error when a registering task dies, which nothing from outside can do."""
        return self._supervisor.failed

    async def start(self, *, patience: float = 1.0) -> None:
        """Begin; returns when each name server took the broker or failed, or after a while."""
        if not self._links:
            return
        first = [link.ask(None, oneway=False) for link in self._links]
        for link in self._links:
            self._supervisor.spawn(link.run(), f"register with {link.state.address}")
        await asyncio.wait(first, timeout=patience)

    def changed(
        self, names: Sequence[str] | None = None, *, oneway: bool = False
    ) -> Awaitable[object]:
        """Topics were made or changed: tell the name servers now.

        Args:
            names: only these are told, where that is enough; None for all.
            oneway: send without asking for an answer.

        Returns an awaitable that ends when each name server has answered, failed or timed out.
        """
        return asyncio.gather(*(link.ask(names, oneway=oneway) for link in self._links))

    async def stop(self) -> None:
        """Unregister from all name servers, then close the connections. May be called twice."""
        await self._supervisor.close()
        links, self._links = self._links, []
        await asyncio.gather(*(link.unregister() for link in links))
        await self.pool.close()

    def registration_of(self, names: Sequence[str] | None, *, oneway: bool) -> Command:
        """The registration that tells these topics, or all."""
        return self.announcement.register(self._topics_of(names), oneway=oneway)

    def version_question(self) -> Command:
        """The question whether the name server knows the topics' newest version."""
        return self.announcement.query_version(self._topics_of(()).data_version)

    def answered(self, reply: Command) -> None:
        """A name server took the registration; its answer may bring the order topics."""
        if not reply.body or self._on_order_topics is None:
            return
        try:
            table = decode(KVTable, reply.body).table
        except ProtocolError as error:
            _log.warning("order topics of a name server not understood", reason=str(error))
            return
        self._on_order_topics(table)

    def _connection_closed(self, connection: Connection) -> None:
        for link in self._links:
            link.connection_closed(connection)


class _Wanted:
    """What a name server has to be told next, merged from all who asked."""

    __slots__ = ("all_topics", "answer", "names", "waiters")

    def __init__(self) -> None:
        self.all_topics = False
        self.answer = False
        self.names: dict[str, None] = {}
        self.waiters: list[asyncio.Future[bool]] = []

    def add(self, names: Sequence[str] | None, *, oneway: bool) -> None:
        self.answer |= not oneway
        self.names.update(dict.fromkeys(names or ()))
        self.all_topics |= names is None or len(self.names) > MAX_MERGED_TOPICS

    @property
    def nothing(self) -> bool:
        """Nobody asked: it is the period's turn."""
        return not self.all_topics and not self.names

    def settle(self, *, success: bool) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(success)


class _Link:
    """The broker's standing with one name server."""

    def __init__(self, address: str, owner: Registration) -> None:
        self.state = NameServerState(address=address)
        self._owner = owner
        self._wanted = _Wanted()
        self._wake = asyncio.Event()
        self._connection: Connection | None = None
        self._has_all = False
        """It answered a registration of everything, and has missed nothing since."""

    def ask(self, names: Sequence[str] | None, *, oneway: bool) -> asyncio.Future[bool]:
        """Have it told; the future says whether that succeeded."""
        self._wanted.add(names, oneway=oneway)
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._wanted.waiters.append(waiter)
        self._wake.set()
        return waiter

    async def run(self) -> None:
        """Register whenever it is asked for or due, for ever."""
        while True:
            try:
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            wanted, self._wanted = self._wanted, _Wanted()
            success = False
            try:
                await self._tell(wanted)
                success = True
            except (RemotingError, ProtocolError, RegistrationRefused) as error:
                self._failed(error)
            finally:
                wanted.settle(success=success)

    def connection_closed(self, connection: Connection) -> None:
        """Without the connection the name server has forgotten the broker already."""
        if connection is self._connection and self.state.registered:
            self._has_all = False
            self.state = replace(
                self.state, registered=False, last_error=f"disconnected: {connection.close_reason}"
            )
            _log.warning(
                "name server lost; registering again until it is back",
                nameserver=self.state.address,
                reason=connection.close_reason,
            )
            self._wake.set()

    async def unregister(self) -> None:
        """Say good-bye where the broker is known; that it fails changes nothing."""
        self._wanted.settle(success=False)
        if not self.state.registered:
            return
        try:
            await self._request(self._owner.announcement.unregister(), UNREGISTER_TIMEOUT_SECONDS)
        except (RemotingError, RegistrationRefused) as error:
            _log.info(
                "not unregistered; the name server drops the broker by itself",
                nameserver=self.state.address,
                reason=str(error),
            )
        self.state = replace(self.state, registered=False)

    def _pause(self) -> float:
        failures = self.state.failures
        if not failures:
            return self._owner.announcement.period if self.state.registered else RETRY_FIRST_SECONDS
        pause = min(RETRY_FIRST_SECONDS * 2.0 ** min(failures - 1, 30), RETRY_MAX_SECONDS)
        return pause * (0.5 + self._owner.jitter() / 2)

    async def _tell(self, wanted: _Wanted) -> None:
        owner = self._owner
        if (
            wanted.nothing
            and self._has_all
            and not owner.announcement.force
            and await self._is_current()
        ):
            self._succeeded()
            return
        connection = owner.pool.connected(self.state.address)
        if connection is not None and self.state.registered and not wanted.nothing:
            if not wanted.answer:
                self._has_all = False
                connection.send_oneway(owner.registration_of(None, oneway=True))
                return
            if self._has_all and not wanted.all_topics:
                await self._register(tuple(wanted.names))
                return
        await self._register(None)

    async def _register(self, names: Sequence[str] | None) -> None:
        owner = self._owner
        self._has_all &= names is not None
        reply = await self._request(
            owner.registration_of(names, oneway=False), owner.announcement.timeout
        )
        self._has_all = True
        self._succeeded()
        owner.answered(reply)

    async def _is_current(self) -> bool:
        try:
            reply = await self._request(
                self._owner.version_question(), self._owner.announcement.timeout
            )
        except RegistrationRefused:
            return False
        return not reply.read(QueryDataVersionResponseHeader).changed

    async def _request(self, command: Command, timeout: float) -> Command:
        address = self.state.address
        reply = await self._owner.pool.request(address, command, timeout=timeout)
        self._connection = self._owner.pool.connected(address)
        if reply.code != ResponseCode.SUCCESS:
            raise RegistrationRefused(
                f"name server {address} answered code {reply.code}: {reply.remark}"
            )
        return reply

    def _succeeded(self) -> None:
        was = self.state
        self.state = NameServerState(
            address=was.address, registered=True, last_success_ms=self._owner.clock.now_ms()
        )
        if not was.registered:
            _log.info(
                "registered", nameserver=was.address, broker=self._owner.announcement.broker_name
            )

    def _failed(self, error: Exception) -> None:
        was = self.state
        self._has_all = False
        self.state = replace(
            was, registered=False, failures=was.failures + 1, last_error=str(error)
        )
        if was.registered or not was.failures:
            _log.warning(
                "not registered; trying again until it works",
                nameserver=was.address,
                reason=str(error),
            )
