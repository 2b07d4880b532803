"""The outcome of a message: done, retry or dead-letter, and the delay levels of retries.

An outcome is set by a method of the message, or follows from how its handler ended. The ``Settler``
of the message records it; the consumer then carries it out (advances the commit point, sends the
message back). Messages of a pull consumer have no ``Settler`` and no outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Protocol

from client.errors import DeadLetter, RetryLater
from client.limits import DELAY_LEVELS

FIRST_RETRY_LEVEL: Final = 3
"""The default delay level of a first retry; each further retry uses the next level."""

BROKER_CHOOSES: Final = 0
"""The ``delayLevel`` that leaves the delay to the broker.

The broker uses the group's retry policy, or without one ``FIRST_RETRY_LEVEL`` + times sent back.
"""

TO_DEAD_LETTERS: Final = -1
"""The ``delayLevel`` for the dead-letter queue (cf. ConsumerSendMsgBackRequestHeader)."""


class OutcomeKind(Enum):
    """What happens to a message."""

    DONE = auto()
    RETRY = auto()
    DEAD_LETTER = auto()


@dataclass(frozen=True, slots=True)
class MessageOutcome:
    """What happens to a message, and why.

    Attributes:
        delay: seconds until the retry; None: as the broker or ``Orderly`` determines.
        reason: readable reason, for logs and events.
        error: the exception that the handler raised.
    """

    verdict: OutcomeKind
    delay: float | None = None
    reason: str = ""
    error: BaseException | None = None

    @property
    def delay_level(self) -> int:
        """The ``delayLevel`` to send the message back with.

        For a given ``delay``: the lowest default level that is not shorter, or the highest one.
        """
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
    OutcomeKind.RETRY,
    float(DELAY_LEVELS[FIRST_RETRY_LEVEL - 1]),
    "its handler took longer than consume_timeout",
)
"""The outcome of messages whose handler exceeded ``consume_timeout`` (cf. cleanExpireMsg)."""


def outcome_of(error: BaseException) -> MessageOutcome:
    """Return the outcome of a message whose handler raised ``error``."""
    if isinstance(error, RetryLater):
        return MessageOutcome(OutcomeKind.RETRY, error.delay, str(error))
    if isinstance(error, DeadLetter):
        return MessageOutcome(OutcomeKind.DEAD_LETTER, None, error.reason or str(error))
    return MessageOutcome(OutcomeKind.RETRY, None, repr(error), error)


class Decision(Enum):
    """The result of an orderly handler with ``Orderly(auto_commit=False)``."""

    COMMIT = "commit"
    """All messages handled since the last decision are done."""
    ROLLBACK = "rollback"
    """All of them are delivered again, in order."""


COMMIT: Final = Decision.COMMIT
ROLLBACK: Final = Decision.ROLLBACK

OPEN: Final = MessageOutcome(OutcomeKind.DONE, None, "not committed yet")
"""The handler of ``Orderly(auto_commit=False)`` returned without a decision."""

TAKEN_BACK: Final = MessageOutcome(OutcomeKind.RETRY, None, "the handler returned ROLLBACK")
"""The handler of ``Orderly(auto_commit=False)`` returned ``ROLLBACK``."""


class Settler(Protocol):
    """Records the outcomes of messages. Its methods may be called from any thread."""

    def settle(self, message: Any, outcome: MessageOutcome) -> None:
        """Record a message's outcome. Raises AlreadySettled."""

    def settled(self, message: Any) -> bool:
        """Return whether the message has an outcome."""

    def outcome(self, message: Any) -> MessageOutcome | None:
        """Return a message's recorded outcome until it is carried out."""

    def failures(self, message: Any) -> int:
        """Return how often the message failed at this consumer since it was pulled."""

    def hold(self, message: Any) -> None:
        """Record that the application entered the message's ``with`` block; a stop waits for it."""

    def end_hold(self, message: Any) -> None:
        """Record that the ``with`` block ended."""
