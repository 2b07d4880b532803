"""Limits of the connector, each with its reason. Sizes are in bytes, times in seconds."""

from __future__ import annotations

from typing import Final

from remoting.protocol.limits import MAX_MESSAGE_BYTES

SINK_BATCH_BYTES: Final = 1024 * 1024
"""Default size of one batch send (option ``maxBatchBytes``); larger ones are no faster."""

SINK_MIN_BATCH_BYTES: Final = 1024
"""The smallest ``maxBatchBytes``; a message larger than the option is sent on its own."""

SINK_MAX_BATCH_BYTES: Final = MAX_MESSAGE_BYTES
"""The largest ``maxBatchBytes``: what a broker accepts with its default settings."""

SINK_MAX_BATCH_ROWS: Final = 4096
"""The most messages of one batch send: its answer has 33 characters for each, 135 KB."""

SPREAD_ROWS: Final = 256
"""Rows that may go to any queue are spread over the queues in batches of at least this many."""

SLICE_BYTES: Final = 16 * 1024 * 1024
"""Bodies and properties encoded at a time: encoded messages stay in memory until sent."""


MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""The most bytes one pull may return; honoured by PocketMQ and by Apache RocketMQ 5.x."""

BATCH_MESSAGES: Final = 2000
"""Gathered messages that are decoded to an Arrow batch: the size with the highest throughput."""

BATCH_BYTES: Final = 2 * 1024 * 1024
"""Gathered bytes that are decoded to an Arrow batch, however few messages they are. As the last
answer may exceed the limit, a batch stays below 6 MiB."""

FILTERED_BATCH_BYTES: Final = 512 * 1024
"""The same with a tag filter: the number of matching messages is unknown before decoding."""

MAX_BATCH_ROWS: Final = 10_000
"""The most rows of a batch. It is reached only if a broker returns more than was requested."""

MAX_KEPT_CONNECTIONS: Final = 4
"""Unused connections kept per broker and process; a worker process runs one task at a time."""

CONNECT_TIMEOUT: Final = 3.0
"""Timeout for opening one connection."""

RETRY_FIRST: Final = 0.05
"""Upper bound of the random pause after the first failed attempt; it doubles from there."""

RETRY_MAX: Final = 1.0
"""The longest pause, so that a task continues soon after its broker has restarted."""

REFUSALS: Final = 3
"""Consecutive refusals of a pull after which the task fails, if the broker gives no reason more
specific than an error."""

LOSS_PATIENCE: Final = 2.0
"""How long to retry a pull beyond the end of the queue before the messages count as lost: a broker
that has just started, or a slave, may not have dispatched its last messages yet."""


MAX_IN_FLIGHT_REQUESTS: Final = 64
"""Unanswered requests to one broker: with single messages many are needed for full throughput."""

MAX_IN_FLIGHT_MESSAGES: Final = 12 * 1024
"""Messages in unanswered requests: a batch's answer has 33 characters for each, and a broker stops
reading from a connection with 1 MiB of unread answers."""

MAX_IN_FLIGHT_BYTES: Final = 4 * 1024 * 1024
"""Bodies of unanswered requests: four batches of the default size keep a broker busy while rows
are encoded."""

ROUTE_PERIOD: Final = 1.0
"""The shortest time between two route requests for a topic with a failing broker."""

MAX_TOPICS: Final = 1024
"""The most topics one task may write to: more suggest that the column doesn't hold topics."""

NAMES_SHOWN: Final = 3
"""Similar names shown in the error about an unknown topic."""
