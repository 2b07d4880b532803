"""The circuit breaker of a push consumer: a handler that fails alike again and again is not called.

It counts the messages whose handler raised, one after the other, the same type of exception at the
same line. A handler that returns, or decides itself (``RetryLater``, ``DeadLetter``, an outcome set
on the message), begins the count anew. At the limit consumption pauses; what fails from then until
``resume`` stays here, unsettled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from client.consumer.outcome import TIMED_OUT, MessageOutcome
from client.consumer.received import ReceivedMessage
from client.events import ConsumptionPaused
from remoting.log import Log

_log = Log("client")

Origin = tuple[type[BaseException], str, int]
"""The type of an exception, and the file and line that raised it."""


class Breaker:
    """Counts the failures of one consumer's handler.

    Args:
        group: whose handler; for logs and the event.
        limit: messages in a row; None: it never trips.
        trip: called to pause consumption.

    Attributes:
        paused: why consumption is paused; None: it isn't, by this.
    """

    def __init__(
        self, group: str, limit: int | None, trip: Callable[[ConsumptionPaused], None]
    ) -> None:
        self.paused: ConsumptionPaused | None = None
        self._group = group
        self._limit = limit
        self._trip = trip
        self._origin: Origin | None = None
        self._failed: set[str] = set()

    def worked(self) -> None:
        """The handler returned, or decided what becomes of a message."""
        if self._failed:
            self._failed.clear()

    def reset(self) -> None:
        """Begin anew: the application has asked to go on."""
        self.paused = None
        self._failed.clear()

    def staying(self, outcomes: Iterable[tuple[ReceivedMessage[Any], MessageOutcome]]) -> set[int]:
        """Count what became of one call's messages.

        A batch counts as its first message that failed. One message counts once, however often it
        is tried.

        Returns:
            The offsets of those that stay here, because consumption is paused.
        """
        failed = []
        for message, outcome in outcomes:
            if outcome.error is not None:
                failed.append((message, outcome.error))
            elif outcome is not TIMED_OUT:
                self.worked()
        if failed and self._limit is not None and self.paused is None:
            self._count(*failed[0], self._limit)
        return set() if self.paused is None else {message.offset for message, _ in failed}

    def _count(self, message: ReceivedMessage[Any], error: BaseException, limit: int) -> None:
        origin = _origin_of(error)
        if origin != self._origin:
            self._origin = origin
            self._failed.clear()
        self._failed.add(message.id)
        if len(self._failed) < limit:
            return
        kind, file, line = origin
        where = f"{Path(file).name}:{line}" if file else "an unknown line"
        self.paused = ConsumptionPaused(
            self._group,
            len(self._failed),
            error,
            f"the handler failed for {len(self._failed)} messages in a row with {kind.__name__}"
            f" at {where}: {error}",
        )
        _log.error(
            "consumption is paused: mend the handler, then resume()",
            group=self._group,
            why=self.paused.reason,
            docs=ConsumptionPaused.docs,
            exc_info=error,
        )
        self._trip(self.paused)


def _origin_of(error: BaseException) -> Origin:
    step = error.__traceback__
    if step is None:
        return type(error), "", 0
    while step.tb_next is not None:
        step = step.tb_next
    return type(error), step.tb_frame.f_code.co_filename, step.tb_lineno
