"""Code of the application around every handler call and every send.

Interceptors are nested in the order they are given, the first one outermost: it sees a handler's
exception, or a send's receipt, after all others. Where there are none they cost nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from client.consumer.received import ReceivedMessage
    from client.message import Message
    from client.receipt import Receipt

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
        """Around one send of a producer.

        Args:
            message: what is to be sent.
            proceed: sends a message, this or another, and gives its receipt.
        """
        return await proceed(message)


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
            proceed = _handling(interceptor, messages, proceed)
        await proceed()
        return result

    return call


def _handling(
    interceptor: Interceptor,
    messages: Sequence[ReceivedMessage[Any]],
    proceed: Callable[[], Awaitable[None]],
) -> Callable[[], Awaitable[None]]:
    return lambda: interceptor.handle(messages, proceed)


def around_send(
    send: Callable[[Message[Any]], Awaitable[Receipt]], interceptors: Sequence[Interceptor]
) -> Callable[[Message[Any]], Awaitable[Receipt]]:
    """``send`` with interceptors around it."""
    for interceptor in reversed(interceptors):
        send = _sending(interceptor, send)
    return send


def _sending(
    interceptor: Interceptor, proceed: Callable[[Message[Any]], Awaitable[Receipt]]
) -> Callable[[Message[Any]], Awaitable[Receipt]]:
    return lambda message: interceptor.send(message, proceed)
