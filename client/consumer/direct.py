"""One message that an administrator has a consumer handle now (CONSUME_MESSAGE_DIRECTLY).

The handler's outcome is only reported: nothing is committed, retried or dead-lettered
(cf. ConsumeMessageConcurrentlyService.consumeMessageDirectly).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from client.consumer.options import PushOptions
from client.consumer.outcome import Decision, MessageOutcome, OutcomeKind
from client.consumer.received import ReceivedMessage
from client.errors import AlreadySettled, RetryLater
from client.serde import Serde
from remoting.protocol.bodies.clients import ConsumeMessageDirectlyResult
from remoting.protocol.queue import MessageQueue

MAX_REMARK: Final = 500
"""Characters of a failure in the answer: enough for an exception's text."""


class _Outcome:
    """The outcome that the handler gives the message; a ``Settler``."""

    def __init__(self) -> None:
        self.given: MessageOutcome | None = None

    def settle(self, message: object, outcome: MessageOutcome) -> None:
        if self.given is not None:
            raise AlreadySettled(f"{message!r} has an outcome already")
        self.given = outcome

    def settled(self, _: object) -> bool:
        return self.given is not None

    def outcome(self, _: object) -> MessageOutcome | None:
        return self.given

    def failures(self, _: object) -> int:
        return 0

    def hold(self, _: object) -> None:
        """Nothing waits for the message's ``with`` block."""

    def end_hold(self, _: object) -> None:
        """See ``hold``."""


async def handle_directly(
    handler: Callable[[Any], Coroutine[Any, Any, object]],
    record: bytes,
    broker: str,
    serde: Serde[Any],
    options: PushOptions,
) -> ConsumeMessageDirectlyResult:
    """Call the handler with a message, and return the outcome as Java's clients report it.

    Args:
        record: the message as the broker stores it.
        broker: the name of the broker that has it.

    Raises:
        RecordError: the record can't be read.
    """
    settler = _Outcome()
    message: ReceivedMessage[Any] = ReceivedMessage(
        record, 0, MessageQueue("", broker, 0), serde, settler
    )
    queue = MessageQueue(message.topic, broker, message.queue_id)
    message = ReceivedMessage(record, 0, queue, serde, settler)
    began = time.monotonic()
    result, remark = "CR_SUCCESS", None
    try:
        async with asyncio.timeout(options.consume_timeout):
            value = await handler([message] if options.batch_size > 1 else message)
    except RetryLater as error:
        result, remark = "CR_LATER", str(error) or None
    except Exception as error:  # noqa: BLE001 - the handler's failure is the answer
        result, remark = "CR_THROW_EXCEPTION", repr(error)
    else:
        if isinstance(value, Decision):
            result = "CR_COMMIT" if value is Decision.COMMIT else "CR_ROLLBACK"
        elif settler.given is not None and settler.given.verdict is not OutcomeKind.DONE:
            result, remark = "CR_LATER", settler.given.reason or None
    order = options.order
    return ConsumeMessageDirectlyResult(
        auto_commit=order is None or order.auto_commit,
        consume_result=result,
        order=order is not None,
        remark=None if remark is None else remark[:MAX_REMARK],
        spent_time_mills=round((time.monotonic() - began) * 1000),
    )
