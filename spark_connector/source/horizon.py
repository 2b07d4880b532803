"""Noticing new messages without asking for them: one parked pull per queue.

A pull at the end of a queue is held by its broker until a message comes or its time is over, so an
idle query costs each queue one request in twenty seconds and still notices a message at once. The
answers are only a sign: their messages are dropped, and the ends of the queues are requested
afterwards.

A failure here is no error: without the watch a query polls.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from client.routes import Route
from client.wire.offsets import pull_header
from remoting.blocking import BlockingConnection
from remoting.errors import AnswerTimeout, RemotingError
from remoting.log import Log
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.message.tags import SUBSCRIBE_ALL
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import BrokerError, UnknownTopicError
from spark_connector.source.brokers import Brokers, Facts, master_of
from spark_connector.source.offsets import Offsets
from spark_connector.source.options import SourceOptions
from spark_connector.source.positions import QueueFacts

SUSPEND_MS: Final = 20_000
"""How long a broker holds a pull (cf. DefaultMQPullConsumer.brokerSuspendMaxTimeMillis)."""

MAX_WATCHED: Final = 32
"""Queues watched at most: more would cost a broker more requests than polling does."""

SUBMIT_TIMEOUT: Final = 1.0
_PAUSE: Final = 5.0
"""Seconds before a broker that could not be watched is tried again."""

_log = Log("spark")


class _Watched:
    """The parked pulls at one broker."""

    def __init__(self, address: str) -> None:
        self.connection = BlockingConnection(address, connect_timeout=SUBMIT_TIMEOUT)
        self.queues: dict[int, tuple[MessageQueue, int]] = {}

    def park(self, group: str, queue: MessageQueue, offset: int) -> None:
        header = pull_header(
            queue,
            group,
            offset,
            messages=1,
            suspend_ms=SUSPEND_MS,
            expression=SUBSCRIBE_ALL,
        )
        command = Command.request(RequestCode.PULL_MESSAGE, header)
        opaque = self.connection.submit(command, timeout=SUBMIT_TIMEOUT)
        self.queues[opaque] = (queue, offset)


class ArrivalWatch:
    """Waits for messages behind known ends of queues.

    Args:
        group: named by the pulls.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._brokers: dict[str, _Watched] = {}
        self._resting: dict[str, float] = {}

    @property
    def resting(self) -> bool:
        """Whether a broker is not watched at the moment, after a failure."""
        return any(until > time.monotonic() for until in self._resting.values())

    def wait(self, ends: Mapping[str, Mapping[MessageQueue, int]], timeout: float) -> bool:
        """Wait until a queue may have more than its known end; False when the time is over.

        Args:
            ends: address of a broker -> its queues and their ends.
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
        """Give up all pulls."""
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
                    # It is about a message that is known by now.
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
            watched = self._brokers[address] = _Watched(address)
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
"""Seconds before a broker that could not be asked is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a query asks its brokers, in seconds.

    Attributes:
        idle_block: how long one call waits for a message; stopping a query must stay quick.
        brief_block: the same for a query that has other work, such as another source: long enough
            for an answer.
        other_work: between two looks from which a query has other work; an idle one looks again at
            once.
        route_period: between looks for new topics and queues.
        idle_refresh: between looks at idle queues that are watched.
        idle_requests: requests per second while idle queues have to be polled, or the return of a
            broker is waited for.
    """

    idle_block: float = 0.25
    brief_block: float = 0.02
    other_work: float = 0.1
    route_period: float = 10.0
    idle_refresh: float = 10.0
    idle_requests: float = 1.0


class Horizon:
    """The queues of one query as far as they are known.

    Args:
        options: of the query.
        brokers: are asked.
        watch: notices new messages.
        pace: how often to ask.
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
        self._watch = watch or ArrivalWatch(options.group)
        self._pace = pace
        self._fetched_at = float("-inf")
        self._routes_at = float("-inf")
        self._working_at = float("-inf")
        self._looked_at = float("-inf")
        self._empty_looks = 0
        self._polls = False
        self._vanished: set[MessageQueue] = set()
        self._down: dict[str, tuple[BrokerError, float]] = {}
        self.routes: dict[str, Route] = {}
        self.facts: Facts = {}

    def fetch(self, *, strict: bool = False) -> Facts:
        """Ask all brokers now.

        Args:
            strict: raise whatever prevents that; else leave out what can't be asked.

        Raises:
            UnknownTopicError, BrokerError: nothing is known yet, or see above.
        """
        strict = strict or not self.routes
        now = time.monotonic()
        # Brokers that are not asked again yet: each attempt may take as long as a timeout.
        down = (
            None
            if strict
            else ({address: error for address, (error, until) in self._down.items() if until > now})
        )
        unlisted: set[str] = set()
        if strict or now - self._routes_at >= self._pace.route_period:
            unlisted = self._fetch_routes(strict, down)
        facts = self.brokers.facts(self.routes, down=down)
        self._forget(unlisted, facts, down or {})
        self._note(down or {}, time.monotonic())
        self._choose(facts, strict)
        self._fetched_at = now
        return self.facts

    def look(self, known: Offsets, *, idle: bool, may_wait: bool) -> None:
        """Refresh the view if it is too old.

        A view that is a little old is good enough to go on with. Before the answer is that nothing
        is new, the brokers are asked, or watched, again.

        Args:
            known: how far the query has come.
            idle: the look before led to nothing.
            may_wait: the caller has time to wait for something new.
        """
        self._empty_looks = self._empty_looks + 1 if idle else 0
        if self._empty_looks > 1 and may_wait:
            has_time = time.monotonic() - self._looked_at < self._pace.other_work
            self._wait(self._pace.idle_block if has_time else self._pace.brief_block)
        elif self._age() >= self._options.poll_interval or not self._is_ahead(known):
            self.fetch()
        self._looked_at = time.monotonic()

    def _is_ahead(self, known: Offsets) -> bool:
        return any(known.get(queue) != ends.maximum for queue, ends in self.facts.items())

    def close(self) -> None:
        """Give up the watch."""
        self._watch.close()

    def _age(self) -> float:
        return time.monotonic() - self._fetched_at

    def _wait(self, timeout: float) -> None:
        """Wait for a sign of new messages, and ask for the ends when it comes."""
        if self._polls:
            # A broker that answers parked pulls at once is polled like one that can't be watched.
            time.sleep(timeout)
            sign = False
        else:
            sign = self._watch.wait(self._watched(), timeout)
        if sign:
            time.sleep(max(0.0, self._options.poll_interval - self._age()))
        elif self._age() < self._idle_refresh():
            return
        before = self.facts
        self.fetch()
        changed = self.facts != before
        if sign or changed:
            self._polls = not changed

    def _watched(self) -> dict[str, dict[MessageQueue, int]]:
        found: dict[str, dict[MessageQueue, int]] = defaultdict(dict)
        for queue, ends in self.facts.items():
            address = master_of(self.routes, queue)
            if address is not None:
                found[address][queue] = ends.maximum
        return found

    def _idle_refresh(self) -> float:
        unwatched = self._polls or self._down or self._watch.resting
        if len(self.facts) <= MAX_WATCHED and not unwatched:
            return self._pace.idle_refresh
        requests = sum(len(route.brokers) for route in self.routes.values())
        return requests / self._pace.idle_requests

    def _fetch_routes(self, strict: bool, down: dict[str, BrokerError] | None) -> set[str]:
        """Ask a name server; the topics it no longer lists, though brokers may still have them.

        One that was just started knows nothing until brokers register.
        """
        subscription = self._options.subscription
        known = self.routes
        try:
            self.routes = self.brokers.routes(subscription, gone=not strict)
        except BrokerError as error:
            if down is None:
                raise
            _log.warning("routes can't be refreshed", subscription=subscription, reason=error)
        self._routes_at = time.monotonic()
        unlisted = set() if strict else known.keys() - self.routes.keys()
        self.routes |= {topic: known[topic] for topic in unlisted}
        return unlisted

    def _forget(self, unlisted: set[str], facts: Facts, down: dict[str, BrokerError]) -> None:
        """Forget topics that brokers don't know either."""
        for topic in unlisted - {queue.topic for queue in facts}:
            route = self.routes[topic]
            if not any(route.master(name) in down for name in route.brokers):
                del self.routes[topic]

    def _note(self, down: dict[str, BrokerError], now: float) -> None:
        """Say which brokers are down; raises the error when all are for too long."""
        asked = {
            master for route in self.routes.values() for master in map(route.master, route.brokers)
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

    def _choose(self, facts: Facts, strict: bool) -> None:
        """Keep what the query reads, and say what is gone since the last look."""
        subscription = self._options.subscription
        chosen = {queue: ends for queue, ends in facts.items() if subscription.includes(queue)}
        if strict:
            check_assigned(self._options, chosen)
        vanished = self.facts.keys() - chosen.keys()
        for queue in vanished - self._vanished:
            _log.warning("a queue is not there now; it stays at its offset", queue=queue)
        for queue in chosen.keys() - self.facts.keys() if self.facts else ():
            _log.info("a queue is there", queue=queue, offsets=chosen[queue])
        self._vanished = (self._vanished | vanished) - chosen.keys()
        self.facts = chosen


def check_assigned(options: SourceOptions, facts: dict[MessageQueue, QueueFacts]) -> None:
    """Raises UnknownTopicError when a queue of the option ``assign`` isn't there."""
    for topic, brokers in (options.subscription.assigned or {}).items():
        for broker, ids in brokers.items():
            for queue_id in ids:
                if MessageQueue(topic, broker, queue_id) not in facts:
                    there = sorted(str(queue) for queue in facts if queue.topic == topic)
                    raise UnknownTopicError(
                        f"assign names queue {topic}/{broker}/{queue_id}, which isn't there",
                        f"of those named there are {', '.join(there) or 'none'}",
                    )
