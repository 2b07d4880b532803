"""What goes into the route table, and what comes out of it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from nameserver.limits import BROKER_TIMEOUT_MS
from remoting.protocol.bodies.topic import DataVersion


class RouteLimitError(Exception):
    """A registration would exceed a limit of the table; nothing of it was taken."""


class Queues(NamedTuple):
    """A topic's queues at one broker."""

    read: int
    write: int
    perm: int
    sys_flag: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker says about itself."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    version: DataVersion | None = None
    topics: Mapping[str, Queues] | None = None
    """None: it says nothing about topics."""
    filter_servers: tuple[str, ...] = ()
    timeout_ms: int = BROKER_TIMEOUT_MS
    enable_acting_master: bool | None = None
    connection: Hashable = None
    """What closes when the broker dies."""


@dataclass(frozen=True, slots=True)
class Change:
    """What an event did to the table, and what is to be done about it."""

    topics: frozenset[str] = frozenset()
    """Topics whose route is not what it was."""
    addresses_gone: tuple[str, ...] = ()
    connections_to_close: tuple[Hashable, ...] = ()


NO_CHANGE: Final = Change()


class Registered(NamedTuple):
    """The outcome of a registration."""

    change: Change
    is_new: bool
    replaced_address: str | None
    """Another address that had this name and id until now: two brokers may share a name."""
    master_address: str | None
    """For a slave: where its living master is."""
    ha_address: str | None


@dataclass(slots=True)
class Broker:
    """One broker name with its addresses."""

    cluster: str
    name: str
    addresses: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool | None = None


class Route(NamedTuple):
    """The answer for one topic."""

    queues: Mapping[str, Queues]
    brokers: tuple[Broker, ...]
    filter_servers: Mapping[str, tuple[str, ...]]
