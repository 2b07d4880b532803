"""The outcome of a message, and messages handed out one by one to an iteration.

An outcome is set by a call on the message, or follows from how its handler ended. The
``Settler`` that the message came from carries it out (sends the message back, moves the commit
point); a message of a pull consumer has none.

A message handed out to an iteration is a run of its own until the application settles it, from any
thread. A success is recorded at once; everything else is carried out by a task.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Protocol

from client.errors import DeadLetter, RetryLater

DELAY_LEVELS: Final = (
    *(1, 5, 10, 30),
    *(60, 120, 180, 240, 300, 360, 420, 480, 540, 600),
    *(1200, 1800, 3600, 7200),
)
"""Seconds of a broker's delay levels, from level 1 on (cf. messageDelayLevel)."""

BROKER_CHOOSES: Final = 0
"""The delay level that leaves the delay to the broker: level 3 + times sent back."""

TO_DEAD_LETTERS: Final = -1
"""The delay level that means the dead-letter queue (cf. ConsumerSendMsgBackRequestHeader)."""


class OutcomeKind(Enum):
    """What happens to a message."""

    DONE = auto()
    RETRY = auto()
    DEAD_LETTER = auto()


@dataclass(frozen=True, slots=True)
class MessageOutcome:
    """What happens to a message, and why.

    Attributes:
        delay: seconds until the retry; None: as the broker or the order settings have it.
        reason: why, in words for logs and events.
        error: what the handler raised.
    """

    verdict: OutcomeKind
    delay: float | None = None
    reason: str = ""
    error: BaseException | None = None

    @property
    def delay_level(self) -> int:
        """The first delay level that is not shorter than ``delay``; the longest for more."""
        if self.verdict is OutcomeKind.DEAD_LETTER:
            return TO_DEAD_LETTERS
        if self.delay is None:
            return BROKER_CHOOSES
        for level, seconds in enumerate(DELAY_LEVELS, 1):
            if self.delay <= seconds:
                return level
        return len(DELAY_LEVELS)


DONE: Final = MessageOutcome(OutcomeKind.DONE)

TIMED_OUT: Final = MessageOutcome(
    OutcomeKind.RETRY, 10.0, "its handler took longer than consume_timeout"
)
"""What becomes of messages whose handler took too long; level 3 (cf. cleanExpireMsg)."""


def outcome_of(error: BaseException) -> MessageOutcome:
    """The outcome of a handler that raised this."""
    if isinstance(error, RetryLater):
        return MessageOutcome(OutcomeKind.RETRY, error.delay, str(error))
    if isinstance(error, DeadLetter):
        return MessageOutcome(OutcomeKind.DEAD_LETTER, None, error.reason or str(error))
    return MessageOutcome(OutcomeKind.RETRY, None, repr(error), error)


class Decision(Enum):
    """What an orderly handler returns that commits by itself (``Orderly(auto_commit=False)``)."""

    COMMIT = "commit"
    """All messages handled since the last decision are done."""
    ROLLBACK = "rollback"
    """All of them come again, in order."""


COMMIT: Final = Decision.COMMIT
ROLLBACK: Final = Decision.ROLLBACK

OPEN: Final = MessageOutcome(OutcomeKind.DONE, None, "not committed yet")
"""The handler of ``Orderly(auto_commit=False)`` returned without a decision."""

TAKEN_BACK: Final = MessageOutcome(OutcomeKind.RETRY, None, "the handler took it back")
"""It returned ``ROLLBACK``."""


class Settler(Protocol):
    """Carries out the outcomes of messages. Callable from any thread."""

    def settle(self, message: Any, outcome: MessageOutcome) -> None:
        """Record an outcome. Raises AlreadySettled."""
        ...

    def settled(self, message: Any) -> bool:
        """Whether the message has an outcome already."""
        ...

    def failures(self, message: Any) -> int:
        """How often it failed here since it was pulled."""
        ...

    def hold(self, message: Any) -> None:
        """The application works on the message: a close waits for it."""
        ...

    def let_go(self, message: Any) -> None:
        """It no longer does."""
        ...
