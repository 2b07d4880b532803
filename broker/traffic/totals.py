"""Statistics of a broker: totals since its start, rates over 10, 60 and 600 s, totals by day."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

SAMPLE_SECONDS: Final = 10.0
_SPANS: Final = (1, 6, 60)
"""Numbers of samples that cover 10, 60 and 600 seconds."""


@dataclass(slots=True, kw_only=True)
class BrokerCounters:
    """Counters since the start, read by metrics and GET_BROKER_RUNTIME_INFO."""

    messages_sent: int = 0
    sends_failed: int = 0
    bytes_sent: int = 0
    messages_pulled: int = 0
    bytes_pulled: int = 0
    pulls_found: int = 0
    pulls_missed: int = 0
    pulls_parked: int = 0
    commits_backwards: int = 0
    members_refused: int = 0
    messages_delayed: int = 0
    messages_delivered_late: int = 0
    timers_delivered: int = 0
    timers_recalled: int = 0
    messages_sent_back: int = 0
    messages_dead_lettered: int = 0
    transactions_prepared: int = 0
    transactions_committed: int = 0
    transactions_rolled_back: int = 0
    transactions_refused: int = 0
    transactions_discarded: int = 0
    transaction_checks: int = 0
    transaction_checks_without_producer: int = 0
    replies_pushed: int = 0
    replies_failed: int = 0
    requests_not_supported: int = 0

    def pulled(self, pulls: int, messages: int, size: int) -> None:
        """Count pulls that returned messages."""
        self.pulls_found += pulls
        self.messages_pulled += messages
        self.bytes_pulled += size

    def totals(self) -> Totals:
        """Return the counters for which rates are computed."""
        return Totals(
            put=self.messages_sent,
            found=self.pulls_found,
            missed=self.pulls_missed,
            asked=self.pulls_found + self.pulls_missed,
            transferred=self.messages_pulled,
            timers_delivered=self.timers_delivered,
        )


class Totals(NamedTuple):
    """Totals since the start."""

    put: int = 0
    """Messages stored."""
    found: int = 0
    """Pulls that returned messages."""
    missed: int = 0
    """Pulls that returned none."""
    asked: int = 0
    """All pulls."""
    transferred: int = 0
    """Messages pulled."""
    timers_taken: int = 0
    """Timer messages that were taken into the wheel; not only since the start."""
    timers_delivered: int = 0
    """Timer messages delivered."""


class DayTotals(NamedTuple):
    """The totals at the beginning of yesterday and of today."""

    yesterday_morning: Totals
    today_morning: Totals


class Rates:
    """Rates over a sliding window of samples.

    Attributes:
        days: the totals at the beginning of today and of yesterday.
    """

    __slots__ = ("_day", "_samples", "days")

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Totals]] = deque(maxlen=_SPANS[-1] + 1)
        self._day: int | None = None
        self.days = DayTotals(Totals(), Totals())

    def sample(self, now: float, day: int, totals: Totals) -> None:
        """Add a sample: the totals at ``now`` (monotonic, s) on ``day`` (a number per date)."""
        self._samples.append((now, totals))
        if self._day is not None and day != self._day:
            self.days = DayTotals(self.days.today_morning, totals)
        self._day = day

    def per_second(self, kind: str, missing: str = "") -> str:
        """Return the rates of one total over 10, 60 and 600 s, with blanks between them.

        A rate for which there are too few samples is ``missing``.
        """
        return " ".join(self._rate(span, kind) or missing for span in _SPANS)

    def _rate(self, span: int, kind: str) -> str:
        if len(self._samples) <= span:
            return ""
        (then, before), (now, after) = self._samples[-1 - span], self._samples[-1]
        if now <= then:
            return ""
        return repr((getattr(after, kind) - getattr(before, kind)) / (now - then))
