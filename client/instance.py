"""An instance: one set of connections, routes and heartbeats, shared by many producers and
consumers (cf. MQClientInstance).

A producer or consumer that is made by itself has an instance of its own. Everything belongs to the
event loop in which the instance was started, and to the process: use after a fork raises.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, cast, overload

from client.config import Addresses, ClientArguments, ClientOptions, check_arguments, name_servers
from client.errors import UsageError
from client.heartbeat import GROUP_REQUESTS, Members, Membership, Subscriptions, group_of
from client.heartbeats import Heartbeats
from client.lifecycle import Lifecycle, State
from client.name_servers import NameServers
from client.producer.fault_tolerance import FaultTable
from client.remote import Remote
from client.route_keeper import RouteKeeper
from client.route_subscription import RouteSubscription
from client.routes import Route, RouteTable
from client.serde import Serde, raw
from remoting.addresses import parse_address
from remoting.clock import SystemClock
from remoting.connection import Connection
from remoting.errors import RemotingError
from remoting.log import Log
from remoting.pool import ConnectionPool
from remoting.protocol.codes import SerializeType
from remoting.protocol.command import Command
from remoting.protocol.message.ids import UniqueIdGenerator
from remoting.tasks import Supervisor

if TYPE_CHECKING:
    from client.admin import Admin
    from client.config import ConsumerArguments, ProducerArguments
    from client.consumer.options import Handler, PushArguments, Subscribe
    from client.consumer.pull import PullConsumer
    from client.consumer.push import PushConsumer
    from client.producer.producer import Producer

T = TypeVar("T")
V = TypeVar("V")

_log = Log("client")

_SERIALIZE = {
    "json": SerializeType.JSON,
    "rocketmq": SerializeType.ROCKETMQ,
    "msgpack": SerializeType.JSON,
}
"""Requests of a msgpack client are JSON until the peer of a connection has agreed."""


class Instance(Generic[T]):
    """What producers, consumers and admins of one process share.

    Args:
        nameservers: ``host:port;host:port``; without it the environment's NAMESRV_ADDR.
        serde: the one of all producers and consumers made from it that don't name their own.
        options: see ``client.config.ClientOptions``.

    Raises:
        UsageError: an argument is wrong, or no name server is given.
    """

    @overload
    def __init__(
        self: Instance[bytes],
        nameservers: Addresses | None = None,
        *,
        serde: None = None,
        **options: Unpack[ClientArguments],
    ) -> None: ...

    @overload
    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        serde: Serde[T],
        **options: Unpack[ClientArguments],
    ) -> None: ...

    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        serde: Serde[Any] | None = None,
        **options: Unpack[ClientArguments],
    ) -> None:
        check_arguments("Instance", options, ClientArguments)
        self._options = ClientOptions.gather(options)
        self._nameservers = name_servers(nameservers, self._options)
        self._serde = cast("Serde[T]", serde or raw)
        self._life = Lifecycle("instance")
        self._clock = SystemClock()
        self._members = Members()
        self._parts: list[Producer[Any] | PullConsumer[Any] | PushConsumer[Any]] = []
        self._client_id = ""

    @classmethod
    def _for_part(
        cls, nameservers: Addresses | None, options: Mapping[str, Any]
    ) -> Instance[bytes]:
        """The own instance of a producer, consumer or admin."""
        names = ClientArguments.__annotations__
        own = {name: value for name, value in options.items() if name in names}
        return Instance(nameservers, **cast(ClientArguments, own))

    @property
    def client_id(self) -> str:
        """How brokers know this client; empty before the start."""
        return self._client_id

    # Life

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
        if self._life.state is State.OPEN:
            return
        if self._life.state is State.CLOSED:
            self._life.check()
        options = self._options
        ip = options.ip or await _local_ip(self._nameservers[0])
        self._set_identity(ip)
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
        self._subscription = RouteSubscription(self.remote, self.name_servers, table)
        self.routes = RouteKeeper(
            self.name_servers,
            table,
            self._clock,
            self._tasks,
            self._subscription.name_topics,
            self._route_changed,
        )
        self.faults = FaultTable()
        self.heartbeats = Heartbeats(
            self.client_id,
            self._members,
            self.remote,
            table,
            self.faults,
            self._tasks,
            options.heartbeat_period,
        )
        self._life.state = State.OPEN
        self._tasks.spawn(self.routes.run(), "routes")
        self._tasks.spawn(self.heartbeats.run(), "heartbeats")

    def _set_identity(self, ip: str) -> None:
        choose = random.SystemRandom()
        self._client_id = f"{ip}@{os.getpid()}#{choose.getrandbits(48)}"
        try:
            self._ids = UniqueIdGenerator(
                ip, os.getpid(), choose.getrandbits(32), self._clock.now_ms
            )
        except ValueError as error:
            raise UsageError(str(error), hint="give ip as a numeric address") from None

    async def close(self) -> None:
        """Close what was made from it, then its connections. May be called twice."""
        if self._life.state is not State.OPEN or self._life.forked:
            return
        for part in list(self._parts):
            await part.close()
        self._life.state = State.CLOSED
        await self._tasks.close()
        await self._pool.close()

    def _failed(self, task: str, error: BaseException) -> None:
        _log.error("a background task of the client died", task=task, error=repr(error))

    # Parts

    @overload
    def producer(
        self, *, group: str = ..., serde: None = None, **options: Unpack[ProducerArguments]
    ) -> Producer[T]: ...

    @overload
    def producer(
        self, *, group: str = ..., serde: Serde[V], **options: Unpack[ProducerArguments]
    ) -> Producer[V]: ...

    def producer(
        self,
        *,
        group: str = "pocketmq-producer",
        serde: Serde[Any] | None = None,
        **options: Unpack[ProducerArguments],
    ) -> Producer[Any]:
        """A producer that shares this instance; it is ready at once and closes with it."""
        from client.producer.producer import Producer  # noqa: PLC0415 - they make each other

        self._life.check()
        producer = Producer._of(self, group, serde or self._serde, options)
        producer._open()
        return producer

    @overload
    def pull_consumer(
        self, *, group: str, serde: None = None, **options: Unpack[ConsumerArguments]
    ) -> PullConsumer[T]: ...

    @overload
    def pull_consumer(
        self, *, group: str, serde: Serde[V], **options: Unpack[ConsumerArguments]
    ) -> PullConsumer[V]: ...

    def pull_consumer(
        self, *, group: str, serde: Serde[Any] | None = None, **options: Unpack[ConsumerArguments]
    ) -> PullConsumer[Any]:
        """A pull consumer that shares this instance; it is ready at once and closes with it."""
        from client.consumer.pull import PullConsumer  # noqa: PLC0415 - they make each other

        self._life.check()
        consumer = PullConsumer._of(self, group, serde or self._serde, options)
        consumer._open()
        return consumer

    @overload
    def push_consumer(
        self,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Handler[T] | None = None,
        serde: None = None,
        **options: Unpack[PushArguments],
    ) -> PushConsumer[T]: ...

    @overload
    def push_consumer(
        self,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Handler[V] | None = None,
        serde: Serde[V],
        **options: Unpack[PushArguments],
    ) -> PushConsumer[V]: ...

    def push_consumer(
        self,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Handler[Any] | None = None,
        serde: Serde[Any] | None = None,
        **options: Unpack[PushArguments],
    ) -> PushConsumer[Any]:
        """A push consumer that shares this instance; it begins with ``start`` or ``async with``."""
        from client.consumer.push import PushConsumer  # noqa: PLC0415 - they make each other

        self._life.check()
        return PushConsumer._of(self, group, subscribe, handler, serde or self._serde, options)

    def admin(self) -> Admin:
        """An admin that shares this instance."""
        from client.admin import Admin  # noqa: PLC0415 - they make each other

        self._life.check()
        return Admin._of(self)

    def _register_producer(self, producer: Producer[Any]) -> None:
        self._parts.append(producer)
        self._members.add_producer(producer.group)
        self.heartbeats.soon()

    async def _unregister_producer(self, producer: Producer[Any]) -> None:
        self._parts.remove(producer)
        if self._members.remove_producer(producer.group):
            await self.heartbeats.say_goodbye(producer_group=producer.group)

    def _register_consumer(self, consumer: PullConsumer[Any], subscriptions: Subscriptions) -> None:
        self._parts.append(consumer)
        self._members.add_consumer(consumer.group, subscriptions)
        self.heartbeats.soon()

    async def _unregister_consumer(
        self, consumer: PullConsumer[Any], subscriptions: Subscriptions
    ) -> None:
        self._parts.remove(consumer)
        if self._members.remove_consumer(consumer.group, subscriptions):
            await self.heartbeats.say_goodbye(consumer_group=consumer.group)

    def _join(self, member: Membership) -> None:
        """A member that shares queues is told of from now on, and hears what brokers ask of it."""
        self._members.join(member)

    async def _leave(self, member: Membership) -> None:
        self._members.leave(member)
        await self.heartbeats.say_goodbye(consumer_group=member.group)

    def heartbeat_soon(self) -> None:
        """What heartbeats say has changed: tell the brokers now."""
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

    def doubt(self, address: str) -> None:
        """A request was not answered: a heartbeat finds out whether the connection is dead."""
        self.heartbeats.doubt(address)

    # What peers ask of us

    def _handle(self, command: Command, _: Connection) -> Command | None:
        if command.code in GROUP_REQUESTS:
            member = self._members.membership(group_of(command) or "")
            if member is not None:
                return member.asked(command)
        return self._subscription.handle(command, self.routes)

    def _route_changed(self, route: Route) -> None:
        self._subscription.name_topics(route.topic)
        for member in self._members.memberships:
            member.route_changed(route.topic)


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
