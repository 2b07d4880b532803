"""What a push consumer reports of its rates and times, topic by topic (cf. ConsumerStatsManager).

Counting costs a few additions per pull and per handler call that waits; counters are read when an
administrator asks for them. RocketMQ's consumers report the messages of a retry topic under that
topic, and so do ours.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from client.consumer.outcome import MessageOutcome, OutcomeKind
from remoting.protocol.bodies.clients import ConsumeStatus

SAMPLE_PERIOD: Final = 10.0
"""Seconds between two samples, as in RocketMQ."""

SAMPLES: Final = 6
"""Samples kept: of the last minute one every ``SAMPLE_PERIOD``, of the last hour one every ten
minutes."""


@dataclass(slots=True)
class TopicCounts:
    """What happened to the messages of one topic since the consumer started. Times in seconds."""

    pulls: int = 0
    """Pulls that found messages."""
    pull_time: float = 0.0
    pulled: int = 0
    """Messages that they found."""
    done: int = 0
    """Messages that the handler accepted."""
    failed: int = 0
    """Messages that it did not, counted each time."""
    handling_time: float = 0.0

    def add(self, outcomes: Iterable[MessageOutcome]) -> None:
        """Count the outcomes of a handler's call that was not simply successful."""
        for outcome in outcomes:
            if outcome.verdict is OutcomeKind.DONE:
                self.done += 1
            else:
                self.failed += 1


_Sample = tuple[float, dict[str, TopicCounts]]


class ConsumerRates:
    """The counts of one consumer, and samples of them.

    Args:
        now: returns the monotonic time, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._counts: dict[str, TopicCounts] = {}
        start: _Sample = (now(), {})
        self._minute = deque([start], maxlen=SAMPLES)
        self._hour = deque([start], maxlen=SAMPLES)

    def of(self, topic: str) -> TopicCounts:
        """Return the counts of a topic, which the caller increases."""
        return self._counts.setdefault(topic, TopicCounts())

    def sample(self) -> None:
        """Keep the counts as they are now; to be called every ``SAMPLE_PERIOD``."""
        counts = {topic: replace(counts) for topic, counts in self._counts.items()}
        self._minute.append((self._now(), counts))
        if self._now() - self._hour[-1][0] >= SAMPLE_PERIOD * SAMPLES * 10:
            self._hour.append(self._minute[-1])

    async def sample_by_time(self) -> None:
        """Sample until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_PERIOD)
            self.sample()

    def by_topic(self) -> dict[str, ConsumeStatus]:
        """Return the rates and the average times of about the last minute, by topic.

        The failed messages are those of about the last hour.
        """
        (since, before), (_, hour_ago) = self._minute[0], self._hour[0]
        seconds = max(self._now() - since, 1.0)
        nothing = TopicCounts()
        statuses = {}
        for topic, counts in self._counts.items():
            then = before.get(topic, nothing)
            pulls = counts.pulls - then.pulls
            done, failed = counts.done - then.done, counts.failed - then.failed
            statuses[topic] = ConsumeStatus(
                pull_rt=_average_ms(counts.pull_time - then.pull_time, pulls),
                pull_tps=(counts.pulled - then.pulled) / seconds,
                consume_rt=_average_ms(counts.handling_time - then.handling_time, done + failed),
                consume_ok_tps=done / seconds,
                consume_failed_tps=failed / seconds,
                consume_failed_msgs=counts.failed - hour_ago.get(topic, nothing).failed,
            )
        return statuses


def _average_ms(seconds: float, times: int) -> float:
    return seconds * 1000 / times if times else 0.0
