"""Registration of the broker with its name servers, with each of them independently.

One task per name server registers the broker at start, on changes, and periodically. After a
failure or a closed connection it retries until it succeeds, so the broker is registered within
about half a second after a name server restarts. Requests that arrive during a registration are
merged into the next one.

All topics are sent at the start and in each period. After a change only the changed topics are
sent, if the name server has all others: a name server adds the topics of a registration to its
table and stores the data version, and ignores topics under a version that it has already (cf.
RouteInfoManager.isBrokerTopicConfigChanged). The table may change again before a change is sent, so
only a registration that ends with the whole table has the table's version; others have versions of
their own. An administrator's change is sent at once. Topics that sends and heartbeats create are
batched and sent at most every ``PACE_SECONDS``. The request that changes a topic is answered when
the name servers have the topic, or after ``PATIENCE_SECONDS``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import structlog
from msgspec import structs

from broker.config import BrokerConfig
from broker.limits import MAX_TOPICS
from remoting.access.guard import EXCEPTION
from remoting.addresses import address_text
from remoting.connection import Connection
from remoting.errors import RemotingError
from remoting.pool import ConnectionPool
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.registration import (
    RegisterBrokerBody,
    body_crc32,
    encode_compressed,
)
from remoting.protocol.bodies.route import ClusterInfo
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.bodies.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import ProtocolError
from remoting.protocol.headers.admin import (
    BrokerRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
)
from remoting.protocol.names import PERM_READ, PERM_WRITE
from remoting.runtime.clock import Clock, SystemClock
from remoting.runtime.tasks import Supervisor

SHORTEST_PERIOD_MS: Final = 10_000
LONGEST_PERIOD_MS: Final = 60_000
"""``registerNameServerPeriod`` is clamped to these bounds (cf. BrokerController.start)."""

LARGE_BODY_BYTES: Final = 8 * 1024 * 1024
"""A larger registration is compressed even without ``compressedRegister``. This is half of a
frame's limit, about 50,000 topics."""

_READ_WRITE: Final = PERM_READ | PERM_WRITE


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What a broker registers, and how."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    permission: int = _READ_WRITE
    """The broker's permission. Without reading or writing it replaces that of all topics."""
    compressed: bool = False
    force: bool = True
    """Whether to register in each period, or only if the name server has another data version."""
    period: float = 30.0
    """Seconds between registrations."""
    timeout: float = 6.0
    """Seconds until a registration fails."""
    state_version: int | None = None
    """The epoch of the broker's role; None without a controller."""

    @classmethod
    def of(
        cls,
        config: BrokerConfig,
        port: int,
        ha_port: int | None = None,
        state_version: int | None = None,
    ) -> Announcement:
        """Return the announcement of a broker with these settings.

        Args:
            config: the settings.
            port: on which it listens.
            ha_port: its replication port, None if it has none.
            state_version: the epoch of its role, None without a controller.
        """
        host = config.advertised_host
        if ha_port is None:
            ha_port = port + 1 if config.ha_listen_port is None else config.ha_listen_port
        period_ms = config.register_name_server_period_ms
        return cls(
            cluster=config.cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            address=address_text((host, config.advertised_port or port)),
            ha_address=address_text((config.broker_ip2 or host, ha_port)),
            permission=config.broker_permission,
            compressed=config.compressed_register,
            force=config.force_register,
            period=min(max(period_ms, SHORTEST_PERIOD_MS), LONGEST_PERIOD_MS) / 1000,
            timeout=config.register_broker_timeout_ms / 1000,
            state_version=state_version,
        )

    def register(self, wrapper: TopicConfigSerializeWrapper) -> Command:
        """Build REGISTER_BROKER with these topics."""
        version = structs.replace(wrapper.data_version, state_version=self.state_version)
        wrapper = TopicConfigSerializeWrapper(wrapper.topic_config_table, version)
        if self.permission & _READ_WRITE != _READ_WRITE:
            # The broker's permission overrides that of topics (cf. registerBrokerAll).
            table: dict[str, TopicConfig] = {
                name: structs.replace(topic, perm=self.permission)
                for name, topic in wrapper.topic_config_table.items()
            }
            wrapper = TopicConfigSerializeWrapper(table, wrapper.data_version)
        content = RegisterBrokerBody(wrapper)
        body = b"" if self.compressed else encode(content)
        compressed = self.compressed or len(body) > LARGE_BODY_BYTES
        if compressed:
            body = encode_compressed(content)
        header = RegisterBrokerRequestHeader(
            broker_name=self.broker_name,
            broker_addr=self.address,
            cluster_name=self.cluster,
            ha_server_addr=self.ha_address,
            broker_id=self.broker_id,
            compressed=compressed,
            body_crc32=body_crc32(body),
        )
        return Command.request(RequestCode.REGISTER_BROKER, header, body=body)

    def query_version(self, version: DataVersion) -> Command:
        """Build QUERY_DATA_VERSION, which asks whether the name server has another version."""
        body = encode(structs.replace(version, state_version=self.state_version))
        return Command.request(RequestCode.QUERY_DATA_VERSION, self._header, body=body)

    def unregister(self) -> Command:
        """Build UNREGISTER_BROKER."""
        return Command.request(RequestCode.UNREGISTER_BROKER, self._header)

    @property
    def _header(self) -> BrokerRequestHeader:
        return BrokerRequestHeader(
            broker_name=self.broker_name,
            broker_addr=self.address,
            cluster_name=self.cluster,
            broker_id=self.broker_id,
        )


RETRY_FIRST_SECONDS: Final = 0.1
RETRY_MAX_SECONDS: Final = 0.25
"""Delay before a failed registration is retried, doubled after each failure; also the longest
back-off of the connection pool. Clients that ask a restarted name server find no route until the
broker is registered, and some of them give up."""

UNREGISTER_TIMEOUT_SECONDS: Final = 3.0
"""How long a stop waits for a name server (cf. BrokerOuterAPI.unregisterBroker)."""

MAX_TOPICS_AT_ONCE: Final = 1_000
"""The most topics in one request, about 5 ms of work at either end. A registration of all topics is
split into requests of this size (cf. splitRegistrationSize), and so is a change of more."""

PACE_SECONDS: Final = 0.01
"""Shortest time between registrations of topics that sends and heartbeats created, whose clients
wait for it."""

PATIENCE_SECONDS: Final = 1.0
"""How long the answer to a request that changed topics waits for the name servers."""

TopicsOf = Callable[[Sequence[str] | None], TopicConfigSerializeWrapper]
"""Returns the topics with these names (None: all), with the table's data version."""

_log = structlog.get_logger("broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerState:
    """The state of the registration at one name server, for doctor and metrics."""

    address: str
    registered: bool = False
    last_success_ms: int | None = None
    failures: int = 0
    """Consecutive failures; 0 after a success."""
    last_error: str | None = None


class RegistrationRefused(Exception):
    """A name server answered a registration with an error."""


class BrokerRegistration:
    """Keeps a broker registered; created and used on the event loop's thread.

    Args:
        name_servers: the addresses of the name servers.
        announcement: what the broker registers.
        topics_of: returns the topics.
        on_order_topics: called with the table of order topics in a name server's answer.
        clock: the time.
        jitter: returns a random number from 0 to 1, which varies the delay of retries.
        pace: shortest time in seconds between registrations that no caller waits for.
        patience: how many seconds ``start`` and the requests that change topics wait for the name
            servers.
        pool: creates the pool of connections to the name servers.

    Attributes:
        master: the addresses of a slave's master, as a name server has last told them.
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
        pace: float = PACE_SECONDS,
        patience: float = PATIENCE_SECONDS,
        pool: Callable[..., ConnectionPool] = ConnectionPool,
    ) -> None:
        self.announcement = announcement
        self._topics_of = topics_of
        self._on_order_topics = on_order_topics
        self.clock = clock or SystemClock()
        self.jitter = jitter
        self.master = RegisterBrokerResponseHeader()
        self.pace = pace
        self.patience = patience
        self.pool = pool(
            on_close=self._connection_closed, max_backoff=RETRY_MAX_SECONDS, name="registration"
        )
        self._started_ms = self.clock.now_ms()
        self._versions = 0
        self._supervisor = Supervisor("registration")
        self._links = [_NameServerLink(address, self) for address in dict.fromkeys(name_servers)]

    @property
    def states(self) -> tuple[NameServerState, ...]:
        """The registration at each name server."""
        return tuple(link.state for link in self._links)

    @property
    def taken_by(self) -> str | None:
        """The address of another broker that registers under this name and id; None: there is none.

        Each replaces the other at the name servers again and again.
        """
        return next((link.taken_by for link in self._links if link.taken_by), None)

    async def join(self) -> None:
        """Wait, and raise if a task of the registration fails, which only a bug can cause."""
        await asyncio.shield(self._supervisor.failed)

    async def start(self) -> None:
        """Start the tasks, and wait until each name server has answered or failed.

        Returns after ``patience`` seconds at the latest. Calling it again has no effect.
        """
        if len(self._supervisor):
            return
        first = [link.request(None, urgent=True) for link in self._links]
        for link in self._links:
            self._supervisor.spawn(link.run(), f"register with {link.state.address}")
        await asyncio.gather(*first)

    def permit(self, permission: int) -> None:
        """Register topics with this ``brokerPermission`` from now on."""
        self.announcement = replace(self.announcement, permission=permission)

    def changed(
        self, names: Sequence[str] | None = None, *, paced: bool = False
    ) -> asyncio.Future[list[bool]]:
        """Register topics that were created, changed or deleted.

        Args:
            names: the topics; None for all.
            paced: whether the registration may be delayed and merged. It doesn't wait for name
                servers whose last registration failed.

        Return a future that ends when each name server has answered or failed, after ``patience``
        seconds at the latest. Its result is whether each has registered the topics.
        """
        requests = [(link, link.request(names, urgent=not paced)) for link in self._links]
        return asyncio.gather(
            *(done for link, done in requests if not (paced and link.state.failures))
        )

    async def pause(self) -> None:
        """Register no more. The name servers keep the broker while the connections are open."""
        await self._supervisor.close()

    async def stop(self, *, unregister: bool = True) -> None:
        """Unregister from all name servers, and close the connections; may be called twice."""
        await self._supervisor.close()
        links, self._links = self._links, []
        if unregister:
            await asyncio.gather(*(link.unregister() for link in links))
        await self.pool.close()

    def registrations_of(self, names: Sequence[str] | None) -> Iterator[Command]:
        """Yield the requests that register these topics (None: all), each with its current state.

        Topics that don't exist any more are left out.
        """
        wrapper = self._topics_of(names)
        left = list(wrapper.topic_config_table)
        while True:
            portion, left = left[:MAX_TOPICS_AT_ONCE], left[MAX_TOPICS_AT_ONCE:]
            topics = self._topics_of(portion).topic_config_table
            version = wrapper.data_version
            if left or names is not None:
                self._versions += 1
                version = DataVersion(self._started_ms, -self._versions)
            yield self.announcement.register(TopicConfigSerializeWrapper(topics, version))
            if not left:
                return

    def version_request(self) -> Command:
        """Return the request that asks whether the name server has the current version."""
        return self.announcement.query_version(self._topics_of(()).data_version)

    def answered(self, reply: Command) -> None:
        """Handle the answer to a registration, which may contain a master and the order topics."""
        answer = reply.read(RegisterBrokerResponseHeader)
        if answer.ha_server_addr:
            self.master = answer
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


class _Pending:
    """The next registration at one name server, merged from all requests.

    Attributes:
        done: ends with the registration, or ``patience`` seconds after the first request; the
            result is whether it succeeded.
    """

    __slots__ = ("all_topics", "done", "names", "urgent")

    def __init__(self) -> None:
        self.all_topics = False
        self.urgent = False
        self.names: dict[str, None] = {}
        self.done: asyncio.Future[bool] | None = None

    def add(
        self, names: Sequence[str] | None, *, urgent: bool, patience: float
    ) -> asyncio.Future[bool]:
        self.urgent |= urgent
        self.names.update(dict.fromkeys(names or ()))
        self.all_topics |= names is None or len(self.names) > MAX_TOPICS
        if self.done is None:
            loop = asyncio.get_running_loop()
            self.done = loop.create_future()
            loop.call_later(patience, self.settle, False)
        return self.done

    @property
    def nothing(self) -> bool:
        """Whether there are no changes to register, only the periodic registration."""
        return not self.all_topics and not self.names

    def settle(self, success: bool) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(success)


class _NameServerLink:
    """The registration at one name server."""

    def __init__(self, address: str, owner: BrokerRegistration) -> None:
        self.state = NameServerState(address=address)
        self.taken_by: str | None = None
        self._owner = owner
        self._pending = _Pending()
        self._wake = asyncio.Event()
        self._connection: Connection | None = None
        self._has_all = False
        """Whether the name server has all topics: a full registration succeeded, and every change
        after it."""
        self._registered_at = -inf
        self._next_at = -inf
        """When the next period begins, or the next attempt is due."""

    def request(self, names: Sequence[str] | None, *, urgent: bool) -> asyncio.Future[bool]:
        """Request a registration; see ``_Pending`` for the future."""
        self._wake.set()
        return self._pending.add(names, urgent=urgent, patience=self._owner.patience)

    async def run(self) -> None:
        """Register whenever it is requested or due, until cancelled."""
        while True:
            loop = asyncio.get_running_loop()
            while (rest := self._due_at() - loop.time()) > 0:
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest):
                        await self._wake.wait()
            pending, self._pending = self._pending, _Pending()
            success = everything = False
            try:
                everything = await self._register_pending(pending)
                success = True
            except (RemotingError, ProtocolError, RegistrationRefused) as error:
                self._failed(error)
            finally:
                pending.settle(success)
            self._registered_at = asyncio.get_running_loop().time()
            if everything or not success:
                self._next_at = self._registered_at + self._pause()

    def _due_at(self) -> float:
        if self._pending.urgent:
            return -inf
        if self._pending.nothing:
            return self._next_at
        return min(self._registered_at + self._owner.pace, self._next_at)

    def connection_closed(self, connection: Connection) -> None:
        """Register again: a name server drops a broker when its connection is closed."""
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
            self.request(None, urgent=True)

    async def unregister(self) -> None:
        """Unregister if registered; a failure is only logged."""
        self._pending.settle(False)
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

    async def _register_pending(self, pending: _Pending) -> bool:
        """Perform a pending registration; return whether it covered all topics."""
        owner = self._owner
        if self.state.registered and not pending.names:
            await self._look_for_another()
        if (
            pending.nothing
            and self._has_all
            and not owner.announcement.force
            and await self._is_current()
        ):
            self._succeeded()
            return True
        if self._has_all and self.state.registered and pending.names and not pending.all_topics:
            await self._register(tuple(pending.names))
            return False
        await self._register(None)
        return True

    async def _register(self, names: Sequence[str] | None) -> None:
        owner = self._owner
        self._has_all &= names is not None
        connections = set()
        for command in owner.registrations_of(names):
            owner.answered(await self._request(command, owner.announcement.timeout))
            connections.add(self._connection)
        if None in connections or len(connections) > 1:
            # With the connection, the name server dropped the topics that it had.
            raise RegistrationRefused(f"name server {self.state.address} closed the connection")
        self._has_all = True
        self._succeeded()

    async def _look_for_another(self) -> None:
        """Check whether another broker has replaced this one since it registered."""
        own, before = self._owner.announcement, self.taken_by
        try:
            request = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
            reply = await self._request(request, own.timeout)
            brokers = decode(ClusterInfo, reply.body).broker_addr_table
        except (ProtocolError, RegistrationRefused):
            return
        addresses = brokers[own.broker_name].broker_addrs if own.broker_name in brokers else {}
        there = addresses.get(own.broker_id, own.address)
        self.taken_by = None if there == own.address else there
        if self.taken_by not in {None, before}:
            _log.error(
                "another broker registers under this name and id: stop one of them, or give it"
                " another brokerName or brokerId",
                broker=own.broker_name,
                id=own.broker_id,
                address=own.address,
                other=self.taken_by,
            )

    async def _is_current(self) -> bool:
        try:
            reply = await self._request(
                self._owner.version_request(), self._owner.announcement.timeout
            )
        except RegistrationRefused:
            return False
        return not reply.read(QueryDataVersionResponseHeader).changed

    async def _request(self, command: Command, timeout: float) -> Command:
        address = self.state.address
        reply = await self._owner.pool.request(address, command, timeout=timeout)
        self._connection = self._owner.pool.connected(address)
        if reply.code != ResponseCode.SUCCESS:
            text = f"name server {address} answered code {reply.code}: {reply.remark}"
            if EXCEPTION in (reply.remark or ""):
                text += (
                    "; set pocketmqCredentials to the keys of an administrator there, or put this "
                    "broker's address on the name server's white list"
                )
            raise RegistrationRefused(text)
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
                "not registered; retrying until it works",
                nameserver=was.address,
                reason=str(error),
            )
