"""Pauses between attempts: growing pauses with jitter, and the pause a busy broker asks for."""

from __future__ import annotations

import random
from typing import Final

from client.limits import RETRY_AFTER_MAX, RETRY_DELAY_FIRST, RETRY_DELAY_MAX
from remoting.protocol.command import Command
from remoting.protocol.own_codes import RETRY_AFTER

_DIGITS: Final = 9
"""Digits of a plausible time in milliseconds; ``int`` refuses texts of thousands of digits."""


def retry_after(answer: Command) -> float:
    """Return the seconds to wait that a refusal asks for, at most ``RETRY_AFTER_MAX``; else 0."""
    text = answer.fields.get(RETRY_AFTER, "")
    if not (text.isascii() and text.isdigit()):
        return 0.0
    return RETRY_AFTER_MAX if len(text) > _DIGITS else min(int(text) / 1000, RETRY_AFTER_MAX)


class Backoff:
    """The pauses between the attempts of one operation, in seconds.

    Each pause is random, between half of a bound and the bound, which doubles with every failure.
    """

    __slots__ = ("_bound", "_first", "_most", "_random")

    def __init__(
        self,
        choose: random.Random | None = None,
        *,
        first: float = RETRY_DELAY_FIRST,
        most: float = RETRY_DELAY_MAX,
    ) -> None:
        self._random = choose or random.Random()  # noqa: S311 - spreads load
        self._first = first
        self._most = most
        self._bound = first

    def next(self) -> float:
        """Return the pause before the next attempt: half the bound up to the bound."""
        pause = self._bound * self._random.uniform(0.5, 1.0)
        self._bound = min(self._most, self._bound * 2)
        return pause

    def reset(self) -> None:
        """Start over with the first bound, after a success."""
        self._bound = self._first
