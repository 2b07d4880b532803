"""The driver's view of a streaming query's queues: their routes and ends, kept up to date.

New messages are noticed by long polling, with one parked pull per queue: a broker holds a pull at
the end of a queue until a message arrives or 20 seconds have passed. So an idle query sends one
request per queue in 20 seconds and still notices a message at once. The messages in the answers
are dropped; an answer only causes the ends of the queues to be requested.

A failure of the long polling is no error: the query polls the ends of the queues instead.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from client.network.routes import Route
from client.wire.offsets import pull_header
from remoting.blocking import BlockingConnection
from remoting.errors import AnswerTimeout, RemotingError
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log
from remoting.security.credentials import CredentialsSource, Signer
from remoting.security.tls import Tls
from spark_connector.errors import BrokerError, UnknownTopicError
from spark_connector.source.brokers import BoundsByQueue, Brokers, addresses_of
from spark_connector.source.offsets import Offsets
from spark_connector.source.options import SourceOptions
from spark_connector.source.positions import QueueBounds

SUSPEND_MS: Final = 20_000
"""How long a broker holds a pull (cf. DefaultMQPullConsumer.brokerSuspendMaxTimeMillis)."""

MAX_WATCHED: Final = 32
"""The most watched queues: with more, polling takes fewer requests."""

SUBMIT_TIMEOUT: Final = 1.0
"""Seconds for connecting to a broker and for sending a pull."""

_PAUSE: Final = 5.0
"""Seconds before a broker is watched again after a failure."""

_log = Log("spark")


class _Watched:
    """The parked pulls at one broker; ``queues`` maps their opaques to queue and offset."""

    def __init__(
        self, address: str, credentials: CredentialsSource | None, tls: Tls | None
    ) -> None:
        self.connection = BlockingConnection(
            address,
            connect_timeout=SUBMIT_TIMEOUT,
            signer=None if credentials is None else Signer(credentials),
            tls=tls,
        )
        self.queues: dict[int, tuple[MessageQueue, int]] = {}

    def park(self, group: str, queue: MessageQueue, offset: int) -> None:
        header = pull_header(queue, group, offset, messages=1, suspend_ms=SUSPEND_MS)
        command = Command.request(RequestCode.PULL_MESSAGE, header)
        opaque = self.connection.submit(command, timeout=SUBMIT_TIMEOUT)
        self.queues[opaque] = (queue, offset)


class ArrivalWatch:
    """Waits for messages at the ends of queues.

    Args:
        group: the consumer group named in the pulls.
        credentials: what the pulls are signed with; None: unsigned.
        tls: how to connect with TLS; None: without it.
    """

    def __init__(
        self, group: str, credentials: CredentialsSource | None = None, tls: Tls | None = None
    ) -> None:
        self._group = group
        self._credentials = credentials
        self._tls = tls
        self._brokers: dict[str, _Watched] = {}
        self._resting: dict[str, float] = {}

    @property
    def resting(self) -> bool:
        """Whether some broker is currently not watched because of a failure."""
        return any(until > time.monotonic() for until in self._resting.values())

    def wait(self, ends: Mapping[str, Mapping[MessageQueue, int]], timeout: float) -> bool:
        """Wait until a queue may have a new message; return False at the timeout.

        Args:
            ends: maps broker addresses to their queues and the known ends of these.
            timeout: in seconds.
        """
        deadline = time.monotonic() + timeout
        if sum(map(len, ends.values())) > MAX_WATCHED:
            self.close()
            time.sleep(timeout)
            return False
        for address in self._brokers.keys() - ends.keys():
            self._drop(address)
        awake = {
            address: queues
            for address, queues in ends.items()
            if self._resting.get(address, 0.0) < time.monotonic()
        }
        for left, (address, queues) in zip(range(len(awake), 0, -1), awake.items(), strict=True):
            share = (deadline - time.monotonic()) / left
            if self._wait_at(address, queues, time.monotonic() + max(share, 0.0)):
                return True
        time.sleep(max(0.0, deadline - time.monotonic()))
        return False

    def close(self) -> None:
        """Close the connections, and with them drop all parked pulls."""
        for address in list(self._brokers):
            self._drop(address)

    def _wait_at(self, address: str, ends: Mapping[MessageQueue, int], deadline: float) -> bool:
        try:
            watched = self._watched(address, ends)
            while True:
                answer = watched.connection.receive(timeout=max(0.0, deadline - time.monotonic()))
                queue, offset = watched.queues.pop(answer.opaque)
                if answer.code == ResponseCode.PULL_NOT_FOUND:
                    watched.park(self._group, queue, ends.get(queue, offset))
                elif offset == ends.get(queue):
                    return True
                elif queue in ends:
                    # The pull was parked at an earlier end: the message is known by now.
                    watched.park(self._group, queue, ends[queue])
        except AnswerTimeout:
            return False
        except (RemotingError, ValueError) as error:
            _log.debug("a broker's queues can't be watched", broker=address, reason=error)
            self._resting[address] = time.monotonic() + _PAUSE
            self._drop(address)
            return False

    def _watched(self, address: str, ends: Mapping[MessageQueue, int]) -> _Watched:
        watched = self._brokers.get(address)
        if watched is None:
            watched = self._brokers[address] = _Watched(address, self._credentials, self._tls)
        parked = {queue for queue, _ in watched.queues.values()}
        for queue, end in ends.items():
            if queue not in parked:
                watched.park(self._group, queue, end)
        return watched

    def _drop(self, address: str) -> None:
        watched = self._brokers.pop(address, None)
        if watched is not None:
            watched.connection.close()


_REST: Final = 1.0
"""Seconds before a request is sent again to a broker that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a query sends requests to its brokers; times in seconds.

    Attributes:
        idle_block: how long one call waits for a message; short, so that a query stops quickly.
        brief_block: the same for a query that has other work, such as another source; long enough
            for the round trip of an answer.
        other_work: if two calls of ``refresh`` are further apart than this, the query has other
            work; an idle query calls again at once.
        route_period: the period of requests for new topics and queues.
        idle_refresh: the period of requests for the ends of idle queues that are watched, and the
            longest one for others.
        idle_requests: requests per second while idle queues are not watched or a broker is down.
    """

    idle_block: float = 0.25
    brief_block: float = 0.02
    other_work: float = 0.1
    route_period: float = 10.0
    idle_refresh: float = 10.0
    idle_requests: float = 1.0


class QueueMonitor:
    """The queues of one query, with their routes and ends.

    Args:
        options: the options of the query.
        brokers: sends the requests.
        watch: waits for new messages.
        pace: how often to send requests.

    Attributes:
        routes: the routes of the topics, by topic.
        bounds: the ends of the queues.
    """

    def __init__(
        self,
        options: SourceOptions,
        brokers: Brokers,
        *,
        watch: ArrivalWatch | None = None,
        pace: Pace = Pace(),
    ) -> None:
        self.brokers = brokers
        self._options = options
        self._watch = watch or ArrivalWatch(
            options.group, options.connection.credentials, options.connection.tls
        )
        self._pace = pace
        self._fetched_at = float("-inf")
        self._routes_at = float("-inf")
        self._working_at = float("-inf")
        self._refreshed_at = float("-inf")
        self._empty_refreshes = 0
        self._polls = False
        self._vanished: set[MessageQueue] = set()
        self._down: dict[str, tuple[BrokerError, float]] = {}
        self.routes: dict[str, Route] = {}
        self.bounds: BoundsByQueue = {}

    def fetch(self, *, strict: bool = False, resumes: bool = False) -> BoundsByQueue:
        """Request the ends of all queues now.

        Args:
            strict: raise the error of a broker that fails; otherwise leave out its queues. The
                first call is always strict.
            resumes: the query has offsets, so that a broker may also fail in the first call.

        Raises:
            UnknownTopicError: a topic or an assigned queue doesn't exist; strict only.
            BrokerError: a broker fails; without ``strict``, all have failed for ``read_timeout``.
        """
        begun = self._routes_at > float("-inf")
        strict = strict or not (self.routes or (begun and self._options.subscription.pattern))
        now = time.monotonic()
        # Skip brokers that have just failed: each attempt may take as long as a timeout.
        down = (
            None
            if strict and not resumes
            else ({address: error for address, (error, until) in self._down.items() if until > now})
        )
        unlisted: set[str] = set()
        if strict or now - self._routes_at >= self._pace.route_period:
            unlisted = self._fetch_routes(strict, None if strict else down)
        bounds = self.brokers.bounds(self.routes, down=down)
        self._forget(unlisted, bounds, down or {})
        self._note(down or {}, time.monotonic())
        self._choose(bounds, strict and not resumes)
        self._fetched_at = now
        return self.bounds

    def refresh(self, known: Offsets, *, idle: bool, may_wait: bool) -> None:
        """Refresh the ends of the queues if necessary.

        Ends younger than ``poll_interval`` are not refreshed if they already allow a new batch. If
        they don't, they are always refreshed, or watched, before this returns.

        Args:
            known: the end of the query's last batch.
            idle: whether the previous call led to no batch.
            may_wait: whether this may wait for new messages.
        """
        self._empty_refreshes = self._empty_refreshes + 1 if idle else 0
        if self._empty_refreshes > 1 and may_wait:
            has_time = time.monotonic() - self._refreshed_at < self._pace.other_work
            self._wait(self._pace.idle_block if has_time else self._pace.brief_block)
        elif self._age() >= self._options.poll_interval or not self._is_ahead(known):
            self.fetch(resumes=bool(known))
        self._refreshed_at = time.monotonic()

    def _is_ahead(self, known: Offsets) -> bool:
        return any(known.get(queue) != ends.maximum for queue, ends in self.bounds.items())

    def close(self) -> None:
        """Close the connections of the watch."""
        self._watch.close()

    def _age(self) -> float:
        return time.monotonic() - self._fetched_at

    def _wait(self, timeout: float) -> None:
        """Wait for new messages, and request the ends of the queues when a pull is answered.

        Args:
            timeout: in seconds.
        """
        if self._polls:
            # A broker that answers pulls at once though nothing is new is polled instead.
            time.sleep(timeout)
            sign = False
        else:
            sign = self._watch.wait(self._watched(), timeout)
        if sign:
            time.sleep(max(0.0, self._options.poll_interval - self._age()))
        elif self._age() < self._idle_refresh():
            return
        before = self.bounds
        self.fetch()
        changed = self.bounds != before
        if sign or changed:
            self._polls = not changed

    def _watched(self) -> dict[str, dict[MessageQueue, int]]:
        watched: dict[str, dict[MessageQueue, int]] = defaultdict(dict)
        for queue, ends in self.bounds.items():
            for address in addresses_of(self.routes, queue)[:1]:
                watched[address][queue] = ends.maximum
        return watched

    def _idle_refresh(self) -> float:
        unwatched = self._polls or self._down or self._watch.resting
        if len(self.bounds) <= MAX_WATCHED and not unwatched:
            return self._pace.idle_refresh
        requests = sum(len(route.brokers) for route in self.routes.values())
        return min(requests / self._pace.idle_requests, self._pace.idle_refresh)

    def _fetch_routes(self, strict: bool, down: dict[str, BrokerError] | None) -> set[str]:
        """Refresh the routes; return known topics that the name server does not list any more.

        Brokers may still have these: a restarted name server is empty until brokers register.
        """
        subscription = self._options.subscription
        known = self.routes
        try:
            # A query with a pattern waits for its first topic.
            gone = not strict or subscription.pattern is not None
            self.routes = self.brokers.routes(subscription, gone=gone)
        except BrokerError as error:
            if down is None:
                raise
            _log.warning("routes can't be refreshed", subscription=subscription, reason=error)
        self._routes_at = time.monotonic()
        unlisted = set() if strict else known.keys() - self.routes.keys()
        self.routes |= {topic: known[topic] for topic in unlisted}
        return unlisted

    def _forget(
        self, unlisted: set[str], bounds: BoundsByQueue, down: dict[str, BrokerError]
    ) -> None:
        """Remove unlisted topics, unless a broker has them or is down."""
        for topic in unlisted - {queue.topic for queue in bounds}:
            route = self.routes[topic]
            if not any(route.address(name) in down for name in route.brokers):
                del self.routes[topic]

    def _note(self, down: dict[str, BrokerError], now: float) -> None:
        """Record and log which brokers are down.

        Raises:
            BrokerError: all brokers have been down for ``read_timeout``.
        """
        asked = {
            broker for route in self.routes.values() for broker in map(route.address, route.brokers)
        }
        if not down or asked - down.keys() - {None}:
            self._working_at = now
        elif now - self._working_at >= self._options.read.read_timeout:
            raise next(iter(down.values()))
        for address, error in down.items():
            if address not in self._down:
                _log.warning("a broker can't be asked for its queues", broker=address, reason=error)
        self._down = {
            address: self._down[address]
            if self._down.get(address, (None, 0.0))[0] is error
            else (error, now + _REST)
            for address, error in down.items()
        }

    def _choose(self, bounds: BoundsByQueue, strict: bool) -> None:
        """Keep the ends of the queues that the query reads; log new and vanished queues."""
        subscription = self._options.subscription
        chosen = {queue: ends for queue, ends in bounds.items() if subscription.includes(queue)}
        if strict:
            check_assigned(self._options, chosen)
        vanished = self.bounds.keys() - chosen.keys()
        for queue in vanished - self._vanished:
            _log.warning("a queue has vanished; the query keeps its offset", queue=queue)
        for queue in chosen.keys() - self.bounds.keys() if self.bounds else ():
            _log.info("a queue was added", queue=queue, offsets=chosen[queue])
        self._vanished = (self._vanished | vanished) - chosen.keys()
        self.bounds = chosen


def check_assigned(options: SourceOptions, bounds: dict[MessageQueue, QueueBounds]) -> None:
    """Raise UnknownTopicError if a queue of the option ``assign`` doesn't exist."""
    for topic, brokers in (options.subscription.assigned or {}).items():
        for broker, ids in brokers.items():
            for queue_id in ids:
                if MessageQueue(topic, broker, queue_id) not in bounds:
                    there = sorted(str(queue) for queue in bounds if queue.topic == topic)
                    raise UnknownTopicError(
                        f"assign names queue {topic}/{broker}/{queue_id}, which isn't there",
                        f"of those named there are {', '.join(there) or 'none'}",
                    )
