"""Samples for statistics: rates of the broker, traffic of topics and groups, and lag of groups."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from broker.errors import RequestRefused
from broker.state import BrokerState
from broker.store.results import StoreError
from broker.traffic.counts import BROKER_GET, BROKER_PUT, MESSAGES

SAMPLE_SECONDS: Final = 10.0
_SPANS: Final = (1, 6, 60)
"""Numbers of samples that cover 10, 60 and 600 seconds."""


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
    """Rates over a sliding window of samples, and totals by day.

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


class SampledLag(NamedTuple):
    """How far a group lags in a topic.

    Attributes:
        messages: the messages that it hasn't consumed.
        seconds: the age of the oldest of them.
    """

    messages: int
    seconds: float


class Sampler:
    """Samples the statistics of one broker.

    Args:
        state: what is sampled.
        read: returns the result of a function; see ``Offload.read``.

    Attributes:
        rates: rates of messages and pulls.
        lags: the lag by group and topic at the last sample, of at most ``lag_pairs``.
    """

    def __init__(
        self,
        state: BrokerState,
        read: Callable[[object, Callable[[], SampledLag]], Awaitable[SampledLag]],
    ) -> None:
        self._state = state
        self._read = read
        self.rates = Rates()
        self.lags: dict[tuple[str, str], SampledLag] = {}

    def sample_rates(self) -> None:
        """Sample the counters for the rates; called every ``SAMPLE_SECONDS``."""
        clock, counters, timers = self._state.clock, self._state.counters, self._state.timers
        totals = Totals(
            put=counters.messages_sent,
            found=counters.pulls_found,
            missed=counters.pulls_missed,
            asked=counters.pulls_found + counters.pulls_missed,
            transferred=counters.messages_pulled,
            timers_taken=0 if timers is None else timers.taken,
            timers_delivered=counters.timers_delivered,
        )
        day = time.localtime(clock.now_ms() / 1000).tm_yday
        self.rates.sample(clock.monotonic(), day, totals)

    async def run(self) -> None:
        """Sample the traffic and the lag of groups until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            await self.sample_traffic()
            await self.sample_lags()

    async def sample_traffic(self) -> None:
        """Sample the traffic of topics and groups, in short steps."""
        state = self._state
        counters, cluster = state.counters, state.config.cluster_name
        for kind, messages in (
            (BROKER_PUT, counters.messages_sent),
            (BROKER_GET, counters.messages_pulled),
        ):
            # RocketMQ counts no requests here.
            state.traffic.count(kind, cluster)[MESSAGES] = messages
        for _ in state.traffic.sample(state.monotonic_ms):
            await asyncio.sleep(0)

    async def sample_lags(self) -> None:
        """Sample how far groups lag, one group and topic per iteration of the event loop."""
        state, lags = self._state, {}
        for key in list(islice(state.offsets.table, state.config.limits.lag_pairs)):
            topic, _, group = key.partition("@")
            with contextlib.suppress(RequestRefused, StoreError, OSError):
                lags[group, topic] = await self._read(self, partial(self._lag, group, topic))
            await asyncio.sleep(0)
        self.lags = lags

    def _lag(self, group: str, topic: str) -> SampledLag:
        store, messages, oldest_ms = self._state.store, 0, 0
        for queue_id, offset in self._state.offsets.queues_of(group, topic).items():
            begin = max(offset, store.queries.min_offset(topic, queue_id))
            lag = store.queries.max_offset(topic, queue_id) - begin
            if lag <= 0:
                continue
            messages += lag
            stored_ms = store.queries.store_time_at(topic, queue_id, begin)
            if stored_ms > 0:
                oldest_ms = min(oldest_ms or stored_ms, stored_ms)
        age_ms = max(self._state.clock.now_ms() - oldest_ms, 0) if oldest_ms else 0
        return SampledLag(messages, age_ms / 1000)
