"""What topics and groups send and receive (cf. BrokerStatsManager, StatsItem).

Requests are counted in small arrays, one per topic and one per pair of topic and group; the fast
path adds to them in compiled code. As in RocketMQ the counts are sampled every 10 s, 10 min and
1 h, and a rate is the difference between the newest and the oldest sample. An item without traffic
keeps one sample. No I/O; callers pass in the time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from broker.limits import LIMITS
from remoting.protocol.bodies.stats import BrokerStatsItem

MESSAGES: Final = 0
BYTES: Final = 1
REQUESTS: Final = 2
COLUMNS: Final = 3
"""What a count has: messages, bytes and requests."""

TOPIC_PUT: Final = "TOPIC_PUT"
GROUP_GET: Final = "GROUP_GET"
SENT_BACK: Final = "SNDBCK_PUT"
DEAD: Final = "DLQ_PUT"
BROKER_PUT: Final = "BROKER_PUT"
BROKER_GET: Final = "BROKER_GET"

STATS: Final = {
    "TOPIC_PUT_NUMS": (TOPIC_PUT, MESSAGES),
    "TOPIC_PUT_SIZE": (TOPIC_PUT, BYTES),
    "GROUP_GET_NUMS": (GROUP_GET, MESSAGES),
    "GROUP_GET_SIZE": (GROUP_GET, BYTES),
    "SNDBCK_PUT_NUMS": (SENT_BACK, MESSAGES),
    "DLQ_PUT_NUMS": (DEAD, MESSAGES),
    "BROKER_PUT_NUMS": (BROKER_PUT, MESSAGES),
    "BROKER_GET_NUMS": (BROKER_GET, MESSAGES),
}
"""RocketMQ's names of statistics. The key is a topic, ``topic@group``, or the cluster."""

AT_ONCE: Final = 256
"""Items sampled in one iteration of the event loop, which takes about 1 ms."""


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


class StatsSpan(NamedTuple):
    """A span of time: the interval of its samples, and how many of them are kept."""

    interval_ms: int
    kept: int


SPANS: Final = (StatsSpan(10_000, 7), StatsSpan(600_000, 7), StatsSpan(3_600_000, 25))
"""A minute, an hour and a day."""

_ROW: Final = 1 + COLUMNS


class Item:
    """One count and its samples.

    Attributes:
        count: messages, bytes and requests.
    """

    __slots__ = ("_samples", "count")

    def __init__(self) -> None:
        self.count = array("q", bytes(8 * COLUMNS))
        self._samples = tuple(array("q") for _ in SPANS)

    def sample(self, span: int, now_ms: int) -> None:
        """Add a sample to a span of ``SPANS``."""
        rows, row = self._samples[span], array("q", (now_ms, *self.count))
        if not rows:
            rows.extend((now_ms - SPANS[span].interval_ms, *bytes(COLUMNS)))
        elif rows[1:_ROW] == self.count:
            # Idle for the whole span.
            rows[:] = row
            return
        rows.extend(row)
        if len(rows) > SPANS[span].kept * _ROW:
            del rows[:_ROW]

    def rate(self, span: int, column: int) -> BrokerStatsItem:
        """Return a span's statistic (cf. StatsItem.computeStatsData)."""
        rows = self._samples[span]
        if len(rows) <= _ROW:
            return BrokerStatsItem()
        first, last = rows[:_ROW], rows[-_ROW:]
        total, passed_ms = last[1 + column] - first[1 + column], last[0] - first[0]
        requests = last[1 + REQUESTS] - first[1 + REQUESTS]
        return BrokerStatsItem(
            sum=total,
            tps=total * 1000 / passed_ms if passed_ms > 0 else 0.0,
            avgpt=total / requests if requests > 0 else 0.0,
        )


class Traffic:
    """All counts of a broker.

    Args:
        limit: the most items of each kind; the traffic of others is counted together.
        started_ms: when the broker started; hours and days are first sampled an interval later.

    Attributes:
        others: for each kind the count of what has no item of its own.
    """

    __slots__ = ("_limit", "_next_ms", "items", "others")

    def __init__(self, *, limit: int = LIMITS.traffic_items, started_ms: int = 0) -> None:
        kinds = (TOPIC_PUT, GROUP_GET, SENT_BACK, DEAD, BROKER_PUT, BROKER_GET)
        self.items: dict[str, dict[str, Item]] = {kind: {} for kind in kinds}
        self.others = {kind: Item() for kind in kinds}
        self._limit = limit
        # An early sample of an hour or a day would be its whole sum until the second one.
        later = (started_ms + interval_ms for interval_ms, _ in SPANS[1:])
        self._next_ms = [started_ms, *later]

    def count(self, kind: str, key: str) -> array[int]:
        """Return a count, to be added to; it is created if needed."""
        items = self.items[kind]
        item = items.get(key)
        if item is None:
            if len(items) >= self._limit:
                return self.others[kind].count
            item = items[key] = Item()
        return item.count

    def put(self, topic: str, messages: int, size: int) -> None:
        """Count a send of messages whose records take ``size`` bytes."""
        add(self.count(TOPIC_PUT, topic), messages, size)

    def got(self, group: str, topic: str, messages: int, size: int) -> None:
        """Count messages that a group was given."""
        add(self.count(GROUP_GET, key_of(topic, group)), messages, size)

    def find(self, name: str, key: str) -> tuple[Item, int] | None:
        """Return the item and column of one of ``STATS``; None if it doesn't exist."""
        kind, column = STATS.get(name, ("", 0))
        item = self.items.get(kind, {}).get(key)
        return None if item is None else (item, column)

    def get_tps(self, group: str, topic: str) -> float:
        """Return how many messages of a topic a group gets per second, over the last minute."""
        item = self.items[GROUP_GET].get(key_of(topic, group))
        return 0.0 if item is None else item.rate(0, MESSAGES).tps

    def forget_topic(self, topic: str) -> None:
        """Drop the items of a deleted topic (cf. onTopicDeleted)."""
        self.items[TOPIC_PUT].pop(topic, None)
        self._forget(lambda key: key.partition("@")[0] == topic)

    def forget_group(self, group: str) -> None:
        """Drop the items of a deleted group (cf. onGroupDeleted)."""
        self._forget(lambda key: key.partition("@")[2] == group)

    def _forget(self, is_gone: Callable[[str], bool]) -> None:
        for kind in (GROUP_GET, SENT_BACK, DEAD):
            for key in [key for key in self.items[kind] if is_gone(key)]:
                del self.items[kind][key]

    def sample(self, now_ms: int) -> Iterator[None]:
        """Sample the spans that are due; yields after every ``AT_ONCE`` items."""
        for span, (interval_ms, _) in enumerate(SPANS):
            late_ms = now_ms - self._next_ms[span]
            if late_ms < 0:
                continue
            # On time even if a call is a little late.
            self._next_ms[span] = now_ms + interval_ms - late_ms % interval_ms
            for items in self.items.values():
                every = iter(list(items.values()))
                while some := list(islice(every, AT_ONCE)):
                    for item in some:
                        item.sample(span, now_ms)
                    yield


def key_of(topic: str, group: str) -> str:
    """Return the key of a topic's and group's statistics (cf. buildStatsKey)."""
    return f"{topic}@{group}"


def add(count: array[int], messages: int, size: int) -> None:
    """Add a request to a count."""
    count[MESSAGES] += messages
    count[BYTES] += size
    count[REQUESTS] += 1
