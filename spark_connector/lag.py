"""The lag of streaming queries: how many messages they are behind their topics.

After each batch Spark reports to its listeners the offsets a source has reached and, since 4.2, the
ends of its queues; Python sources can't report metrics. The lag is the difference::

    from spark_connector.lag import LagListener

    lag = LagListener(callback=alert_when_high)  # the callback is optional
    spark.streams.addListener(lag)               # logs one line per batch
    prometheus_client.REGISTRY.register(lag)     # or lag.prometheus(), which returns the page

The logger is ``pocketmq.spark``, the level INFO. The lag counts all messages, including those that
a tag filter drops. Spark reports no progress for an idle query, so its lag is that after its last
batch.
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

from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log
from spark_connector.errors import ConnectorError
from spark_connector.source.offsets import Offsets, from_json

MAX_QUERIES: Final = 1000

_log = Log("spark")


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """One queue of a query.

    Attributes:
        offset: the offset the query reads next.
        latest: the offset the next message of the queue will get.
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
    """The lag of a query over all its sources of this format.

    Attributes:
        query_id: Spark's id, which is kept over a restart from the checkpoint.
        name: the query's name, or None.
        batch_id: the batch after which the lag was measured.
        timestamp: when that batch began, ISO 8601 as reported by Spark.
        queues: the queues that are read, sorted.
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
        """The queue with the largest lag, or None if the query has no queue."""
        return max(self.queues, key=lambda queue: queue.messages, default=None)


def lag_of(progress: Any) -> QueryLag | None:
    """Return the lag after a batch, or None if the query has no source of this format.

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
        # A queue that is in only one of them was just created or deleted.
        for queue in ends.keys() & latest:
            lag = QueueProgress(queue, ends[queue], latest[queue])
            # Two sources of a query may read the same topic: report the slower one.
            if queue not in queues or lag.messages > queues[queue].messages:
                queues[queue] = lag
    if not is_ours:
        return None
    found = tuple(queues[queue] for queue in sorted(queues))
    return QueryLag(str(progress.id), progress.name, progress.batchId, progress.timestamp, found)


def _offsets(text: str) -> Offsets | None:
    """Parse the offsets of a source; None for a source of another format."""
    try:
        return from_json(json.loads(text))
    except (ValueError, TypeError, ConnectorError):
        return None


class LagListener(StreamingQueryListener):
    """Records, logs and exports the lag of a session's streaming queries.

    Args:
        callback: called with each new lag, in Spark's listener thread. Its exceptions are logged.
        log: whether to log a line for each new lag.
        max_queries: the most queries whose lag is kept; beyond it the oldest one is dropped.
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
        # Spark calls the listener from another thread than the one that reads the lags.
        self._lock = threading.Lock()

    @property
    def lags(self) -> Mapping[str, QueryLag]:
        """The lag of each running query after its last batch, by query id."""
        with self._lock:
            return dict(self._lags)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Do nothing: a query has no lag before its first batch."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Record, log and pass on the lag after a batch."""
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
            except Exception:  # noqa: BLE001 - Spark prints it without naming the callback
                _log.exception("the callback for lag failed", query=lag.name or lag.query_id)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Do nothing: without new messages the lag is unchanged."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Drop the lag of a query that has ended."""
        with self._lock:
            self._lags.pop(str(event.id), None)

    def collect(self) -> Iterator[Metric]:
        """Yield the lags as metrics: the collector interface of a Prometheus registry."""
        return _metrics(self.lags.values())

    def prometheus(self) -> str:
        """Return the metrics in the Prometheus text format."""
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
        for progress in lag.queues:
            queue = progress.queue
            place = [queue.topic, queue.broker_name, str(queue.queue_id)]
            behind.add_metric([*query, *place], progress.messages)
    yield behind
    yield batches
