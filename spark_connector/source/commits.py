"""Commits the progress of a streaming query to its consumer group, for lag monitoring.

Spark calls ``commit`` one batch late and never for the last one. But after every batch it requests
the latest offset again, and passes the offsets that are in its own commit log by then: these are
committed. A failure here never fails the query: it is logged, and the commit is tried again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from client.network.routes import Route
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log
from spark_connector.errors import BrokerError
from spark_connector.source.brokers import BoundsByQueue, Brokers
from spark_connector.source.offsets import Offsets

PAUSE_AFTER_FAILURE: Final = 5.0
"""Seconds without commits after a failed one: a stopped broker must not delay every batch."""

_log = Log("spark")


class Commits:
    """The commits of one query.

    Args:
        brokers: sends the requests.
        group: the consumer group.
        clock: returns monotonic seconds.
    """

    def __init__(
        self, brokers: Brokers, group: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._brokers = brokers
        self._group = group
        self._clock = clock
        self._known: dict[MessageQueue, int] = {}
        self._not_before = float("-inf")
        self._warned_of: set[MessageQueue] = set()
        self._has_created_group = False

    def store(
        self,
        offsets: Offsets,
        routes: Mapping[str, Route],
        bounds: BoundsByQueue,
        *,
        impatient: bool = False,
    ) -> None:
        """Commit the offsets that are above those of the group.

        An offset is lowered only if it is above the end of its queue: then the topic was recreated.

        Args:
            offsets: the progress of the query.
            routes, bounds: the routes and bounds of the queues.
            impatient: try now, even if a commit has just failed, because the query may end.
        """
        changed = {
            queue: offset
            for queue, offset in offsets.items()
            if queue in bounds and self._known.get(queue) != offset
        }
        if not changed or (self._clock() < self._not_before and not impatient):
            return
        if not self._has_created_group:
            self._has_created_group = True
            try:
                self._brokers.create_group(routes, self._group, changed)
            except BrokerError as error:
                _log.info("tools may not list the group", group=self._group, reason=error)
        try:
            committed = self._brokers.committed(routes, self._group, changed)
            ahead = {
                queue: offset
                for queue, offset in changed.items()
                if queue in committed and _is_ahead(offset, committed[queue], bounds[queue].maximum)
            }
            self._warn_of_others(committed)
            self._brokers.commit(routes, self._group, ahead)
        except BrokerError as error:
            self._not_before = self._clock() + PAUSE_AFTER_FAILURE
            _log.warning("a commit failed; it is tried again", group=self._group, reason=error)
            return
        self._known |= {queue: changed[queue] for queue in committed}

    def _warn_of_others(self, there: Mapping[MessageQueue, int | None]) -> None:
        """Log a warning if the group's offset is above what this query has committed."""
        for queue, offset in there.items():
            own = self._known.get(queue)
            if own is None or offset is None or offset <= own or queue in self._warned_of:
                continue
            self._warned_of.add(queue)
            _log.warning(
                "another consumer commits for this query's group: give each its own consumerGroup",
                group=self._group,
                queue=queue,
                committed=own,
                found=offset,
            )


def _is_ahead(offset: int, there: int | None, end: int) -> bool:
    return there is None or offset > there or there > end >= offset
