"""Which brokers to leave alone for a while, from how long their answers took.

A slow answer makes a broker unavailable for the time that ``PENALTIES`` gives for its latency; a
send that failed counts as an answer of 30 s. A later quick answer or heartbeat makes it available
again. Pure: the time comes in as a parameter (cf. LatencyFaultTolerance, MQFaultStrategy).
"""

from __future__ import annotations

from typing import Final

PENALTIES: Final = (
    (15.0, 600.0),
    (3.0, 180.0),
    (2.0, 120.0),
    (1.0, 60.0),
    (0.55, 30.0),
)
"""(latency from, seconds to leave the broker alone), the highest first that applies."""

ISOLATION_LATENCY: Final = 30.0
"""What a failed send counts as (cf. MQFaultStrategy.updateFaultItem, isolation)."""


class FaultTable:
    """Until when each broker is left alone. Bounded by the brokers of the routes."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def answered(self, broker: str, latency: float, now: float) -> None:
        """Note how many seconds ``broker`` took for an answer."""
        if latency < PENALTIES[-1][0]:
            if self._until:
                self._until.pop(broker, None)
            return
        for least, penalty in PENALTIES:
            if latency >= least:
                self._until[broker] = now + penalty
                return

    def failed(self, broker: str, now: float) -> None:
        """Note that a send to ``broker`` failed without an answer."""
        self.answered(broker, ISOLATION_LATENCY, now)

    def restored(self, broker: str) -> None:
        """``broker`` is known to be well again (it answered a heartbeat)."""
        self._until.pop(broker, None)

    def available(self, broker: str, now: float) -> bool:
        """Whether ``broker`` need not be avoided."""
        if not self._until:
            return True
        until = self._until.get(broker)
        return until is None or now >= until
