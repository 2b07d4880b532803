"""Interceptors: application code around every handler call and every send.

Interceptors are nested in the given order, the first one outermost: it gets a handler's exception,
or a send's receipt, after all others. Messages that the application takes itself, without a
handler, are passed to ``receive`` and ``settled`` of each. ``bind`` and ``close`` are called when a
producer or consumer opens and closes. Without interceptors there is no cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from client.limits import INTERCEPTOR_CLOSE_TIMEOUT
from remoting.runtime.log import Log

if TYPE_CHECKING:
    from client.consumer.received import ReceivedMessage
    from client.message import Message, OpenTransaction, Receipt, TransactionState

R = TypeVar("R")

_log = Log("client")

Call: TypeAlias = Callable[[Any], Awaitable[object]]

Received: TypeAlias = "Sequence[ReceivedMessage[Any]]"
"""The messages of one handler call, or that the application takes at once."""

Send: TypeAlias = "Callable[[Message[Any]], Awaitable[R]]"
"""Sends a message, and returns its receipt; None for a one-way send."""


class InterceptedPart(Protocol):
    """A ``Producer``, ``PushConsumer`` or ``PullConsumer``, as its interceptors see it."""

    @property
    def group(self) -> str:
        """Its group."""

    @property
    def client_id(self) -> str:
        """The id under which brokers register its client."""


class Interceptor:
    """Base class of interceptors: methods that aren't overridden change nothing."""

    def bind(self, part: InterceptedPart) -> Interceptor:  # noqa: ARG002 - as in ``handle``
        """Return the interceptor for a producer or consumer that opens; by default this one.

        One that needs its part's group or client id returns another object for each part, because
        one interceptor may be given to several. An exception fails the part's ``start``.
        """
        return self

    async def close(self) -> None:
        """Release what the interceptor holds: a part that it is bound to has finished its messages.

        Requests can still be sent. After 5 seconds it is cancelled; exceptions are logged.
        """

    async def handle(
        self,
        messages: Received,  # noqa: ARG002 - for those who override it
        proceed: Callable[[], Awaitable[None]],
    ) -> None:
        """Run around one call of a push consumer's handler.

        Raising has the effect of the handler raising. Without calling ``proceed``, the handler is
        skipped and the messages count as consumed.

        Args:
            messages: the handler's argument: one message, or a batch.
            proceed: calls the next interceptor, finally the handler.
        """
        await proceed()

    async def send(self, message: Message[Any], proceed: Send[Receipt]) -> Receipt:
        """Run around one send of a producer.

        ``send_many`` and ``send_batch`` call it around each message.
        A batch is sent as one request when ``proceed`` was called for all its messages; if an
        interceptor raises for one of them, nothing is sent.

        Args:
            message: the message to send.
            proceed: sends a message, this one or another, and returns its receipt.
        """
        return await proceed(message)

    async def send_half(self, message: Message[Any], proceed: Send[Receipt]) -> Receipt:
        """Run around the send of a transaction's half message; by default as around any send."""
        return await self.send(message, proceed)

    async def end_transaction(
        self,
        transaction: OpenTransaction[Any],  # noqa: ARG002 - as in ``handle``
        state: TransactionState,  # noqa: ARG002
        proceed: Callable[[], Awaitable[bool]],
    ) -> bool:
        """Run around the request that gives the broker a decision.

        Args:
            transaction: ``checks`` is 0 if the producer decided before the broker asked.
            state: UNKNOWN only when the broker asked.
            proceed: sends it; returns whether the broker has confirmed it, which it never does when
                it asked.
        """
        return await proceed()

    async def send_oneway(self, message: Message[Any], proceed: Send[None]) -> None:
        """Run around one ``send_oneway``, which has no receipt.

        Args:
            message: the message to send.
            proceed: sends a message, this one or another.
        """
        await proceed(message)

    def receive(self, messages: Received) -> None:
        """See the messages that ``get_many`` or an iteration returns. Exceptions are logged."""

    def settled(self, message: ReceivedMessage[Any]) -> None:
        """See a message of an iteration whose ``outcome`` the application has just set.

        Exceptions are logged.
        """


def around_handler(handler: Call, interceptors: Sequence[Interceptor], *, batches: bool) -> Call:
    """Return ``handler`` with interceptors around it.

    Args:
        batches: whether the handler is called with lists.
    """
    if not interceptors:
        return handler

    async def call(argument: Any) -> object:
        result: object = None

        async def innermost() -> None:
            nonlocal result
            result = await handler(argument)

        proceed: Callable[[], Awaitable[None]] = innermost
        messages = argument if batches else [argument]
        for interceptor in reversed(interceptors):
            proceed = partial(interceptor.handle, messages, proceed)
        await proceed()
        return result

    return call


def around(
    send: Send[R], hooks: Sequence[Callable[[Message[Any], Send[R]], Awaitable[R]]]
) -> Send[R]:
    """Return ``send`` with these interceptor methods around it, the first one outermost."""
    if not hooks:
        return send
    first, proceed = hooks[0], around(send, hooks[1:])
    return lambda message: first(message, proceed)


def bind_all(interceptors: Sequence[Interceptor], part: InterceptedPart) -> list[Interceptor]:
    """Return the interceptors for a part that opens."""
    return [each.bind(part) for each in interceptors]


async def close_all(interceptors: Sequence[Interceptor]) -> None:
    """Close the interceptors of a part; failures are logged."""
    for each in interceptors:
        try:
            async with asyncio.timeout(INTERCEPTOR_CLOSE_TIMEOUT):
                await each.close()
        except Exception:  # noqa: BLE001 - the part closes nevertheless
            _log.exception("an interceptor was not closed", interceptor=repr(each))


def show(messages: Received, interceptors: Sequence[Interceptor]) -> None:
    """Pass messages returned to the application to each interceptor's ``receive``."""
    _logged(partial(each.receive, messages) for each in interceptors)


def show_outcome(message: ReceivedMessage[Any], interceptors: Sequence[Interceptor]) -> None:
    """Pass a message that the application has settled to each interceptor's ``settled``."""
    _logged(partial(each.settled, message) for each in interceptors)


def _logged(calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        try:
            call()
        except Exception:  # noqa: BLE001 - the application goes on nevertheless
            _log.exception("an interceptor failed", call=repr(call))
