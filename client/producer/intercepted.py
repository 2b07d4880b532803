"""Sending through interceptors: each message goes the long way, in a coroutine of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from client.errors import PocketMQError, SendError
from client.interceptors import Interceptor, around_send
from client.message import Message
from client.places import Duration
from client.producer.acceptance import Acceptance
from client.producer.delivery import as_send_error
from client.receipt import Receipt

T = TypeVar("T")

TOGETHER: Final = 1024
"""Messages of one ``send_many`` that are with the interceptors at the same time."""


class Intercepted(Generic[T]):
    """The door of a producer that has interceptors."""

    def __init__(self, acceptance: Acceptance[T], interceptors: Sequence[Interceptor]) -> None:
        self._acceptance = acceptance
        self._interceptors = interceptors

    async def send(self, message: Message[T], timeout: Duration | None) -> Receipt:
        """Send one message. Raises what sending raises, or an interceptor."""

        async def innermost(given: Message[Any]) -> Receipt:
            item = self._acceptance.prepare(given, None, None, (), None, None, None, 0, timeout)
            return await (await self._acceptance.accept(item))

        return await around_send(innermost, self._interceptors)(message)

    async def send_many(
        self, messages: Iterable[Message[T]], timeout: Duration | None
    ) -> list[Receipt | SendError]:
        """Send any number of messages; see ``Producer.send_many``."""
        rest = iter(messages)
        results: list[Receipt | SendError] = []
        while some := list(islice(rest, TOGETHER)):
            results += await asyncio.gather(*(self._outcome(one, timeout) for one in some))
        return results

    async def _outcome(self, message: Message[T], timeout: Duration | None) -> Receipt | SendError:
        try:
            return await self.send(message, timeout)
        except PocketMQError as error:
            return as_send_error(error)
