"""The broker's named limits, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_TOPICS: Final = 100_000
"""Topics of a broker, whoever makes them: all are in one registration, one file, one table. What
clients can make ends earlier, by ``pocketmqMaxTopics``."""

MAX_QUEUES_PER_TOPIC: Final = 65_536
"""Queues an admin may give a topic; a queue costs a folder and a file once it is written to."""

MAX_TOPIC_ATTRIBUTES_LENGTH: Final = 4_096
"""Characters of a topic's attributes; 5.x defines a handful of short ones."""

MAX_GROUPS: Final = 100_000
"""The same for subscription groups; those of clients by ``pocketmqMaxGroups``."""

MAX_GROUP_SUBSCRIPTIONS: Final = 1_024
"""Topics one consumer group subscribes to; a real application names a handful."""

MAX_HEARTBEAT_BYTES: Final = 512 * 1024
"""One heartbeat: its content is kept as long as the client lives. A thousand subscriptions take
300 KiB."""

MAX_SUBSCRIPTION_LENGTH: Final = 32 * 1024
"""Characters of the expression that a pull brings; it is kept while the pull is parked."""

SHORT_SUBSCRIPTION_LENGTH: Final = 256
"""Characters of an expression that a parked pull may keep beside its count; nearly all are
shorter."""

BYTES_PER_CHARACTER: Final = 32
"""What an expression takes with its tags and their codes: a tag of one letter, four characters
with its separator, becomes some 120 bytes of objects."""

MAX_CLIENT_ID_LENGTH: Final = 512
"""Characters of a client id: address, process id, unit and a nanosecond stamp stay under 100."""

MAX_BROKER_NAME_LENGTH: Final = 255
"""Characters of a broker's name within a queue lock."""

DEFAULT_PULL_MESSAGES: Final = 32
"""What Apache's brokers give at most (``maxTransferCountOnMessageInMemory``)."""

DEFAULT_PULL_BYTES: Final = 256 * 1024
"""What they give at most in bytes (``maxTransferBytesOnMessageInMemory``)."""

MAX_DELAY_LEVELS: Final = 64
"""Levels in ``messageDelayLevel``: each is a queue that is watched."""

MAX_DELAY_MS: Final = 365 * 24 * 3600 * 1000
"""The longest delay of a level."""

MAX_BLOCKED_QUEUES: Final = 64
"""Queues that a client's heartbeat can say it is stopped in; more are one common cause."""

MAX_FINDING_TEXT_LENGTH: Final = 500
"""Characters kept of what clients say of a failure."""

MAX_STRATEGY_LENGTH: Final = 64
"""Characters of the name of a rebalance strategy."""

MAX_PROFILES_COMPARED: Final = 64
"""Different profiles in one group that are compared with each other; nobody reads more."""

MAX_QUEUES_WATCHED: Final = 2_048
"""Queues of one group that are checked, 2 us each; some groups have tens of thousands of idle
ones, and none is worth a stall."""

MAX_QUEUES_DESCRIBED: Final = 20_000
"""Queues in one description of a group: 4 MiB."""

MAX_PULL_MARKS: Final = 65_536
"""Queues of one group whose last puller is remembered."""

MAX_TOPICS_SPREAD: Final = 1_000
"""Topics whose queues at other brokers are remembered, for groups with more members than queues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """The limits of one broker's tables and queues; tests hand in smaller ones."""

    new_topics_per_second: int = 100
    """Topics that one connection makes by sending; a second's worth may come at once. Each costs a
    folder, a file and its part of ``topics.json``."""
    new_topic_wait_seconds: float = 2.0
    """How long a send waits for its new topic: clients wait 3 s for the answer, and the topic has
    to get to the disk after that."""
    waiting_new_topics: int = 512
    """Sends of one connection that wait for new topics: half of what it may have in progress, so
    that its other requests are still read."""
    waiting_new_topic_bytes: int = 8 * 1024 * 1024
    """The same in bytes: a quarter."""
    group_members: int = 4_096
    """Connections of one consumer group: all of them are notified of every change."""
    memberships: int = 100_000
    """Memberships of all connections in producer and consumer groups together."""
    parked_bytes: int = 256 * 1024 * 1024
    """What longer expressions of all parked pulls take; pulls beyond it are answered at once."""
    woken_at_once: int = 32
    """Parked pulls answered in one turn of the loop, 1 ms: thousands may wait for one message."""
    subscription_bytes: int = 256 * 1024 * 1024
    """What the subscriptions of all consumer groups and their members take: 10,000 groups with
    25 KiB each."""
    consumer_offsets: int = 1_000_000
    """Offsets kept over all groups and queues: the table is written out as a whole every 5 s."""
    queue_locks: int = 200_000
    """Queue locks held at a time over all groups; an unrefreshed one ends after 60 s."""
    delivered_at_once: int = 64
    """Delayed messages of a level delivered in one turn of the loop: a millisecond or two."""
    delivered_bytes: int = 1024 * 1024
    """The same limit in bytes; one message may have more."""
    findings: int = 10_000
    """Things found wrong with groups that are kept at a time, over all groups; some 1 KiB each."""
    reads_per_request: int = 256
    """Reads of the disk for one request: a search by time takes two for each halving. After that
    the request blocks."""
    query_bytes: int = 8 * 1024 * 1024
    """Messages that answer one query, unless its only one is larger: half of a frame's limit."""


LIMITS: Final = BrokerLimits()
