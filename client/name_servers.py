"""Asking the name servers: one after the other until one answers, then always that one.

The start is random, so that many clients spread over the servers (cf. NettyRemotingClient).
"""

from __future__ import annotations

import random
from collections.abc import Container, Sequence
from typing import Final

from client.errors import NoNameServer, NotSupported, Unavailable, UsageError
from client.limits import NAME_SERVER_TIMEOUT
from client.remote import SUCCESS_ONLY, Remote
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.base import Header

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
