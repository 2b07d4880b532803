"""Routes: a topic's queues, the brokers that serve them, and the choice of a message's queue.

No I/O: the caller passes decoded routes and the time; ``RouteTable`` returns the known routes and
the topics whose route has to be requested again. A known route stays in use while no name server
answers, or while the name servers have just restarted and don't have the topic yet (cf.
MQClientInstance).

Messages without a sharding key are distributed round robin from a random start, skipping brokers
that the fault table avoids and, on a retry, the broker that has just failed. A sharding key always
selects the same queue as long as the topic has the same queues (cf. SelectMessageQueueByHash).

A slow answer makes a broker unavailable for the time in ``PENALTIES`` for its latency; a failed
send counts as an answer after 30 s. A later quick answer or heartbeat makes it available again (cf.
LatencyFaultTolerance, MQFaultStrategy).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from client.errors import NoRoute
from client.limits import FALLBACK_ROUTE_PERIOD, MAX_ROUTES, ROUTE_REFRESH_PERIOD
from remoting.protocol.bodies.route import TopicRouteData
from remoting.protocol.command import natural
from remoting.protocol.message.tags import java_hash
from remoting.protocol.names import PERM_READ, PERM_WRITE
from remoting.protocol.queue import MessageQueue

MASTER_ID: Final = 0
MAX_QUEUES: Final = 65_536
"""Most queues of one topic that are taken from a route; a damaged count must not exhaust memory."""


@dataclass(frozen=True, slots=True)
class Route:
    """A topic's queues and brokers.

    Attributes:
        writable: queues to send to, in round-robin order.
        readable: queues to read from, sorted.
        brokers: broker name -> broker id -> address.
        clusters: broker name -> cluster name.
        fallback: derived from the template topic (TBW102): the topic itself doesn't exist yet.
    """

    topic: str
    writable: tuple[MessageQueue, ...]
    readable: tuple[MessageQueue, ...]
    brokers: dict[str, dict[int, str]] = field(default_factory=dict)
    clusters: dict[str, str] = field(default_factory=dict)
    fallback: bool = False

    def master(self, broker: str) -> str | None:
        """Return the address for sends and commits to this broker's queues, or None."""
        addresses = self.brokers.get(broker)
        return addresses.get(MASTER_ID) if addresses else None

    def address(self, broker: str, broker_id: int = MASTER_ID) -> str | None:
        """Return an address to read from: the given broker id's, else the master's, else any."""
        addresses = self.brokers.get(broker)
        if not addresses:
            return None
        return addresses.get(broker_id) or addresses.get(MASTER_ID) or addresses[min(addresses)]


def address_of(route: Route, queue: MessageQueue, broker_id: int = 0) -> str:
    """Return the address that serves reads of a queue. Raises NoRoute."""
    address = route.address(queue.broker_name, broker_id)
    if address is None:
        raise NoRoute(
            "the queue's broker is not in the route",
            queue=queue,
            broker=queue.broker_name,
            hint="check that it runs and registers at the name server",
        )
    return address


def route_of(topic: str, data: TopicRouteData) -> Route:
    """Return the route in a name server's answer (cf. topicRouteData2TopicPublishInfo)."""
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    clusters = {broker.broker_name: broker.cluster for broker in data.broker_datas}
    ordered = _ordered(topic, data.order_topic_conf)
    writable = ordered or tuple(
        MessageQueue(topic, queue.broker_name, index)
        for queue in sorted(data.queue_datas, key=lambda queue: queue.broker_name)
        if queue.perm & PERM_WRITE and MASTER_ID in brokers.get(queue.broker_name, {})
        for index in range(min(queue.write_queue_nums, MAX_QUEUES))
    )
    readable = sorted(
        MessageQueue(topic, queue.broker_name, index)
        for queue in data.queue_datas
        if queue.perm & PERM_READ
        for index in range(min(queue.read_queue_nums, MAX_QUEUES))
    )
    return Route(topic, writable, tuple(readable), brokers, clusters)


def fallback_route(topic: str, template: TopicRouteData, default_queues: int) -> Route:
    """Return the route for a topic that its first send will create, from the template's route."""
    made = route_of(topic, template)
    counts = {queue.broker_name: queue.read_queue_nums for queue in template.queue_datas}
    return Route(
        topic,
        tuple(
            queue
            for queue in made.writable
            if queue.queue_id < min(default_queues, counts[queue.broker_name])
        ),
        (),
        made.brokers,
        made.clusters,
        fallback=True,
    )


def _ordered(topic: str, text: str | None) -> tuple[MessageQueue, ...]:
    """Parse ``broker:count;broker2:count`` into queues; skip unreadable parts."""
    queues: list[MessageQueue] = []
    for part in (text or "").split(";"):
        broker, _, count = part.rpartition(":")
        if broker:
            queues += [
                MessageQueue(topic, broker, index)
                for index in range(min(natural(count, 0), MAX_QUEUES))
            ]
    return tuple(queues)


@dataclass(slots=True)
class _Entry:
    route: Route | None = None
    asked_at: float = float("-inf")


class RouteTable:
    """The routes that one instance uses."""

    def __init__(self, refresh_period: float = ROUTE_REFRESH_PERIOD) -> None:
        self._refresh_period = refresh_period
        self._entries: dict[str, _Entry] = {}
        self._masters: dict[str, str] = {}

    def get(self, topic: str) -> Route | None:
        """Return the last known route of a topic, or None."""
        entry = self._entries.get(topic)
        return entry.route if entry is not None else None

    def put(self, route: Route, now: float) -> None:
        """Store a route; the topic is refreshed from now on."""
        entry = self._entries.get(route.topic)
        if entry is None:
            if len(self._entries) >= MAX_ROUTES:
                self._entries.pop(next(iter(self._entries)))
            entry = self._entries[route.topic] = _Entry()
        entry.route = route
        entry.asked_at = now

    def asked(self, topic: str, now: float) -> None:
        """Record that a refresh began or failed: the next one is due a period later.

        Minus infinity for ``now`` makes it due at once.
        """
        entry = self._entries.get(topic)
        if entry is not None:
            entry.asked_at = now

    def forget(self, topic: str) -> None:
        """Delete a topic's route."""
        self._entries.pop(topic, None)

    def age(self, topic: str, now: float) -> float:
        """Return the seconds since the topic's route was last requested."""
        entry = self._entries.get(topic)
        return now - entry.asked_at if entry is not None else float("inf")

    def due(self, now: float) -> list[str]:
        """Return the topics whose route has to be requested now."""
        return [
            topic
            for topic, entry in self._entries.items()
            if now - entry.asked_at >= self._period(entry)
        ]

    def next_due(self, now: float) -> float:
        """Return the seconds until ``due`` returns a topic."""
        waits = [entry.asked_at + self._period(entry) - now for entry in self._entries.values()]
        return max(0.0, min(waits, default=self._refresh_period))

    def put_masters(self, masters: dict[str, str]) -> bool:
        """Add brokers to those of the routes, by name; return whether they have changed."""
        changed = masters != self._masters
        self._masters = masters
        return changed

    def topics(self) -> Iterable[str]:
        """Return the topics whose routes are kept."""
        return self._entries.keys()

    def routes(self) -> Iterable[Route]:
        """Return all known routes."""
        return [entry.route for entry in self._entries.values() if entry.route is not None]

    def brokers(self) -> dict[str, dict[int, str]]:
        """Return every broker of the routes and of ``put_masters``: name -> id -> address."""
        merged = {name: {MASTER_ID: address} for name, address in self._masters.items()}
        for route in self.routes():
            for name, addresses in route.brokers.items():
                merged.setdefault(name, {}).update(addresses)
        return merged

    def _period(self, entry: _Entry) -> float:
        if entry.route is not None and entry.route.fallback:
            return FALLBACK_ROUTE_PERIOD
        return self._refresh_period


INDEX_MASK = 0x7FFF_FFFF


PENALTIES: Final = (
    (15.0, 600.0),
    (3.0, 180.0),
    (2.0, 120.0),
    (1.0, 60.0),
    (0.55, 30.0),
)
"""(latency, penalty) in seconds: the first row whose latency is reached gives the time for which
the broker is avoided."""

ISOLATION_LATENCY: Final = 30.0
"""Latency that a failed send counts as, in seconds (cf. MQFaultStrategy.updateFaultItem,
isolation)."""


class FaultTable:
    """The time until which each broker is avoided.

    Bounded by the number of brokers in the routes.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def answered(self, broker: str, latency: float, now: float) -> None:
        """Record the seconds that ``broker`` took to answer."""
        if latency < PENALTIES[-1][0]:
            if self._until:
                self._until.pop(broker, None)
            return
        for least, penalty in PENALTIES:
            if latency >= least:
                self._until[broker] = now + penalty
                return

    def failed(self, broker: str, now: float) -> None:
        """Record that a send to ``broker`` failed without an answer."""
        self.answered(broker, ISOLATION_LATENCY, now)

    def restored(self, broker: str) -> None:
        """Make ``broker`` available again: it answered a heartbeat."""
        self._until.pop(broker, None)

    def available(self, broker: str, now: float) -> bool:
        """Return whether ``broker`` need not be avoided."""
        if not self._until:
            return True
        until = self._until.get(broker)
        return until is None or now >= until


def by_sharding_key(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """Return the queue of a key: abs(Java hash rem n), where rem has the sign of the hash."""
    return queues[abs(java_hash(key)) % len(queues)]


class RoundRobin:
    """The round-robin position of one topic."""

    __slots__ = ("_index",)

    def __init__(self, start: int) -> None:
        self._index = start & INDEX_MASK

    def next(
        self,
        queues: Sequence[MessageQueue],
        faults: FaultTable,
        now: float,
        avoid: Container[str] = (),
    ) -> MessageQueue:
        """Return the next queue of an available broker that isn't in ``avoid``.

        If there is none, the next queue of any broker that isn't in ``avoid``; if there is none
        either, the next queue. ``queues`` can't be empty.

        Args:
            avoid: names of brokers, such as the one that has just failed.
        """
        count = len(queues)
        second: MessageQueue | None = None
        start = self._index
        for step in range(count):
            queue = queues[(start + step) % count]
            if queue.broker_name in avoid:
                continue
            if faults.available(queue.broker_name, now):
                self._index = (start + step + 1) & INDEX_MASK
                return queue
            second = second or queue
        self._index = (start + 1) & INDEX_MASK
        return second or queues[start % count]
