"""How long a task puts up with a broker that doesn't serve it: pure but for the random pauses."""

from __future__ import annotations

import random

from spark_connector.reading.limits import RETRY_FIRST, RETRY_MAX


class Trouble:
    """A row of failures without progress in between.

    Args:
        choose: spreads the pauses of many tasks.

    Attributes:
        failures: how many there were in the row.
        refusals: how many of them were the broker's own.
    """

    def __init__(self, choose: random.Random) -> None:
        self._random = choose
        self._since: float | None = None
        self.failures = 0
        self.refusals = 0
        self._bound = 0.0

    def over(self) -> None:
        """There was progress."""
        self._since = None
        self.failures = self.refusals = 0
        self._bound = 0.0

    def failed(self, now: float, *, refused: bool = False) -> float:
        """One more failure; seconds since the first of the row."""
        if self._since is None:
            self._since = now
        self.failures += 1
        self._bound = min(RETRY_MAX, self._bound * 2) or RETRY_FIRST
        self.refusals += refused
        return now - self._since

    def pause(self) -> float:
        """Seconds to wait: half to the whole of a bound that doubles with each failure."""
        return self._bound * self._random.uniform(0.5, 1.0)
