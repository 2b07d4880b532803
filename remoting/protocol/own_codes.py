"""Requests that RocketMQ doesn't have: PocketMQ's name server tells clients of changed routes.

A client sends SUBSCRIBE_ROUTE with a ``TopicList`` as its body: all topics it wants to hear about
on this connection, in place of those it named before. From then on each change of such a topic's
route brings a oneway ROUTE_CHANGED with the topic, after which the client asks for the route as
usual. Subscribing comes first and asking second, so that no change falls between. It ends with the
connection.

Apache's name server of 4.x answers no unknown code at all, so a client sends SUBSCRIBE_ROUTE
oneway, and never relies on being told.
"""

from __future__ import annotations

from enum import IntEnum

from remoting.protocol.headers.base import Header, header


class OwnRequestCode(IntEnum):
    """PocketMQ's own request codes; all lie within ``codes.OWN_REQUEST_CODES``."""

    SUBSCRIBE_ROUTE = 20001
    """Client to name server."""
    ROUTE_CHANGED = 20002
    """Name server to client, oneway."""


@header
class RouteChangedRequestHeader(Header):
    """ROUTE_CHANGED: the topic whose route is not what it was."""

    topic: str
