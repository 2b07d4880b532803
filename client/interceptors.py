"""Code of the application around every handler call and every send.

Interceptors are nested in the order they are given, the first one outermost: it sees a handler's
exception, or a send's receipt, after all others. Messages that no handler gets, because the
application takes them itself, are shown to each. Where there are none they cost nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from remoting.log import Log

if TYPE_CHECKING:
    from client.consumer.received import ReceivedMessage
    from client.message import Message, Receipt

R = TypeVar("R")

_log = Log("client")

Call = Callable[[Any], Awaitable[object]]


class Interceptor:
    """Base of interceptors: what isn't overridden passes on."""

    async def handle(
        self,
        messages: Sequence[ReceivedMessage[Any]],  # noqa: ARG002 - for those who override it
        proceed: Callable[[], Awaitable[None]],
    ) -> None:
        """Around one call of a push consumer's handler.

        Raising means what a handler's raising means; not calling ``proceed`` skips the handler,
        and the messages are done.

        Args:
            messages: what the handler gets: one message, or a batch.
            proceed: calls the next interceptor, at last the handler.
        """
        await proceed()

    async def send(
        self, message: Message[Any], proceed: Callable[[Message[Any]], Awaitable[Receipt]]
    ) -> Receipt:
        """Around one send of a producer; of ``send_many`` and ``send_batch`` around each message.

        A batch leaves when all its messages have come through, as one request; if an interceptor
        raises for one of them nothing is sent.

        Args:
            message: what is to be sent.
            proceed: sends a message, this or another, and gives its receipt.
        """
        return await proceed(message)

    async def send_oneway(
        self, message: Message[Any], proceed: Callable[[Message[Any]], Awaitable[None]]
    ) -> None:
        """Around one ``send_oneway``, which has no receipt.

        Args:
            message: what is to be sent.
            proceed: writes a message, this or another.
        """
        await proceed(message)

    def receive(self, messages: Sequence[ReceivedMessage[Any]]) -> None:
        """``get_many`` or iteration hands these messages out. What this raises is logged."""


def around_handler(handler: Call, interceptors: Sequence[Interceptor], *, batches: bool) -> Call:
    """``handler`` with interceptors around it.

    Args:
        batches: it is called with lists.
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
    send: Callable[[Message[Any]], Awaitable[R]],
    hooks: Sequence[Callable[[Message[Any], Callable[[Message[Any]], Awaitable[R]]], Awaitable[R]]],
) -> Callable[[Message[Any]], Awaitable[R]]:
    """``send`` with these methods of interceptors around it, the first one outermost."""
    if not hooks:
        return send
    first, proceed = hooks[0], around(send, hooks[1:])
    return lambda message: first(message, proceed)


def show(messages: Sequence[ReceivedMessage[Any]], interceptors: Sequence[Interceptor]) -> None:
    """Pass messages that are handed out to each interceptor."""
    for interceptor in interceptors:
        try:
            interceptor.receive(messages)
        except Exception:  # noqa: BLE001 - the messages are the application's already
            _log.exception("an interceptor failed", interceptor=repr(interceptor))
