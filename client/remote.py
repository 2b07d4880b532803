"""Requests to brokers and name servers, with the client's errors.

Everything but sends and pulls goes through ``Remote.call``: it sets the codec, turns a connection's
failure into ``Unavailable`` and any answer but success into a ``RemoteError``.

Name servers are tried in turn until one answers, which is then used for all later requests. The
first one is random, so that many clients spread over the servers (cf. NettyRemotingClient).
"""

from __future__ import annotations

import random
from collections.abc import Container, Sequence
from typing import Final

from client.errors import (
    BrokerUnreachable,
    NoNameServer,
    NotSupported,
    RequestTimeout,
    Unavailable,
    UsageError,
    remote_error,
)
from client.limits import NAME_SERVER_TIMEOUT
from remoting.errors import (
    AnswerTimeout,
    ConnectFailed,
    ConnectionLost,
    RemotingError,
    TooManyRequests,
)
from remoting.pool import ConnectionPool
from remoting.protocol.codes import RequestCode, ResponseCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.headers.base import Header
from remoting.protocol.queue import MessageQueue

SUCCESS_ONLY: Final[frozenset[int]] = frozenset({ResponseCode.SUCCESS})


class Remote:
    """Requests to any peer over one pool of connections."""

    def __init__(self, pool: ConnectionPool, serialize: SerializeType, timeout: float) -> None:
        self.pool = pool
        self.serialize = serialize
        self.timeout = timeout

    def request(
        self,
        code: int,
        header: Header | None = None,
        *,
        body: bytes = b"",
        extra: Sequence[tuple[str, str]] = (),
        oneway: bool = False,
    ) -> Command:
        """A request in the codec of this client; ``extra`` fields come behind the header's."""
        command = Command.request(code, header, body=body, extra=extra, oneway=oneway)
        command.serialize = self.serialize
        return command

    async def call(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        *,
        body: bytes = b"",
        extra: Sequence[tuple[str, str]] = (),
        timeout: float | None = None,
        accept: Container[int] = SUCCESS_ONLY,
        topic: str | None = None,
        queue: MessageQueue | None = None,
        group: str | None = None,
    ) -> Command:
        """Ask ``address`` and return its answer.

        Args:
            extra: ext fields behind the header's.
            accept: response codes that are no error here.
            topic, queue, group: what errors say the request was about.

        Raises:
            Unavailable: it could not be reached or did not answer in time.
            RemoteError: it answered with another code.
        """
        timeout = self.timeout if timeout is None else timeout
        try:
            answer = await self.pool.request(
                address, self.request(code, header, body=body, extra=extra), timeout=timeout
            )
        except RemotingError as error:
            raise unavailable(error, address, topic=topic, queue=queue, group=group) from error
        if answer.code not in accept:
            raise remote_error(
                answer.code,
                answer.remark,
                name_of(code),
                topic=topic,
                queue=queue,
                group=group,
                broker=address,
            )
        return answer


def name_of(code: int) -> str:
    """A request code's name."""
    try:
        return RequestCode(code).name
    except ValueError:
        return f"request {code}"


def unavailable(
    error: RemotingError,
    address: str,
    *,
    topic: str | None = None,
    queue: MessageQueue | None = None,
    group: str | None = None,
) -> Unavailable:
    """What the state of a connection means to the user."""
    if isinstance(error, AnswerTimeout):
        return RequestTimeout(
            f"no answer to {name_of(error.code)} within {error.timeout:g} s",
            topic=topic,
            queue=queue,
            group=group,
            broker=address,
            hint="look at the load of that server, or raise the timeout",
        )
    if isinstance(error, ConnectFailed):
        text = f"no connection could be made: {error.reason}"
    elif isinstance(error, ConnectionLost):
        text = f"the connection ended: {error.reason}"
    elif isinstance(error, TooManyRequests):
        text = f"{error.limit} {error.what} wait on the connection already"
    else:
        text = str(error)
    return BrokerUnreachable(
        text,
        topic=topic,
        queue=queue,
        group=group,
        broker=address,
        hint="check that it runs and can be reached from here",
    )


SERVED_BY_ALL: Final = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    }
)
"""What every name server answers and no broker does."""


class NameServers:
    """The name servers of one client."""

    def __init__(
        self, remote: Remote, addresses: Sequence[str], *, choose: random.Random | None = None
    ) -> None:
        self._remote = remote
        self.addresses = list(addresses)
        self._current = (choose or random.Random()).randrange(len(self.addresses))  # noqa: S311

    @property
    def current(self) -> str:
        """The one that is asked first."""
        return self.addresses[self._current]

    async def ask(
        self,
        code: int,
        header: Header | None = None,
        *,
        body: bytes = b"",
        accept: Container[int] = SUCCESS_ONLY,
        topic: str | None = None,
    ) -> Command:
        """The answer of the first that gives one.

        Raises:
            NoNameServer: none did.
            UsageError: it is a broker.
            RemoteError: one answered with a code that is not accepted.
        """
        # From the one that answered last, so that a dead server costs one timeout only.
        failures: list[str] = []
        first = self._current
        for step in range(len(self.addresses)):
            index = (first + step) % len(self.addresses)
            try:
                answer = await self._remote.call(
                    self.addresses[index],
                    code,
                    header,
                    body=body,
                    timeout=NAME_SERVER_TIMEOUT,
                    accept=accept,
                    topic=topic,
                )
            except Unavailable as error:
                failures.append(f"{self.addresses[index]}: {error.message}")
            except NotSupported as error:
                if code not in SERVED_BY_ALL:
                    raise
                raise UsageError(
                    f"{self.addresses[index]} is a broker, not a name server",
                    topic=topic,
                    hint="give the name server's address, by default port 9876",
                ) from error
            else:
                self._current = index
                return answer
        raise NoNameServer(
            "no name server answers: " + "; ".join(failures),
            topic=topic,
            hint="check their addresses and that one of them runs",
        )

    async def ask_all(
        self, code: int, header: Header | None = None, *, accept: Container[int] = SUCCESS_ONLY
    ) -> list[Command]:
        """The answers of all, which share nothing: what is changed has to be changed at each.

        Raises:
            Unavailable: one could not be reached; those before it have done it.
            RemoteError: one refused.
        """
        return [
            await self._remote.call(
                address, code, header, timeout=NAME_SERVER_TIMEOUT, accept=accept
            )
            for address in self.addresses
        ]
