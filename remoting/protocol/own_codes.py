"""PocketMQ's extensions of the protocol: request codes and ext fields that RocketMQ lacks.

Routes. A client sends SUBSCRIBE_ROUTE with a ``TopicList`` as its body: all topics to watch on this
connection, which replace those of an earlier request. After that, each change of such a topic's
route is notified with a oneway ROUTE_CHANGED that names the topic; the client then queries the
route as usual. A client subscribes before it queries, so that it misses no change in between. The
subscription ends with the connection.

Apache's name server of 4.x does not answer unknown codes, so a client sends SUBSCRIBE_ROUTE oneway,
and it must also work without notifications.

Consumer groups. DESCRIBE_CONSUMER_GROUP asks a broker for everything it has about one group: its
members, the conflicts between them, and its queues (``bodies.description``). Apache's broker
answers REQUEST_CODE_NOT_SUPPORTED, and the client falls back to GET_CONSUMER_CONNECTION_LIST.

GET_GROUP_PROGRESS asks for the progress of all groups, as GET_BROKER_CONSUME_STATS does, but for a
page of them, and in JSON without objects as keys, which is read much faster. With Apache's broker
the client falls back to GET_BROKER_CONSUME_STATS. LIST_CONNECTIONS asks for the open connections,
by pages too (``headers.admin.PageRequestHeader``).

A PocketMQ consumer sends in the ext field ``ON_CONFLICT`` of its heartbeat how the broker has to
treat it if it conflicts with the members of its group. ``reject``: the heartbeat is answered
SYSTEM_ERROR, the ext field ``CONFLICT`` of the answer holds the ``GroupFinding`` as JSON, and the
client does not become a member. ``warn`` and ``allow``: it becomes a member. Mixing broadcasting
with clustering is refused whatever the field's value. A heartbeat without the field is never
refused.

The answer to GET_CONSUMER_LIST_BY_GROUP also contains the members' topics if it goes to a PocketMQ
member and these differ (``bodies.stats.MemberTopics``), so that PocketMQ members can leave out
those that don't subscribe to a topic.

Replication. GET_REPLICATION_TOKEN asks a master for a token of 8 bytes, and needs an administrator
if there are accounts. A connection to the replication port that begins with it, before the first
report, may come from any address. A token is good for one connection.

Quotas. A request above one of the broker's quotas is answered SYSTEM_BUSY, and the ext field
``RETRY_AFTER`` says how long to wait. PocketMQ's clients do so; others retry as they do.

The role of the master. HAND_OVER asks a master to make one of its slaves the master. It then sends
PROMOTE to the slave, with ``TAKE``, until the answer has the ext field ``PROMOTION``; any other
answer leaves open what the slave does. See ``broker.processors.switch``.

A PocketMQ orderly consumer that a failing message has stopped reports it in the ext field
``BLOCKED`` of its heartbeat, a JSON list of ``BlockedQueue``; without the field, no queue is
blocked.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class OwnRequestCode(IntEnum):
    """PocketMQ's own request codes; all lie within ``codes.OWN_REQUEST_CODES``."""

    SUBSCRIBE_ROUTE = 20001
    """From a client to a name server, oneway."""
    ROUTE_CHANGED = 20002
    """From a name server to a client, oneway."""
    DESCRIBE_CONSUMER_GROUP = 20010
    """From any client to a broker, as the next two."""
    GET_GROUP_PROGRESS = 20011
    LIST_CONNECTIONS = 20012
    GET_REPLICATION_TOKEN = 20020
    """From a slave to its master."""
    HAND_OVER = 20021
    """From an administrator to a master."""
    PROMOTE = 20022
    """From a master or an administrator to a slave."""


PROMOTION: Final = "pmqPromotion"
"""Ext field of the answer to PROMOTE: one of the next three."""

REFUSED: Final = "refused"
"""The broker stays a slave, whatever arrives later of this attempt."""

SAVED: Final = "saved"
"""The slave will be the master, also after a crash."""

SERVING: Final = "serving"
"""The broker is the master."""

ON_CONFLICT: Final = "pmqOnConflict"
"""Ext field of a heartbeat: ``reject``, ``warn`` or ``allow``."""

CONFLICT: Final = "pmqConflict"
"""Ext field of the answer to a heartbeat that was refused."""

TAKE_LOCKS: Final = "pmqTakeLocks"
"""Ext field of LOCK_BATCH_MQ: with ``true``, locks held by other clients are taken over."""

BLOCKED: Final = "pmqBlocked"
"""Ext field of a heartbeat: JSON list of ``BlockedQueue``."""

RETRY_AFTER: Final = "pmqRetryAfterMs"
"""Ext field of a SYSTEM_BUSY: in how many milliseconds the broker expects to accept the request."""

TOPIC_DELETED: Final = "pmqTopicDeleted"
"""Ext field of RESET_CONSUMER_CLIENT_OFFSET: ``true`` if it was sent because the topic was deleted.
The queues start over at 0 if the topic is created again."""

STRATEGY: Final = "pmqStrategy"
"""Ext field of a heartbeat: the name of the consumer's allocation strategy, such as ``AVG``. The
broker needs it to compute which member owns a queue."""
