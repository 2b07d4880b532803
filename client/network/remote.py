"""Requests to brokers and name servers, with errors of ``client.errors``.

All requests except sends and pulls use ``Remote.call``. It sets the codec, turns connection
failures into ``Unavailable`` and any unaccepted response code into ``RemoteError``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Final, TypeVar, Unpack

from client.errors import (
    BrokerUnreachable,
    ErrorSubject,
    PocketMQError,
    RequestTimeout,
    Unavailable,
    UsageError,
    remote_error,
)
from client.wire.backoff import Backoff, retry_after
from remoting.errors import (
    AnswerTimeout,
    ConnectFailed,
    ConnectionLost,
    RemotingError,
    TooManyRequests,
)
from remoting.pool import ConnectionPool
from remoting.protocol.codes import RequestCode, ResponseCode, SerializeType
from remoting.protocol.command import Command, Header
from remoting.protocol.errors import ProtocolError
from remoting.protocol.queue import MessageQueue
from remoting.security.credentials import Signer

H = TypeVar("H", bound=Header)
R = TypeVar("R")

SUCCESS_ONLY: Final[frozenset[int]] = frozenset({ResponseCode.SUCCESS})
FOUND_OR_NOT: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})


class Remote:
    """Requests to any address over one connection pool, whose requests ``signer`` signs."""

    def __init__(
        self,
        pool: ConnectionPool,
        serialize: SerializeType,
        timeout: float,
        signer: Signer | None = None,
    ) -> None:
        self._signer = signer
        self.pool = pool
        self.serialize = serialize
        self.timeout = timeout

    @property
    def account(self) -> str | None:
        """The account that signs the requests now; None: they are not signed."""
        return None if self._signer is None else self._signer.account

    def request(
        self,
        code: int,
        header: Header | None = None,
        *,
        body: bytes = b"",
        extra: Sequence[tuple[str, str]] = (),
        oneway: bool = False,
    ) -> Command:
        """Return a request in this client's codec; ``extra`` ext fields follow the header's."""
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
        **subject: Unpack[ErrorSubject],
    ) -> Command:
        """Send a request to ``address`` and return the response.

        Args:
            extra: ext fields after the header's.
            accept: response codes that are not errors.
            subject: what errors name.

        Raises:
            Unavailable: it could not be reached or did not answer in time.
            RemoteError: it answered with another code.
            UsageError: the header has a text without a form in UTF-8.
        """
        timeout = self.timeout if timeout is None else timeout
        try:
            answer = await self.pool.request(
                address, self.request(code, header, body=body, extra=extra), timeout=timeout
            )
        except RemotingError as error:
            raise unavailable(error, address, **subject) from error
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{name_of(code)} holds a text that is not UTF-8, and is not sent: {error}",
                **subject,
            ) from error
        if answer.code not in accept:
            raise remote_error(
                answer.code,
                answer.remark,
                name_of(code),
                broker=address,
                account=self.account,
                retry_after=retry_after(answer),
                **subject,
            )
        return answer


def read_answer(
    answer: Command,
    read: Callable[[Command], R],
    queue: MessageQueue | None = None,
    broker: str | None = None,
) -> R:
    """Return ``read(answer)``. Raises RemoteError when the answer can't be read."""
    try:
        return read(answer)
    except ProtocolError as error:
        if broker is None and queue is not None:
            broker = queue.broker_name
        raise remote_error(
            ResponseCode.SYSTEM_ERROR, str(error), "the answer", queue=queue, broker=broker
        ) from error


def read_header(
    answer: Command, kind: type[H], queue: MessageQueue | None = None, broker: str | None = None
) -> H:
    """Return the typed header of an answer. Raises RemoteError when it can't be read."""
    return read_answer(answer, lambda answer: answer.read(kind), queue, broker)


async def try_for(seconds: float, action: Callable[[], Awaitable[None]]) -> None:
    """Retry ``action`` with growing pauses for ``seconds``, then raise its last PocketMQError."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    backoff = Backoff()
    while True:
        try:
            return await action()
        except PocketMQError:
            pause = backoff.next()
            if loop.time() + pause > until:
                raise
            await asyncio.sleep(pause)


def name_of(code: int) -> str:
    """Return a request code's name."""
    try:
        return RequestCode(code).name
    except ValueError:
        return f"request {code}"


def unavailable(error: RemotingError, address: str, **subject: Unpack[ErrorSubject]) -> Unavailable:
    """Return the client's error for a failed request on a connection."""
    if isinstance(error, AnswerTimeout):
        return RequestTimeout(
            f"no answer to {name_of(error.code)} within {error.timeout:g} s",
            broker=address,
            hint="look at the load of that server, or raise the timeout",
            **subject,
        )
    hint = "check that it runs and can be reached from here"
    if isinstance(error, ConnectFailed):
        text = f"no connection could be made: {error.reason}"
        hint = error.hint
    elif isinstance(error, ConnectionLost):
        text = f"the connection ended: {error.reason}"
    elif isinstance(error, TooManyRequests):
        text = f"the connection has {error.limit} waiting {error.what} already"
    else:
        text = str(error)
    return BrokerUnreachable(text, broker=address, hint=hint, **subject)
