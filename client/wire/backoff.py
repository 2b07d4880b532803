"""Growing pauses with jitter between attempts."""

from __future__ import annotations

import random

from client.limits import RETRY_DELAY_FIRST, RETRY_DELAY_MAX


class Backoff:
    """The pauses of one row of failures, in seconds; each a random part of a doubling bound."""

    __slots__ = ("_bound", "_first", "_most", "_random")

    def __init__(
        self,
        choose: random.Random,
        *,
        first: float = RETRY_DELAY_FIRST,
        most: float = RETRY_DELAY_MAX,
    ) -> None:
        self._random = choose
        self._first = first
        self._most = most
        self._bound = first

    def next(self) -> float:
        """The pause after one more failure: half to the whole of the bound."""
        pause = self._bound * self._random.uniform(0.5, 1.0)
        self._bound = min(self._most, self._bound * 2)
        return pause

    def reset(self) -> None:
        """It worked again."""
        self._bound = self._first
