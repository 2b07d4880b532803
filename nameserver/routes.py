"""The route table: which broker has which queues. A state machine without I/O.

Each event (``register``, ``connection_closed``, ``scan``, ...) takes the time as an argument, and
returns a ``Change`` with the topics whose route changed and the connections to close. There are
three tables, which are kept consistent:

- *brokers*: broker name -> cluster, and addresses by broker id; id 0 is the master;
- *queues*: topic -> broker name -> numbers of queues and permission; only for brokers in the first
  table;
- *live*: address -> last registration, its connection, and the time of the last heartbeat.

``Watches`` lists the connections that subscribed to route changes (SUBSCRIBE_ROUTE).

As in RouteInfoManager, only a master's topics are accepted. A topic that is missing in a later
registration stays until it is deleted. A route disappears with the last address of its last broker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Generic, NamedTuple, TypeVar

from nameserver.config import (
    BROKER_TIMEOUT_MS,
    MAX_BROKERS,
    MAX_NAME_LENGTH,
    MAX_ROUTE_ENTRIES,
    MAX_WATCHED_TOPICS,
    MAX_WATCHES,
    LimitError,
)
from remoting.protocol.bodies.topic import DataVersion
from remoting.protocol.names import PERM_READ, PERM_WRITE


class Queues(NamedTuple):
    """A topic's queues at one broker."""

    read: int
    write: int
    perm: int
    sys_flag: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The content of a broker's registration."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    version: DataVersion | None = None
    topics: Mapping[str, Queues] | None = None
    """None if the registration contains no topics."""
    filter_servers: tuple[str, ...] = ()
    timeout_ms: int = BROKER_TIMEOUT_MS
    enable_acting_master: bool | None = None
    connection: Hashable = None
    """The connection on which the broker registered; its end removes the broker."""


@dataclass(frozen=True, slots=True)
class Change:
    """The effects of an event, and what the caller must do."""

    topics: frozenset[str] = frozenset()
    """Topics whose route changed; their watchers must be notified."""
    addresses_gone: tuple[str, ...] = ()
    """Addresses of brokers that were removed."""
    connections_to_close: tuple[Hashable, ...] = ()


NO_CHANGE: Final = Change()


class Registered(NamedTuple):
    """The result of a registration."""

    change: Change
    is_new: bool
    replaced_address: str | None
    """The address that had this name and id before; two brokers may have the same name by
    mistake."""
    master_address: str | None
    """For a slave: the address of its live master."""
    ha_address: str | None


class EarlierMaster(Exception):
    """A later master has the broker's name and id (controller mode)."""


@dataclass(slots=True)
class RegisteredBroker:
    """A broker name with its addresses by broker id."""

    cluster: str
    name: str
    addresses: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool | None = None


class RegisteredRoute(NamedTuple):
    """The route of one topic."""

    queues: Mapping[str, Queues]
    brokers: tuple[RegisteredBroker, ...]
    filter_servers: Mapping[str, tuple[str, ...]]


MASTER_ID: Final = 0


@dataclass(slots=True)
class _Live:
    """The entry of a live broker's address."""

    registration: Registration
    """The last registration, without its topics."""
    timeout_ms: int
    heartbeat_ms: int


class RouteInfoTable:
    """The three tables; see the module's docstring. Not thread-safe."""

    def __init__(
        self, *, max_brokers: int = MAX_BROKERS, max_entries: int = MAX_ROUTE_ENTRIES
    ) -> None:
        self._max_brokers = max_brokers
        self._max_entries = max_entries
        self._brokers: dict[str, RegisteredBroker] = {}
        self._queues: dict[str, dict[str, Queues]] = {}
        self._topics_of: dict[str, set[str]] = {}
        self._live: dict[str, _Live] = {}
        self._addresses_of: dict[Hashable, set[str]] = {}
        self._entries = 0

    def configure(self, *, max_brokers: int, max_entries: int) -> None:
        """Use changed limits from the next registration on."""
        self._max_brokers = max_brokers
        self._max_entries = max_entries

    # events

    def register(self, registration: Registration, now_ms: int) -> Registered:
        """Register a broker and, if it is a master, its topics.

        Raises:
            LimitError: there are too many brokers or topics; nothing changed.
            EarlierMaster: the name and id are those of a later master; nothing changed.
        """
        self._check_room(registration)
        self._check_epoch(registration)
        changed: set[str] = set()
        known = self._live.get(registration.address)
        if known is not None and (known.registration.broker_name, known.registration.broker_id) != (
            registration.broker_name,
            registration.broker_id,
        ):
            # The broker now has another name or id: remove its former entry.
            changed |= self._drop([registration.address])
            known = None
        broker = self._brokers.get(registration.broker_name)
        before = broker.addresses.get(registration.broker_id) if broker is not None else None
        broker, looks_different = self._place(broker, registration)
        if before is not None and before != registration.address:
            self._forget(before)
        if looks_different:
            changed |= self._topics_of[broker.name]
        is_news = (
            known is None or before is None or known.registration.version != registration.version
        )
        if is_news and registration.topics is not None and registration.broker_id == MASTER_ID:
            changed |= {
                topic
                for topic, queues in registration.topics.items()
                if self._set(topic, broker.name, queues)
            }
        self._forget(registration.address)
        self._live[registration.address] = _Live(
            replace(registration, topics=None), registration.timeout_ms, now_ms
        )
        self._addresses_of.setdefault(registration.connection, set()).add(registration.address)
        master = broker.addresses.get(MASTER_ID) if registration.broker_id != MASTER_ID else None
        return Registered(
            Change(frozenset(changed)),
            before is None,
            before if before != registration.address else None,
            master,
            None if master is None else self._live[master].registration.ha_address,
        )

    def _check_epoch(self, registration: Registration) -> None:
        """Raise ``EarlierMaster`` if a controller has elected the present holder later."""
        broker = self._brokers.get(registration.broker_name)
        holder = None if broker is None else broker.addresses.get(registration.broker_id)
        if holder is None or holder == registration.address:
            return
        present = self._live[holder].registration
        epochs = [
            (one.version and one.version.state_version) or 0 for one in (present, registration)
        ]
        if epochs[0] > epochs[1]:
            raise EarlierMaster(
                f"{present.address} is {registration.broker_name}:{registration.broker_id} since"
                f" epoch {epochs[0]}, and {registration.address} registers with {epochs[1]}"
            )

    def unregister(self, broker_name: str, broker_id: int, address: str) -> Change:
        """Remove a broker's address, if it is registered under this name and id."""
        broker = self._brokers.get(broker_name)
        if broker is None or broker.addresses.get(broker_id) != address:
            return NO_CHANGE
        return Change(self._drop([address]), (address,))

    def connection_closed(self, connection: Hashable) -> Change:
        """Remove the addresses whose last registration came on a closed connection."""
        addresses = tuple(self._addresses_of.get(connection, ()))
        return Change(self._drop(addresses), addresses) if addresses else NO_CHANGE

    def scan(self, now_ms: int) -> Change:
        """Remove brokers whose heartbeat has timed out."""
        silent = {
            address: live.registration.connection
            for address, live in self._live.items()
            if live.heartbeat_ms + live.timeout_ms < now_ms
        }
        connections = dict.fromkeys(c for c in silent.values() if c is not None)
        return Change(self._drop(silent), tuple(silent), tuple(connections))

    def heartbeat(self, address: str, now_ms: int, *, timeout_ms: int | None = None) -> bool:
        """Note a heartbeat (5.x: BROKER_HEARTBEAT); return False if the broker isn't registered."""
        live = self._live.get(address)
        if live is None:
            return False
        live.heartbeat_ms = now_ms
        live.timeout_ms = timeout_ms or live.timeout_ms
        return True

    def compare_version(
        self, address: str, version: DataVersion, now_ms: int
    ) -> tuple[bool, DataVersion | None]:
        """Return whether a broker must register again, and its registered data version.

        A query with the registered version counts as a heartbeat (cf. queryBrokerTopicConfig).
        """
        live = self._live.get(address)
        if live is None:
            return True, None
        if live.registration.version != version:
            return True, live.registration.version
        live.heartbeat_ms = now_ms
        return False, live.registration.version

    def wipe_write_permission(self, broker_name: str) -> tuple[int, Change]:
        """Remove the write permission of all topics of a broker, until it registers a change.

        Return the number of its topics, and the change.
        """
        return self._set_permission(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_permission(self, broker_name: str) -> tuple[int, Change]:
        """Set read and write permission for all topics of a broker; return as above."""
        return self._set_permission(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def set_queues(self, topic: str, queues: Mapping[str, Queues]) -> Change:
        """Set a topic's queues without a broker's registration (5.x: REGISTER_TOPIC_IN_NAMESRV).

        Brokers that aren't registered are ignored.

        Raises:
            LimitError: there are too many topics; nothing changed.
        """
        held = self._queues.get(topic, {})
        known = {name: value for name, value in queues.items() if name in self._brokers}
        self._check_entries(len(known.keys() - held.keys()))
        changed = [self._set(topic, name, value) for name, value in known.items()]
        return Change(frozenset({topic})) if any(changed) else NO_CHANGE

    def delete_topic(self, topic: str, cluster: str | None = None) -> Change:
        """Delete a topic at all brokers, or only at a cluster's."""
        names = [
            name
            for name in self._queues.get(topic, ())
            if cluster is None or self._brokers[name].cluster == cluster
        ]
        for name in names:
            self._remove(topic, name)
        return Change(frozenset({topic})) if names else NO_CHANGE

    # queries

    def route(self, topic: str) -> RegisteredRoute | None:
        """Return the route of a topic; None if no broker has it."""
        queues = self._queues.get(topic)
        if queues is None:
            return None
        brokers = tuple(self._brokers[name] for name in queues)
        servers = {
            address: self._live[address].registration.filter_servers
            for broker in brokers
            for address in broker.addresses.values()
            if self._live[address].registration.filter_servers
        }
        return RegisteredRoute(queues, brokers, servers)

    def brokers(self) -> Mapping[str, RegisteredBroker]:
        """Return all brokers by name; callers must not modify them."""
        return self._brokers

    def clusters(self) -> dict[str, list[str]]:
        """Return the broker names of each cluster."""
        clusters: dict[str, list[str]] = {}
        for broker in self._brokers.values():
            clusters.setdefault(broker.cluster, []).append(broker.name)
        return clusters

    def topics(self) -> list[str]:
        """Return all topics."""
        return list(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics of a cluster's brokers."""
        names = [name for name, broker in self._brokers.items() if broker.cluster == cluster]
        return list(
            dict.fromkeys(topic for name in names for topic in sorted(self._topics_of[name]))
        )

    def topics_where(self, condition: Callable[[int], bool]) -> list[str]:
        """Return the topics whose system flag, at their first broker, meets a condition."""
        return [
            t for t, held in self._queues.items() if condition(next(iter(held.values())).sys_flag)
        ]

    def __len__(self) -> int:
        """Return the number of pairs of a topic and a broker, to which the limit applies."""
        return self._entries

    # tables

    def _check_room(self, registration: Registration) -> None:
        if registration.address not in self._live and len(self._live) >= self._max_brokers:
            raise LimitError(
                f"broker {registration.broker_name} at {registration.address} is not registered: "
                f"there are already {self._max_brokers} brokers; stop unused ones, or raise "
                "pocketmqMaxBrokers of this name server"
            )
        if registration.topics is not None and registration.broker_id == MASTER_ID:
            held = self._topics_of.get(registration.broker_name, set())
            self._check_entries(len(registration.topics.keys() - held))

    def _check_entries(self, more: int) -> None:
        if self._entries + more > self._max_entries:
            raise LimitError(
                f"{more} more topics would make {self._entries + more} in the route table, "
                f"and the limit is {self._max_entries}; delete topics that nobody uses, or raise "
                "pocketmqMaxRouteEntries of this name server"
            )

    def _place(
        self, broker: RegisteredBroker | None, registration: Registration
    ) -> tuple[RegisteredBroker, bool]:
        """Enter the address; return the broker, and whether its data in routes changed."""
        if broker is None:
            broker = RegisteredBroker(registration.cluster, registration.broker_name)
            self._brokers[broker.name] = broker
            self._topics_of[broker.name] = set()
        former = (broker.cluster, broker.enable_acting_master, dict(broker.addresses))
        if registration.broker_id == MASTER_ID:
            broker.cluster = registration.cluster
            broker.enable_acting_master = registration.enable_acting_master
        broker.addresses[registration.broker_id] = registration.address
        return broker, former != (broker.cluster, broker.enable_acting_master, broker.addresses)

    def _set_permission(
        self, broker_name: str, permission: Callable[[int], int]
    ) -> tuple[int, Change]:
        topics = self._topics_of.get(broker_name, set())
        changed = set()
        for topic in topics:
            queues = self._queues[topic][broker_name]
            if self._set(topic, broker_name, queues._replace(perm=permission(queues.perm))):
                changed.add(topic)
        return len(topics), Change(frozenset(changed))

    def _set(self, topic: str, broker_name: str, queues: Queues) -> bool:
        held = self._queues.setdefault(topic, {})
        before = held.get(broker_name)
        if before is None:
            self._entries += 1
            self._topics_of[broker_name].add(topic)
        held[broker_name] = queues
        return before != queues

    def _remove(self, topic: str, broker_name: str) -> None:
        held = self._queues[topic]
        del held[broker_name]
        if not held:
            del self._queues[topic]
        self._topics_of[broker_name].discard(topic)
        self._entries -= 1

    def _forget(self, address: str) -> _Live | None:
        live = self._live.pop(address, None)
        if live is not None:
            held = self._addresses_of[live.registration.connection]
            held.discard(address)
            if not held:
                del self._addresses_of[live.registration.connection]
        return live

    def _drop(self, addresses: Iterable[str]) -> frozenset[str]:
        changed: set[str] = set()
        for address in addresses:
            live = self._forget(address)
            assert live is not None
            broker = self._brokers[live.registration.broker_name]
            changed |= self._topics_of[broker.name]
            del broker.addresses[live.registration.broker_id]
            if not broker.addresses:
                for topic in tuple(self._topics_of[broker.name]):
                    self._remove(topic, broker.name)
                del self._topics_of[broker.name]
                del self._brokers[broker.name]
        return frozenset(changed)


C = TypeVar("C", bound=Hashable)
"""The type of connections."""


class Watches(Generic[C]):
    """The topics whose route changes each connection subscribed to.

    Args:
        max_topics: the most topics for one connection.
        max_watches: the most topics for all connections together.
    """

    def __init__(
        self, *, max_topics: int = MAX_WATCHED_TOPICS, max_watches: int = MAX_WATCHES
    ) -> None:
        self._max_topics = max_topics
        self._max_watches = max_watches
        self._topics: dict[C, frozenset[str]] = {}
        self._connections: dict[str, set[C]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def set(self, connection: C, topics: Collection[str]) -> None:
        """Replace a connection's topics; with none its subscription ends.

        Raises:
            LimitError: there are too many topics; the subscription is unchanged.
        """
        # No topic has a longer name, which would only take memory.
        wanted = frozenset(topic for topic in topics if len(topic) <= MAX_NAME_LENGTH)
        if len(wanted) > self._max_topics:
            raise LimitError(
                f"{len(wanted)} topics are more than the {self._max_topics} that one connection "
                "may watch; watch those in use, and query the others' routes periodically"
            )
        held = self._topics.get(connection, frozenset())
        if self._count - len(held) + len(wanted) > self._max_watches:
            raise LimitError(
                f"{self._max_watches} topics are watched already, the limit of this name "
                "server; query routes periodically instead"
            )
        self.forget(connection)
        if wanted:
            self._topics[connection] = wanted
            self._count += len(wanted)
            for topic in wanted:
                self._connections.setdefault(topic, set()).add(connection)

    def forget(self, connection: C) -> None:
        """Remove a connection's subscription."""
        held = self._topics.pop(connection, frozenset())
        self._count -= len(held)
        for topic in held:
            connections = self._connections[topic]
            connections.discard(connection)
            if not connections:
                del self._connections[topic]

    def concerned(self, topics: Iterable[str]) -> Iterator[tuple[C, str]]:
        """Yield each connection that watches one of these topics, and the topic."""
        for topic in topics:
            for connection in tuple(self._connections.get(topic, ())):
                yield connection, topic
