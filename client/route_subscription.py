"""Hearing of route changes from a name server of ours, as far as it tells (own_codes).

The topics in use are named, oneway, on the connection that serves route requests; again when they
change and when the connection is a new one. A name server that doesn't know the request ignores
it, and nothing changes: routes are refreshed by period in any case.
"""

from __future__ import annotations

from client.name_servers import NameServers
from client.remote import Remote
from client.route_keeper import RouteKeeper
from client.routes import RouteTable
from remoting.connection import Connection
from remoting.errors import RemotingError
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.stats import TopicList
from remoting.protocol.command import Command
from remoting.protocol.errors import HeaderError
from remoting.protocol.own_codes import OwnRequestCode, RouteChangedRequestHeader


class RouteSubscription:
    """The subscription of one instance."""

    def __init__(self, remote: Remote, name_servers: NameServers, table: RouteTable) -> None:
        self._remote = remote
        self._name_servers = name_servers
        self._table = table
        self._told: tuple[Connection, frozenset[str]] | None = None

    def name_topics(self, topic: str) -> None:
        """Name the topics in use, with ``topic``, unless the name server has them already."""
        connection = self._remote.pool.connected(self._name_servers.current)
        topics = frozenset((topic, *self._table.topics()))
        if connection is None or self._told == (connection, topics):
            return
        request = self._remote.request(
            OwnRequestCode.SUBSCRIBE_ROUTE,
            body=encode(TopicList(topic_list=sorted(topics))),
            oneway=True,
        )
        try:
            connection.send_oneway(request)
        except RemotingError:
            return
        self._told = (connection, topics)

    def handle(self, command: Command, routes: RouteKeeper) -> Command | None:
        """What a name server or broker asks of us: only route changes are anything to us now."""
        if command.code == OwnRequestCode.ROUTE_CHANGED:
            try:
                routes.changed(command.read(RouteChangedRequestHeader).topic)
            except HeaderError:
                return None
            return None
        if command.is_oneway:
            return None
        return command.reply(3, f" request type {command.code} not supported")
