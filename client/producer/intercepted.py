"""Sending through interceptors, which takes one coroutine per message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from client.errors import Outcome, PocketMQError, SendError, as_send_error
from client.interceptors import Interceptor, around
from client.message import Message, Receipt
from client.positions import Duration, seconds
from client.producer.send_buffer import SendBuffer
from client.producer.timed import TimedSends
from remoting.protocol.message.properties import TRAN_MSG

T = TypeVar("T")

TOGETHER: Final = 1024
"""Messages of one ``send_many`` that pass through the interceptors concurrently."""


def _check(timeout: Duration | None) -> None:
    """Raise UsageError for an impossible timeout before an interceptor is called."""
    if timeout is not None:
        seconds(timeout)


class Intercepted(Generic[T]):
    """The send methods of a producer that has interceptors."""

    def __init__(
        self, buffer: SendBuffer, timed: TimedSends, interceptors: Sequence[Interceptor]
    ) -> None:
        self._buffer = buffer
        self._prepare = buffer.preparer.prepare
        self._timed = timed
        self._sends = [each.send for each in interceptors]
        self._half_sends = [each.send_half for each in interceptors]
        self._oneway_sends = [each.send_oneway for each in interceptors]

    async def send(
        self,
        message: Message[T],
        timeout: Duration | None,
        *,
        system: Mapping[str, str] | None = None,
    ) -> Receipt:
        """Send one message. Raises the errors of ``Producer.send`` and of the interceptors.

        Args:
            system: see ``Preparer.prepare``.
        """

        async def innermost(message: Message[Any]) -> Receipt:
            message = await self._timed.require_timers(message, timeout)
            columns = self._prepare(message, timeout, system=system)
            return await (await self._buffer.put(columns))[0]

        _check(timeout)
        half = system is not None and TRAN_MSG in system
        return await around(innermost, self._half_sends if half else self._sends)(message)

    async def send_oneway(self, message: Message[T], timeout: Duration | None) -> None:
        """Send one message oneway. Raises the errors of that and of the interceptors."""

        async def innermost(message: Message[Any]) -> None:
            message = await self._timed.require_timers(message, timeout)
            await self._buffer.write_oneway(self._prepare(message, timeout))

        _check(timeout)
        await around(innermost, self._oneway_sends)(message)

    async def send_batch(
        self, messages: Sequence[Message[T]], timeout: Duration | None
    ) -> list[Receipt]:
        """Send one request once every message has passed its interceptors.

        See ``Producer.send_batch``. The batch is sent when each message has either reached the
        innermost call or ended before it, with an error or with a receipt from an interceptor.
        """
        through: dict[int, Message[Any]] = {}
        failures: list[Exception] = []
        ended: set[int] = set()
        all_arrived = asyncio.Event()
        sent: asyncio.Future[dict[int, asyncio.Future[Receipt]]]
        sent = asyncio.get_running_loop().create_future()

        def arrived() -> None:
            if len(through.keys() | ended) == len(messages):
                all_arrived.set()

        async def send_one(number: int, message: Message[T]) -> Receipt | None:
            async def innermost(message: Message[Any]) -> Receipt:
                through.setdefault(number, message)
                arrived()
                return await (await asyncio.shield(sent))[number]

            try:
                return await around(innermost, self._sends)(message)
            except Exception as error:  # noqa: BLE001 - raised when all have ended
                failures.append(error)
                return None
            finally:
                ended.add(number)
                arrived()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(send_one(*each)) for each in enumerate(messages)]
            await all_arrived.wait()
            # A batch is atomic: if one message failed, the calls waiting for the others fail too.
            if through and failures:
                sent.set_exception(
                    SendError(
                        "the message was not sent: another one of its batch did not come through",
                        topic=messages[0].topic,
                    )
                )
            elif through:
                numbers = sorted(through)
                try:
                    batch = [through[number] for number in numbers]
                    futures = await self._buffer.put(
                        self._buffer.preparer.prepare_batch(batch, timeout)
                    )
                except Exception as error:  # noqa: BLE001 - passed to the waiting calls
                    sent.set_exception(error)
                else:
                    sent.set_result(dict(zip(numbers, futures, strict=True)))
        if failures:
            raise failures[0]
        return [receipt for task in tasks if (receipt := task.result()) is not None]

    async def send_many(
        self, messages: Iterable[Message[T]], timeout: Duration | None
    ) -> list[Receipt | SendError]:
        """Send any number of messages, each on its own; see ``Producer.send_many``."""

        async def outcome(message: Message[T]) -> Receipt | SendError:
            try:
                return await self.send(message, timeout)
            except PocketMQError as error:
                return as_send_error(error)
            except Exception as error:  # noqa: BLE001 - an interceptor's, before or after the send
                failure = SendError(f"the send failed: {error!r}", outcome=Outcome.UNKNOWN)
                failure.__cause__ = error
                return failure

        rest = iter(messages)
        results: list[Receipt | SendError] = []
        while portion := list(islice(rest, TOGETHER)):
            results += await asyncio.gather(*map(outcome, portion))
        return results
