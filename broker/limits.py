"""The broker's limits, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_TOPICS: Final = 100_000
"""Topics of a broker: all of them are in one registration, one file, and one table. Clients have
the lower limit ``pocketmqMaxTopics``."""

MAX_QUEUES_PER_TOPIC: Final = 65_536
"""Queues of one topic. A queue takes a directory and a file once it is written to."""

MAX_TOPIC_ATTRIBUTES_LENGTH: Final = 4_096
"""Characters of a topic's attributes; 5.x defines a handful of short ones."""

MAX_GROUPS: Final = 100_000
"""Subscription groups of a broker. Clients have the lower limit ``pocketmqMaxGroups``."""

MAX_FORBIDDEN: Final = 10_000
"""Pairs of a group and a topic that the group may not read. Administrators set each by hand."""

MAX_GROUP_SUBSCRIPTIONS: Final = 1_024
"""Topics that one consumer group subscribes to; a real application has a handful."""

MAX_HEARTBEAT_BYTES: Final = 512 * 1024
"""Size of one heartbeat, whose content is kept while the client is connected. A thousand
subscriptions take 300 KiB."""

MAX_SUBSCRIPTION_LENGTH: Final = 32 * 1024
"""Characters of the expression in a pull, which is kept while the pull is parked."""

MAX_SUSPEND_MS: Final = 300_000
"""How long a pull may be parked, whatever its client asks for: usually 15 to 20 s."""

SHORT_SUBSCRIPTION_LENGTH: Final = 256
"""Characters up to which the expression of a parked pull doesn't count against ``parked_bytes``.
Nearly all expressions are shorter."""

BYTES_PER_CHARACTER: Final = 32
"""Memory of an expression with its tags and their codes, per character: a tag of one letter, four
characters with its separator, becomes about 120 bytes of objects."""

MAX_FILTER_DEPTH: Final = 256
"""Levels of parentheses, NOTs and signs in an SQL92 expression, and of nested calls to evaluate it,
each of which takes one of Python's thousand frames."""

MAX_FILTER_OPERANDS: Final = 2_048
"""Literals and properties in an SQL92 expression, without the texts of IN. Compiling so many holds
the event loop for 15 ms, as long as an IN with 32 KiB of texts does."""

FILTER_BYTES_PER_CHARACTER: Final = 64
"""Memory of a compiled SQL92 expression: a condition of seven characters becomes 400 bytes of
functions."""

FILTER_STEPS: Final = 32_000
"""Steps to evaluate an SQL92 expression in one pull, of about 100 ns each: a pull with thousands of
conditions looks into fewer messages, so that it blocks the event loop for 3 ms at most."""

MAX_REMARK_LENGTH: Final = 4_096
"""Characters of an error that quotes an expression; the rest is cut off."""

MAX_CLIENT_ID_LENGTH: Final = 512
"""Characters of a client id. With address, process id, unit name and time stamp it stays below
100."""

MAX_BROKER_NAME_LENGTH: Final = 255
"""Characters of a broker's name within a queue lock."""

DEFAULT_PULL_MESSAGES: Final = 32
"""Messages of one pull in Apache's brokers (``maxTransferCountOnMessageInMemory``)."""

DEFAULT_PULL_BYTES: Final = 256 * 1024
"""Bytes of one pull in Apache's brokers (``maxTransferBytesOnMessageInMemory``)."""

MAX_DELAY_LEVELS: Final = 64
"""Levels in ``messageDelayLevel``; the broker schedules one queue for each."""

MAX_DELAY_MS: Final = 365 * 24 * 3600 * 1000
"""The longest delay of a level."""

MAX_TIMER_SECONDS: Final = 40 * 24 * 3600
"""The longest time that ``timerMaxDelaySec`` may allow: RocketMQ Cloud's."""

MAX_ROLL_WINDOW_SLOTS: Final = 7 * 24 * 3600 - 60
"""RocketMQ's: half of the wheel, less a minute."""

MAX_BLOCKED_QUEUES: Final = 64
"""Blocked queues in a client's heartbeat; if there are more, they have a common cause."""

MAX_FINDING_TEXT_LENGTH: Final = 500
"""Characters that are kept of an error text from a client."""

MAX_STRATEGY_LENGTH: Final = 64
"""Characters of the name of a rebalance strategy."""

MAX_PROFILES_COMPARED: Final = 64
"""Different profiles of one group that are compared with each other; more reports would not help
the reader."""

MAX_QUEUES_WATCHED: Final = 2_048
"""Queues of one group that are checked, at about 2 us each. A group may have tens of thousands of
idle queues, and checking them must not block the event loop."""

MAX_QUEUES_DESCRIBED: Final = 20_000
"""Queues in one description of a group, about 4 MiB, or in the progress of many groups."""

MAX_CONNECTIONS_LISTED: Final = 1_000
"""Connections in one answer, which takes about 5 ms."""

MAX_PULL_MARKS: Final = 65_536
"""Queues of one group for which the last member that pulled is remembered."""

MAX_TOPICS_SPREAD: Final = 1_000
"""Topics for which the queues at all brokers are cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Limits of one broker's tables and queues; tests pass smaller ones."""

    new_topics_per_second: int = 100
    """Topics per second that one connection creates by sending, with bursts of up to one second's
    worth. Each costs a directory, a file and an entry in ``topics.json``."""
    new_topic_wait_seconds: float = 2.0
    """How long a send waits for its new topic. Clients wait 3 s for the answer, and within that
    time the topic must also be written to disk."""
    waiting_new_topics: int = 512
    """Sends of one connection that wait for new topics: half of the requests it may have in
    progress, so that its other requests are still read."""
    waiting_new_topic_bytes: int = 8 * 1024 * 1024
    """The same limit in bytes: a quarter of what a connection may have in progress."""
    table_copy_seconds: float = 10.0
    """How often a slave copies its master's tables (cf. handleSlaveSynchronize)."""
    catch_up_seconds: float = 5.0
    """How long a switch waits for the slave to have everything; no message is taken meanwhile."""
    group_members: int = 4_096
    """Members of one consumer group, since every change notifies all of them."""
    memberships: int = 100_000
    """Memberships of all connections in producer groups, and the same number in consumer groups."""
    parked_bytes: int = 256 * 1024 * 1024
    """Memory of the long expressions of all parked pulls; pulls above it are answered at once."""
    woken_at_once: int = 32
    """Parked pulls answered in one iteration of the event loop, which takes about 1 ms. Thousands
    may wait for the same message."""
    subscription_bytes: int = 256 * 1024 * 1024
    """Memory of the subscriptions of all consumer groups and their members: enough for 10,000
    groups with 25 KiB each."""
    filter_bytes: int = 64 * 1024 * 1024
    """Memory of the SQL92 filters of all consumer groups: enough for 10,000 groups with 80
    characters each."""
    consumer_offsets: int = 1_000_000
    """Offsets of all groups and queues; the whole table is written every 5 s if it changed."""
    traffic_items: int = 20_000
    """Topics, and pairs of a topic and a group, whose traffic is counted one by one: 1.5 KB each.
    The traffic of others is counted together."""
    lag_pairs: int = 2_000
    """Pairs of a group and a topic whose lag is sampled for the metrics, and items of a metric's
    label. Prometheus keeps a series for each."""
    queue_locks: int = 200_000
    """Queue locks of all groups; a lock that isn't refreshed expires after 60 s."""
    delivered_at_once: int = 64
    """Delayed messages of a level delivered in one iteration of the event loop: 1 to 2 ms."""
    delivered_bytes: int = 1024 * 1024
    """The same limit in bytes; a single message may be larger."""
    half_window: int = 4_000_000
    """Half messages from the oldest open one on, of 9 bytes each: minutes of the fastest producers.
    Beyond it no half message's own immunity time keeps it from being checked."""
    moved_half_messages: int = 100_000
    """Half messages that a check stored again and that can be ended at their former offset."""
    timers_read_at_once: int = 128
    """Timer messages added to the wheel in one iteration of the event loop: about 2 ms."""
    timers_loaded_at_once: int = 1024
    """Units of the timer log read in one iteration of the event loop: about 2 ms."""
    timers_per_second: int = 1_000_000
    """Timer messages that are due in the same second. They are in memory shortly before, with
    about 50 bytes each. RocketMQ's ``timerCongestNumEachSlot`` has no limit by default."""
    findings: int = 10_000
    """Findings kept for all groups, about 1 KiB each."""
    reads_per_request: int = 256
    """Asynchronous disk reads for one request; a search by time needs two for each step of its
    binary search. Further reads of the request block the event loop."""
    query_bytes: int = 8 * 1024 * 1024
    """Size of the messages in the answer to a query: half of a frame's limit. A single message may
    be larger."""


LIMITS: Final = BrokerLimits()
