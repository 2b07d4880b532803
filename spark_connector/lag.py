"""How far streaming queries are behind their topics.

After each batch Spark reports to its listeners the offsets a source has reached and, since 4.2, the
ends of its queues; sources written in Python can't report numbers of their own. The difference is
the lag. Use it as you like::

    from spark_connector.lag import LagListener

    lag = LagListener(callback=alert_when_high)  # a callback is optional
    spark.streams.addListener(lag)               # from now on a log line per batch
    prometheus_client.REGISTRY.register(lag)     # or: lag.prometheus(), the page as text

Log lines are those of the logger ``pocketmq.spark``, of level INFO. The lag counts messages: with
a tag filter also those that don't match. Spark reports nothing for an idle query, so the lag shown
is that after the last batch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from pyspark.sql.streaming.listener import StreamingQueryListener

from remoting.log import Log
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import ConnectorError
from spark_connector.source.offsets import Offsets, from_json

MAX_QUERIES: Final = 1000

_log = Log("spark")


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """One queue of a query.

    Attributes:
        offset: what the query reads next.
        latest: what the next message of the queue gets.
    """

    queue: MessageQueue
    offset: int
    latest: int

    @property
    def messages(self) -> int:
        """How many are not read yet."""
        return max(0, self.latest - self.offset)


@dataclass(frozen=True, slots=True)
class QueryLag:
    """All queues of a query, over all its sources of this format.

    Attributes:
        query_id: Spark's id; the same after a restart from the checkpoint.
        name: of the query, if it was given one.
        batch_id: the batch after which this was so.
        timestamp: when that batch began, as Spark writes it.
    """

    query_id: str
    name: str | None
    batch_id: int
    timestamp: str
    queues: tuple[QueueProgress, ...]

    @property
    def messages(self) -> int:
        """How many are not read yet."""
        return sum(queue.messages for queue in self.queues)

    @property
    def worst(self) -> QueueProgress | None:
        """The queue with the most."""
        return max(self.queues, key=lambda queue: queue.messages, default=None)


def lag_of(progress: Any) -> QueryLag | None:
    """The lag in what Spark reports of a batch; None if the query reads no topic of ours.

    Args:
        progress: a ``StreamingQueryProgress``.
    """
    queues: dict[MessageQueue, QueueProgress] = {}
    is_ours = False
    for source in progress.sources:
        ends, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
        if ends is None or latest is None:
            continue
        is_ours = True
        # A queue that is in one of them only has just come or gone.
        for queue in ends.keys() & latest:
            lag = QueueProgress(queue, ends[queue], latest[queue])
            # Two sources of a query may read the same topic: the slower one counts.
            if queue not in queues or lag.messages > queues[queue].messages:
                queues[queue] = lag
    if not is_ours:
        return None
    found = tuple(queues[queue] for queue in sorted(queues))
    return QueryLag(str(progress.id), progress.name, progress.batchId, progress.timestamp, found)


def _offsets(text: str) -> Offsets | None:
    """Offsets of a source, unless it is of another format."""
    try:
        return from_json(json.loads(text))
    except (ValueError, TypeError, ConnectorError):
        return None


class LagListener(StreamingQueryListener):
    """Keeps, logs and gives out the lag of a session's queries.

    Args:
        callback: called with each new lag, in Spark's listener thread. What it raises is logged.
        log: whether a line is logged for each.
        max_queries: queries whose lag is kept at a time; beyond it the oldest one is dropped.
    """

    def __init__(
        self,
        callback: Callable[[QueryLag], object] | None = None,
        *,
        log: bool = True,
        max_queries: int = MAX_QUERIES,
    ) -> None:
        self._max_queries = max_queries
        self._callback = callback
        self._writes_log = log
        self._lags: dict[str, QueryLag] = {}
        # Spark calls from a thread of its own.
        self._lock = threading.Lock()

    @property
    def lags(self) -> Mapping[str, QueryLag]:
        """The lag of each running query after its last batch, by its id."""
        with self._lock:
            return dict(self._lags)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """A query began: nothing is known yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """A batch is done."""
        lag = lag_of(event.progress)
        if lag is None:
            return
        with self._lock:
            self._lags[lag.query_id] = lag
            if len(self._lags) > self._max_queries:
                del self._lags[next(iter(self._lags))]
        if self._writes_log:
            _write(lag)
        if self._callback is not None:
            try:
                self._callback(lag)
            except Exception:  # noqa: BLE001 - Spark would print it without saying whose it is
                _log.exception("the callback for lag failed", query=lag.name or lag.query_id)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """There was nothing to read: the lag is what it was."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """A query ended: drop its lag."""
        with self._lock:
            self._lags.pop(str(event.id), None)

    def collect(self) -> Iterator[Metric]:
        """The lags as metrics: what makes this a collector for a Prometheus registry."""
        return _metrics(self.lags.values())

    def prometheus(self) -> str:
        """The same as a page of text."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()


def _write(lag: QueryLag) -> None:
    worst = lag.worst
    _log.info(
        "lag",
        query=lag.name or lag.query_id,
        batch=lag.batch_id,
        messages=lag.messages,
        queues=len(lag.queues),
        worst=f"{worst.queue}:{worst.messages}" if worst and worst.messages else "none",
    )


def _metrics(lags: Iterable[QueryLag]) -> Iterator[Metric]:
    labels = ["query", "query_id", "topic", "broker", "queue"]
    behind = GaugeMetricFamily(
        "pocketmq_spark_lag_messages",
        "Messages that a streaming query has not read yet.",
        labels=labels,
    )
    batches = GaugeMetricFamily(
        "pocketmq_spark_batch", "The last batch of a streaming query.", labels=labels[:2]
    )
    for lag in lags:
        query = [lag.name or "", lag.query_id]
        batches.add_metric(query, lag.batch_id)
        for one in lag.queues:
            queue = one.queue
            place = [queue.topic, queue.broker_name, str(queue.queue_id)]
            behind.add_metric([*query, *place], one.messages)
    yield behind
    yield batches
