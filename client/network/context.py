"""The connections, routes and heartbeats that the clients of one process share.

A ``ClientContext`` (cf. MQClientInstance) belongs to the event loop in which it was started, and to
its process: using it after a fork raises.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeAlias

from client.config import Addresses, ClientArguments, ClientOptions, name_servers
from client.errors import UsageError
from client.lifecycle import Lifecycle, LifecycleState
from client.limits import HEARTBEAT_TIMEOUT, MAX_BROKERS_KNOWN, MAX_REQUESTS
from client.network.heartbeat import (
    GROUP_REQUESTS,
    Heartbeats,
    Members,
    Membership,
    Subscriptions,
    group_of,
)
from client.network.name_servers import NameServers, RouteKeeper
from client.network.remote import Remote
from client.network.routes import FaultTable, RouteTable
from remoting.addresses import parse_address
from remoting.connection import Connection
from remoting.errors import RemotingError
from remoting.pool import ConnectionPool
from remoting.protocol.codes import RequestCode, ResponseCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.errors import RecordError
from remoting.protocol.message import properties
from remoting.protocol.message.ids import UniqueIdGenerator
from remoting.protocol.message.view import RecordView
from remoting.protocol.own_codes import OwnRequestCode
from remoting.runtime.clock import SystemClock
from remoting.runtime.log import Log
from remoting.runtime.settings import ConfigError
from remoting.runtime.tasks import Supervisor
from remoting.security.credentials import signer_of

_log = Log("client")

_SERIALIZE = {
    "json": SerializeType.JSON,
    "rocketmq": SerializeType.ROCKETMQ,
    "msgpack": SerializeType.JSON,
}
"""Requests of a msgpack client are JSON until the peer of a connection has agreed."""


class Replies:
    """Requests to consumers that wait for their reply, by correlation id."""

    def __init__(self, limit: int = MAX_REQUESTS) -> None:
        self._waiting: dict[str, asyncio.Future[Command]] = {}
        self._limit = limit

    def expect(self, correlation_id: str) -> asyncio.Future[Command]:
        """Return a future of the reply (PUSH_REPLY_MESSAGE_TO_CLIENT). Raises UsageError."""
        if len(self._waiting) >= self._limit:
            raise UsageError(
                f"{self._limit} requests wait for their reply already",
                hint="send fewer at a time, or use a second instance",
            )
        future = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        return future

    def forget(self, correlation_id: str) -> None:
        """Stop waiting for a reply."""
        self._waiting.pop(correlation_id, None)

    def pushed(self, command: Command) -> None:
        """Pass a reply that a broker has pushed to the request that waits for it."""
        received = properties.decode((command.fields.get("properties") or "").encode())
        future = self._waiting.get(received.get(properties.CORRELATION_ID, ""))
        if future is None:
            _log.warning(
                "a reply came that nobody waits for; it may be late",
                topic=command.fields.get("topic"),
                message=received.get(properties.UNIQ_KEY),
            )
        elif not future.done():
            # Copy the body, a view of a buffer that is reused.
            command.body = bytes(command.body)
            future.set_result(command)


OnCheck: TypeAlias = Callable[[RecordView, Command, Connection], None]
"""Called with a half message, the request CHECK_TRANSACTION_STATE and its connection."""


class ClientContext:
    """Connections, routes and heartbeats; ``Instance`` is the public interface.

    A producer or consumer created without an instance has its own context.

    Attributes:
        life: whether the context may be used now.
        clock, ids: for message timestamps and unique message ids.
        members: producers and consumers that heartbeats describe.
        remote: sends requests to any address.
        replies: requests to consumers that wait for their reply.
        send_answers: the fields given to ``keep_send_answer``, by broker name.
        name_servers, routes, faults, heartbeats: see their modules.
    """

    def __init__(
        self,
        nameservers: Addresses | None,
        options: Mapping[str, Any],
        *,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
    ) -> None:
        """Check the options; raise UsageError if one is wrong or no name server is given.

        Args:
            options: names that ``ClientOptions`` lacks are ignored.
            heartbeat_timeout: seconds for one heartbeat.
        """
        self._heartbeat_timeout = heartbeat_timeout
        names = ClientArguments.__annotations__
        own = {name: value for name, value in options.items() if name in names}
        self._options = ClientOptions.gather(own)
        self._nameservers = name_servers(nameservers, self._options)
        try:
            self._signer = signer_of(self._options.credentials)
        except ConfigError as error:
            raise UsageError(str(error)) from None
        self.life = Lifecycle("instance")
        self.clock = SystemClock()
        self.members = Members()
        self.replies = Replies()
        self.send_answers: dict[str, tuple[tuple[str, str], ...]] = {}
        self._parts: list[ClientPart] = []
        self._checks: dict[str, list[OnCheck]] = {}
        self._client_id = ""

    @property
    def client_id(self) -> str:
        """The id under which brokers register this client; empty before the start."""
        return self._client_id

    # Lifecycle

    async def start(self) -> None:
        """Start the background tasks. Connections are opened when they are needed."""
        await self.life.start(self._start)

    async def _start(self) -> None:
        options = self._options
        ip = options.ip or await _local_ip(self._nameservers[0])
        # Random, so that forks and containers with the same address and pid have different ids.
        choose = random.SystemRandom()
        name = options.instance_name or f"{os.getpid()}#{choose.getrandbits(48)}"
        unit = f"@{options.unit_name}" if options.unit_name else ""
        self._client_id = f"{ip}@{name}{unit}"
        try:
            self.ids = UniqueIdGenerator(ip, os.getpid(), choose.getrandbits(32), self.clock.now_ms)
        except ValueError as error:
            raise UsageError(str(error), hint="give ip as a numeric address") from None
        self._tasks = Supervisor(f"client {self.client_id}", on_failure=self._failed)
        self._pool = ConnectionPool(
            self._handle,
            connect_timeout=options.connect_timeout,
            tls=options.tls,
            offer_msgpack=options.codec == "msgpack",
            signer=self._signer,
            name="client",
        )
        self.remote = Remote(
            self._pool, _SERIALIZE[options.codec], options.request_timeout, self._signer
        )
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
        """Close the parts created from it, then its connections. May be called twice.

        Called from a handler of a part it only starts that, because it would wait for itself.
        """
        await self.life.close(self._close, wait=not self.inside)

    @property
    def inside(self) -> bool:
        """Whether the caller runs inside a handler of a part."""
        return any(part._inside() for part in self._parts)

    async def _close(self) -> None:
        for part in list(self._parts):
            await part.close()
        self.life.state = LifecycleState.CLOSED
        await self._tasks.close()
        await self._pool.close()

    def _failed(self, task: str, error: BaseException) -> None:
        _log.error("a background task of the client died", task=task, error=repr(error))

    # Parts

    def add_part(self, part: ClientPart) -> None:
        """Close ``part`` too when the context closes."""
        self._parts.append(part)

    def remove_part(self, part: ClientPart) -> None:
        """Remove a part that has closed."""
        self._parts.remove(part)

    def add_producer(
        self, producer: ClientPart, group: str, on_check: OnCheck | None = None
    ) -> None:
        """Add a producer and announce it to the brokers.

        Args:
            on_check: called when a broker asks for the outcome of a transaction of the group.
        """
        self._parts.append(producer)
        if on_check is not None:
            self._checks.setdefault(group, []).append(on_check)
        self.members.add_producer(group)
        self.heartbeats.soon()

    async def remove_producer(
        self, producer: ClientPart, group: str, on_check: OnCheck | None = None
    ) -> None:
        """Remove a closed producer; unregister if it was the last of its group."""
        self._parts.remove(producer)
        if on_check is not None:
            self._checks[group].remove(on_check)
        if self.members.remove_producer(group):
            await self.heartbeats.unregister(producer_group=group)

    def add_consumer(self, consumer: ClientPart, group: str, subscriptions: Subscriptions) -> None:
        """Add a pull consumer and announce it to the brokers."""
        self._parts.append(consumer)
        self.members.add_consumer(group, subscriptions)
        self.heartbeats.soon()

    async def remove_consumer(
        self, consumer: ClientPart, group: str, subscriptions: Subscriptions
    ) -> None:
        """Remove a closed pull consumer; unregister if it was the last of its group."""
        self._parts.remove(consumer)
        if self.members.remove_consumer(group, subscriptions):
            await self.heartbeats.unregister(consumer_group=group)

    async def leave(self, member: Membership) -> None:
        """Remove a member that shares queues, and unregister unless its group has another here."""
        self.members.leave(member)
        if self.members.membership(member.group) is None:
            await self.heartbeats.unregister(consumer_group=member.group)

    def heartbeat_soon(self) -> None:
        """Send heartbeats without waiting for the period: their content has changed."""
        self.heartbeats.soon()

    # Connections to brokers

    def connected(self, address: str) -> Connection | None:
        """Return the open connection to a broker that has had a heartbeat, or None."""
        return self.heartbeats.connected(address)

    async def connect(self, address: str, timeout: float) -> Connection:
        """Return a connection to a broker; on a new one, send the heartbeats first.

        Raises:
            ConnectFailed: it can't be made within ``timeout`` seconds.
        """
        return await self.heartbeats.connect(address, timeout)

    def keep_send_answer(self, broker: str, fields: tuple[tuple[str, str], ...]) -> None:
        """Keep the ext fields of a broker's last answer to a send, for interceptors."""
        if len(self.send_answers) >= MAX_BROKERS_KNOWN:
            self.send_answers.clear()
        self.send_answers[broker] = fields

    # Requests of peers

    def _handle(
        self, command: Command, connection: Connection
    ) -> Command | Awaitable[Command] | None:
        if command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            self.replies.pushed(command)
            return command.reply()
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._check_transaction(command, connection)
            return None
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

    def _check_transaction(self, command: Command, connection: Connection) -> None:
        try:
            record = RecordView(command.body)
            group = record.properties.get(properties.PGROUP, "")
        except RecordError as error:
            _log.warning("the message of a transaction check can't be read", error=str(error))
            return
        if checks := self._checks.get(group):
            checks[0](record, command, connection)


def context_of(part: ClientPart) -> ClientContext:
    """Return the context of a part."""
    return part._context


class ClientPart:
    """Base of producers, consumers and admins: a context, and a lifecycle.

    A part owns its context, or shares one that is already open.
    """

    def _attach(self, kind: str, context: ClientContext, *, shared: bool) -> None:
        """Set the context; ``kind`` names the part in errors."""
        self._life = Lifecycle(kind)
        self._context = context
        self._owns_context = not shared

    @property
    def client_id(self) -> str:
        """The id under which brokers register its client, once it is started."""
        return self._context.client_id

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
        """Start. Connections are opened when they are needed."""
        await self._life.start(self._start)

    async def _start(self) -> None:
        if self._owns_context:
            await self._context.start()
        try:
            await self._join()
        except BaseException:
            if self._owns_context:
                await self._context.close()
            raise

    async def _join(self) -> None:
        self._open()

    def _open(self) -> None:
        """Start to work on the open context."""
        self._context.life.check()
        self._life.state = LifecycleState.OPEN

    async def close(self) -> None:
        """Leave the groups, and finish or cancel what is in flight."""
        raise NotImplementedError

    def _inside(self) -> bool:
        """Return whether the caller runs inside a handler of this part."""
        return False


async def _local_ip(nameserver: str) -> str:
    """Return this machine's address on the route to the name server. Nothing is sent."""
    try:
        host, port = parse_address(nameserver)
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = infos[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, RemotingError) as error:
        _log.warning("own address not found, using 127.0.0.1", error=str(error))
        return "127.0.0.1"


def is_inside(part: Any) -> bool:
    """Return whether the caller runs inside a handler of a part, or of an instance's parts."""
    return bool(part._inside())
