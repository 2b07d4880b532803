"""What PocketMQ's peers say to each other that RocketMQ's don't know.

Routes. A client sends SUBSCRIBE_ROUTE with a ``TopicList`` as its body: all topics it wants to hear
about on this connection, in place of those it named before. From then on each change of such a
topic's route brings a oneway ROUTE_CHANGED with the topic, after which the client asks for the
route as usual. Subscribing comes first and asking second, so that no change falls between. It ends
with the connection.

Apache's name server of 4.x answers no unknown code at all, so a client sends SUBSCRIBE_ROUTE
oneway, and never relies on being told.

Consumer groups. DESCRIBE_CONSUMER_GROUP asks a broker for all it knows about one group: its
members, how they contradict each other, and its queues (``bodies.description``). Apache's broker
answers REQUEST_CODE_NOT_SUPPORTED, and the asker makes do with GET_CONSUMER_CONNECTION_LIST.

A consumer of ours says in the ext field ``ON_CONFLICT`` of its heartbeat what happens to it
when it contradicts the members of its group that are there. ``reject``: the heartbeat is answered
SYSTEM_ERROR, the ext field ``CONFLICT`` of the answer holds the ``GroupFinding`` as JSON, and the
client has not become a member. ``warn`` and ``allow``: it becomes one. Broadcasting mixed with
clustering is refused whatever the field says. A heartbeat without the field is never refused.

An orderly consumer of ours that is stopped by a failing message tells it in the ext field
``BLOCKED`` of its heartbeat, a JSON list of ``BlockedQueue``; a heartbeat without the field says
that nothing is blocked.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class OwnRequestCode(IntEnum):
    """PocketMQ's own request codes; all lie within ``codes.OWN_REQUEST_CODES``."""

    SUBSCRIBE_ROUTE = 20001
    """Client to name server."""
    ROUTE_CHANGED = 20002
    """Name server to client, oneway."""
    DESCRIBE_CONSUMER_GROUP = 20010
    """Anybody to broker."""


ON_CONFLICT: Final = "pmqOnConflict"
"""Ext field of a heartbeat: ``reject``, ``warn`` or ``allow``."""

CONFLICT: Final = "pmqConflict"
"""Ext field of the answer to a heartbeat that was refused."""

TAKE_LOCKS: Final = "pmqTakeLocks"
"""Ext field of LOCK_BATCH_MQ: ``true``: take the locks from whoever holds them."""

BLOCKED: Final = "pmqBlocked"
"""Ext field of a heartbeat."""

STRATEGY: Final = "pmqStrategy"
"""Ext field of a heartbeat: the name of the strategy, ``AVG`` and so on, by which it shares out
queues. Only by it the broker can name the member whom a queue belongs to."""
