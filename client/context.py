"""What producers, consumers and admins of one process share (cf. MQClientInstance).

One set of connections, routes and heartbeats. It belongs to the event loop in which it was started,
and to the process: use after a fork raises.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from client.config import Addresses, ClientArguments, ClientOptions, name_servers
from client.errors import UsageError
from client.heartbeat import (
    GROUP_REQUESTS,
    Heartbeats,
    Members,
    Membership,
    Subscriptions,
    group_of,
)
from client.lifecycle import Lifecycle, LifecycleState
from client.limits import HEARTBEAT_TIMEOUT
from client.name_servers import NameServers, RouteKeeper
from client.remote import Remote
from client.routes import FaultTable, RouteTable
from remoting.addresses import parse_address
from remoting.clock import SystemClock
from remoting.connection import Connection
from remoting.errors import RemotingError
from remoting.log import Log
from remoting.pool import ConnectionPool
from remoting.protocol.codes import ResponseCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.message.ids import UniqueIdGenerator
from remoting.protocol.own_codes import OwnRequestCode
from remoting.tasks import Supervisor

_log = Log("client")

_SERIALIZE = {
    "json": SerializeType.JSON,
    "rocketmq": SerializeType.ROCKETMQ,
    "msgpack": SerializeType.JSON,
}
"""Requests of a msgpack client are JSON until the peer of a connection has agreed."""


class ClientContext:
    """Connections, routes and heartbeats; ``Instance`` is its public face.

    A producer or consumer made by itself has a context of its own.

    Attributes:
        life: whether it may be used now.
        clock, ids: for timestamps and unique ids of messages.
        members: who uses it; heartbeats describe them.
        remote: requests to any address.
        name_servers, routes, faults, heartbeats: see their modules.
    """

    def __init__(
        self,
        nameservers: Addresses | None,
        options: Mapping[str, Any],
        *,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
    ) -> None:
        """Raises UsageError: an option is wrong, or no name server is given.

        Args:
            options: of these it takes those of ``ClientOptions``.
            heartbeat_timeout: seconds for one heartbeat.
        """
        self._heartbeat_timeout = heartbeat_timeout
        names = ClientArguments.__annotations__
        own = {name: value for name, value in options.items() if name in names}
        self._options = ClientOptions.gather(own)
        self._nameservers = name_servers(nameservers, self._options)
        self.life = Lifecycle("instance")
        self.clock = SystemClock()
        self.members = Members()
        self._parts: list[ClientPart] = []
        self._client_id = ""

    @property
    def client_id(self) -> str:
        """How brokers know this client; empty before the start."""
        return self._client_id

    # Life

    async def start(self) -> None:
        """Get ready. Nothing is connected before it is needed."""
        self.life.check_process()
        if self.life.state is LifecycleState.OPEN:
            return
        if self.life.state is LifecycleState.CLOSED:
            self.life.check()
        options = self._options
        ip = options.ip or await _local_ip(self._nameservers[0])
        # Random, so that forks and containers that share an address have different ids.
        choose = random.SystemRandom()
        self._client_id = f"{ip}@{os.getpid()}#{choose.getrandbits(48)}"
        try:
            self.ids = UniqueIdGenerator(ip, os.getpid(), choose.getrandbits(32), self.clock.now_ms)
        except ValueError as error:
            raise UsageError(str(error), hint="give ip as a numeric address") from None
        self._tasks = Supervisor(f"client {self.client_id}", on_failure=self._failed)
        self._pool = ConnectionPool(
            self._handle,
            connect_timeout=options.connect_timeout,
            offer_msgpack=options.codec == "msgpack",
            name="client",
        )
        self.remote = Remote(self._pool, _SERIALIZE[options.codec], options.request_timeout)
        self.name_servers = NameServers(self.remote, self._nameservers)
        table = RouteTable(options.route_refresh_period)
        self.routes = RouteKeeper(
            self.remote,
            self.name_servers,
            table,
            self.clock,
            self._tasks,
            self.members.route_changed,
        )
        self.faults = FaultTable()
        self.heartbeats = Heartbeats(
            self.client_id,
            self.members,
            self.remote,
            table,
            self.faults,
            self._tasks,
            options.heartbeat_period,
            self._heartbeat_timeout,
        )
        self.life.state = LifecycleState.OPEN
        self._tasks.spawn(self.routes.run(), "routes")
        self._tasks.spawn(self.heartbeats.run(), "heartbeats")

    async def close(self) -> None:
        """Close what was made from it, then its connections. May be called twice."""
        if self.life.state is not LifecycleState.OPEN or self.life.forked:
            return
        for part in list(self._parts):
            await part.close()
        self.life.state = LifecycleState.CLOSED
        await self._tasks.close()
        await self._pool.close()

    def _failed(self, task: str, error: BaseException) -> None:
        _log.error("a background task of the client died", task=task, error=repr(error))

    # Parts

    def add_part(self, part: ClientPart) -> None:
        """``close`` closes it, too."""
        self._parts.append(part)

    def remove_part(self, part: ClientPart) -> None:
        """It has closed."""
        self._parts.remove(part)

    def add_producer(self, producer: ClientPart, group: str) -> None:
        """Tell brokers of a producer."""
        self._parts.append(producer)
        self.members.add_producer(group)
        self.heartbeats.soon()

    async def remove_producer(self, producer: ClientPart, group: str) -> None:
        """A producer has closed; tell brokers if it was the last of its group."""
        self._parts.remove(producer)
        if self.members.remove_producer(group):
            await self.heartbeats.say_goodbye(producer_group=group)

    def add_consumer(self, consumer: ClientPart, group: str, subscriptions: Subscriptions) -> None:
        """Tell brokers of a pull consumer."""
        self._parts.append(consumer)
        self.members.add_consumer(group, subscriptions)
        self.heartbeats.soon()

    async def remove_consumer(
        self, consumer: ClientPart, group: str, subscriptions: Subscriptions
    ) -> None:
        """A pull consumer has closed; tell brokers if it was the last of its group."""
        self._parts.remove(consumer)
        if self.members.remove_consumer(group, subscriptions):
            await self.heartbeats.say_goodbye(consumer_group=group)

    def join(self, member: Membership) -> None:
        """Describe a member that shares queues in heartbeats, and pass it requests of brokers."""
        self.members.join(member)

    async def leave(self, member: Membership) -> None:
        """The opposite of ``join``; tells brokers."""
        self.members.leave(member)
        await self.heartbeats.say_goodbye(consumer_group=member.group)

    def heartbeat_soon(self) -> None:
        """Send heartbeats now: their content has changed."""
        self.heartbeats.soon()

    # Connections to brokers

    def connected(self, address: str) -> Connection | None:
        """The open connection to a broker that has had a heartbeat."""
        return self.heartbeats.connected(address)

    async def connect(self, address: str, timeout: float) -> Connection:
        """A connection to a broker; on a new one the heartbeat goes first.

        Raises:
            ConnectFailed: it can't be made within ``timeout`` seconds.
        """
        return await self.heartbeats.connect(address, timeout)

    def probe(self, address: str) -> None:
        """A request was not answered: a heartbeat finds out whether the connection is dead."""
        self.heartbeats.probe(address)

    # Requests of peers

    def _handle(self, command: Command, _: Connection) -> Command | None:
        if command.code in GROUP_REQUESTS:
            member = self.members.membership(group_of(command) or "")
            if member is not None:
                return member.asked(command)
        if command.code == OwnRequestCode.ROUTE_CHANGED:
            self.routes.announced(command)
            return None
        if command.is_oneway:
            return None
        return command.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f" request type {command.code} not supported",
        )


class ClientPart:
    """What producers, consumers and admins share: a context, and whether they may be used now.

    A part has a context of its own, or shares one that is open.
    """

    def _attach(self, kind: str, context: ClientContext, *, shared: bool) -> None:
        """``kind`` is how errors call it."""
        self._life = Lifecycle(kind)
        self._context = context
        self._owns_context = not shared

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Get ready. Nothing is connected before it is needed."""
        self._life.check_process()
        if self._life.state is LifecycleState.CLOSED:
            self._life.check()
        if self._life.state is LifecycleState.OPEN:
            return
        if self._owns_context:
            await self._context.start()
        self._open()

    def _open(self) -> None:
        """Begin to work on the open context."""
        self._context.life.check()
        self._life.state = LifecycleState.OPEN

    async def close(self) -> None:
        """Leave, and settle what is under way."""
        raise NotImplementedError


async def _local_ip(nameserver: str) -> str:
    """This machine's address as the name server sees it; asks the routing table, sends nothing."""
    try:
        host, port = parse_address(nameserver)
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, RemotingError) as error:
        _log.warning("own address not found, using 127.0.0.1", error=str(error))
        return "127.0.0.1"
