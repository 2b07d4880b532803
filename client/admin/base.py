"""Base of the admin's parts: lifecycle, finding brokers, and requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Hashable, Iterable, Mapping
from contextvars import ContextVar
from typing import Final, NamedTuple, TypeVar, Unpack

from client.config import Addresses, ClientArguments, check_arguments
from client.errors import (
    ErrorSubject,
    NoRoute,
    PocketMQError,
    RemoteError,
    Unavailable,
    UsageError,
    remote_error,
)
from client.lifecycle import LifecycleState
from client.network.context import ClientContext, ClientPart
from client.network.name_servers import NameServers, RouteKeeper
from client.network.remote import Remote, name_of
from client.network.routes import MASTER_ID, Route
from client.offsets import Offsets
from remoting.protocol.bodies import Body, decode
from remoting.protocol.bodies.route import ClusterInfo
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command, Header
from remoting.protocol.errors import BodyError
from remoting.protocol.queue import MessageQueue

A = TypeVar("A", bound="AdminBase")
B = TypeVar("B", bound=Body)
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


LEFT_OUT: Final[ContextVar[Collection[str]]] = ContextVar("LEFT_OUT", default=())
"""Addresses of brokers that aren't asked for what others have too.

For callers that know which ones don't answer, and say so; without it, one that is down fails a
request for what all have.
"""


class BrokerInfo(NamedTuple):
    """One broker process.

    Attributes:
        cluster, name: its cluster and broker name.
        id: broker id; 0 is the master.
        address: ``ip:port`` as registered at the name server.
    """

    cluster: str
    name: str
    id: int
    address: str


class AdminBase(ClientPart):
    """See ``client.admin.Admin``."""

    def __init__(
        self, nameservers: Addresses | None = None, **options: Unpack[ClientArguments]
    ) -> None:
        check_arguments("Admin", options, ClientArguments)
        self._attach("admin", ClientContext(nameservers, options), shared=False)

    def _open(self) -> None:
        super()._open()
        self._offsets = Offsets(self._context)

    async def close(self) -> None:
        """Close the connections, unless they belong to an instance."""
        await self._life.close(self._close)

    async def _close(self) -> None:
        self._life.state = LifecycleState.CLOSED
        if self._owns_context:
            await self._context.close()

    @property
    def _remote(self) -> Remote:
        self._life.check()
        self._context.life.check()
        return self._context.remote

    @property
    def _routes(self) -> RouteKeeper:
        self._life.check()
        return self._context.routes

    @property
    def _name_servers(self) -> NameServers:
        self._life.check()
        return self._context.name_servers

    async def _ask(
        self,
        kind: type[B],
        address: str,
        code: int,
        header: Header | None = None,
        *,
        timeout: float | None = None,
        **subject: Unpack[ErrorSubject],
    ) -> B:
        """Send a request to a broker and return the decoded body.

        Raises Unavailable, RemoteError.
        """
        answer = await self._remote.call(address, code, header, timeout=timeout, **subject)
        return decoded(kind, answer, code, address)

    async def _ask_name_server(
        self, kind: type[B], code: int, header: Header | None = None, *, topic: str | None = None
    ) -> B:
        """Send a request to a name server and return the decoded body.

        Raises Unavailable, RemoteError.
        """
        return decoded(kind, await self._name_servers.ask(code, header, topic=topic), code)

    async def cluster(self) -> ClusterInfo:
        """Return all brokers registered at the name server, by cluster and name."""
        return await self._ask_name_server(ClusterInfo, RequestCode.GET_BROKER_CLUSTER_INFO)

    async def brokers(
        self, *, cluster: str | None = None, names: Iterable[str] | None = None
    ) -> list[BrokerInfo]:
        """Return the brokers, sorted by cluster, name and id.

        Args:
            cluster: only the brokers of this cluster.
            names: only the brokers with these names.
        """
        table = (await self.cluster()).broker_addr_table
        chosen = set(table if names is None else names)
        if unknown := chosen - table.keys():
            raise UsageError(
                f"there is no broker {min(unknown)!r}",
                hint=f"there are {', '.join(sorted(table)) or 'no brokers'}",
            )
        return sorted(
            BrokerInfo(broker.cluster, name, broker_id, address)
            for name, broker in table.items()
            if name in chosen and cluster in {None, broker.cluster}
            for broker_id, address in broker.broker_addrs.items()
        )

    async def _masters(
        self, cluster: str | None = None, names: Iterable[str] | None = None
    ) -> dict[str, str]:
        """Return the address of each master by broker name. Raises NoRoute if there is none."""
        masters = {
            broker.name: broker.address
            for broker in await self.brokers(cluster=cluster, names=names)
            if broker.id == MASTER_ID
        }
        if not masters:
            raise NoRoute(
                "no master broker is registered" + (f" in cluster {cluster}" if cluster else ""),
                hint="start one, or look at Admin.brokers()",
            )
        return masters

    async def _readers(self, topic: str | None = None) -> dict[str, str]:
        """Return whom to ask of each broker name: its master, or a slave if there is none.

        Raises NoRoute if no broker is registered.

        Args:
            topic: only brokers that have it.
        """
        if topic is None:
            known = [(broker.name, broker.address) for broker in reversed(await self.brokers())]
        else:
            route = await self._routes.fresh(topic)
            known = [(name, address) for name in route.brokers if (address := route.address(name))]
        if not known:
            raise NoRoute("no broker is registered", hint="start one", topic=topic)
        left_out = LEFT_OUT.get()
        return dict(pair for pair in known if pair[1] not in left_out) or dict(known)

    async def _masters_of(self, topic: str) -> dict[str, str]:
        """Return the address of each master that has the topic, by broker name.

        Raises NoRoute if none is registered.
        """
        route = await self._routes.fresh(topic)
        masters = {name: address for name in route.brokers if (address := route.master(name))}
        if not masters:
            raise NoRoute("none of its brokers' masters is registered", topic=topic)
        return masters


def asked_queues(route: Route) -> list[MessageQueue]:
    """Return the readable queues, without those of ``LEFT_OUT`` brokers unless all are."""
    left_out = LEFT_OUT.get()
    asked = [queue for queue in route.readable if route.address(queue.broker_name) not in left_out]
    return asked or list(route.readable)


def sharing(kind: type[A], context: ClientContext) -> A:
    """Return an admin of class ``kind`` that shares an open context."""
    admin = kind.__new__(kind)
    admin._attach("admin", context, shared=True)
    admin._open()
    return admin


def decoded(kind: type[B], answer: Command, code: int, broker: str | None = None) -> B:
    """Return the decoded body of an answer. Raises RemoteError if it is malformed."""
    try:
        return decode(kind, answer.body)
    except BodyError as error:
        raise remote_error(
            ResponseCode.SYSTEM_ERROR, str(error), f"the answer to {name_of(code)}", broker=broker
        ) from error


async def gathered(
    asked: Mapping[K, Awaitable[T]],
) -> tuple[dict[K, T], dict[K, PocketMQError]]:
    """Await all answers; return them, and why brokers gave none: they are down or refuse."""
    outcomes = await asyncio.gather(*asked.values(), return_exceptions=True)
    answers: dict[K, T] = {}
    failures: dict[K, PocketMQError] = {}
    for key, outcome in zip(asked, outcomes, strict=True):
        if isinstance(outcome, RemoteError | Unavailable):
            failures[key] = outcome
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            answers[key] = outcome
    return answers, failures
