"""Producer groups and their members (cf. ProducerManager).

A membership begins with a heartbeat. It ends when the producer unregisters, when its connection is
closed, or after 120 s without a heartbeat. No I/O: connections are opaque keys, and callers pass in
the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.errors import LimitReached
from broker.limits import LIMITS

if TYPE_CHECKING:
    from remoting.connection import Connection

CLIENT_EXPIRY_MS: Final = 120_000
"""A member expires after this long without a heartbeat (cf. CHANNEL_EXPIRED_TIMEOUT)."""


@dataclass(slots=True)
class ClientChannel:
    """A client's connection in a group (cf. ClientChannelInfo).

    Args:
        connection: the connection, used as an opaque key.
        client_id: the id that the client sends.
        address: the peer, ``ip:port``.
        language: the name of the client's language; None if unknown.
        version: the ordinal of the client's RocketMQ version.
        last_update_ms: the monotonic time at which its last heartbeat arrived.
        account: the account that signed this heartbeat; None if it needed no signature.
    """

    connection: Connection
    client_id: str
    address: str
    language: str | None
    version: int
    last_update_ms: int
    account: str | None = None


class ProducerTable:
    """All producer groups: group -> connection -> channel."""

    __slots__ = ("_clients", "_count", "_joined", "_limit", "groups")

    def __init__(self, *, limit: int = LIMITS.memberships) -> None:
        self.groups: dict[str, dict[Connection, ClientChannel]] = {}
        self._joined: dict[Connection, set[str]] = {}
        self._clients: dict[str, dict[Connection, int]] = {}
        self._count = 0
        self._limit = limit

    def __len__(self) -> int:
        return self._count

    def register(self, group: str, channel: ClientChannel) -> None:
        """Begin or refresh a membership, on a producer's heartbeat.

        Raises:
            LimitReached: the table is full and the connection isn't a member.
        """
        members = self.groups.get(group, {})
        if channel.connection not in members:
            if self._count >= self._limit:
                raise LimitReached(
                    f"the broker keeps at most {self._limit} memberships in producer groups; "
                    f"{channel.client_id} can't join {group}"
                )
            self._count += 1
            self._joined.setdefault(channel.connection, set()).add(group)
            connections = self._clients.setdefault(channel.client_id, {})
            connections[channel.connection] = connections.get(channel.connection, 0) + 1
        elif members[channel.connection].client_id != channel.client_id:
            self.unregister(group, channel.connection)
            self.register(group, channel)
            return
        self.groups.setdefault(group, members)[channel.connection] = channel

    def find(self, client_id: str) -> Connection | None:
        """Return the newest connection of a client that produces; None if there is none.

        If accounts share the client's id, it belongs to the account that connected first: another
        can't have the client's replies sent to itself.
        """
        connections = self._clients.get(client_id, {})
        owner = next(map(self._account_of, connections), None)
        return next((at for at in reversed(connections) if self._account_of(at) == owner), None)

    def _account_of(self, connection: Connection) -> str | None:
        group = next(iter(self._joined[connection]))
        return self.groups[group][connection].account

    def joined(self, connection: Connection) -> list[str]:
        """Return the names of the groups that a connection is in, sorted."""
        return sorted(self._joined.get(connection, ()))

    def unregister(self, group: str, connection: Connection) -> bool:
        """End a membership; return False if there was none."""
        members = self.groups.get(group)
        channel = None if members is None else members.pop(connection, None)
        if members is None or channel is None:
            return False
        self._count -= 1
        connections = self._clients[channel.client_id]
        connections[connection] -= 1
        if not connections[connection]:
            del connections[connection]
        if not connections:
            del self._clients[channel.client_id]
        joined = self._joined[connection]
        joined.discard(group)
        if not joined:
            del self._joined[connection]
        if not members:
            del self.groups[group]
        return True

    def closed(self, connection: Connection) -> None:
        """End the memberships of a closed connection."""
        for group in self.joined(connection):
            self.unregister(group, connection)

    def scan(self, now_ms: int) -> list[Connection]:
        """End the memberships that have expired; return the connections to close."""
        expired = [
            (group, connection)
            for group, members in self.groups.items()
            for connection, channel in members.items()
            if now_ms - channel.last_update_ms > CLIENT_EXPIRY_MS
        ]
        for group, connection in expired:
            self.unregister(group, connection)
        return [connection for _, connection in expired]
