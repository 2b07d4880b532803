"""The connector's named limits, each with its reason. Sizes in bytes, times in seconds."""

from __future__ import annotations

from typing import Final

from remoting.protocol.limits import MAX_MESSAGE_BYTES

SINK_BATCH_BYTES: Final = 1024 * 1024
"""One batch send (option ``maxBatchBytes``): more costs memory and is no faster."""

SINK_MIN_BATCH_BYTES: Final = 1024
"""The smallest ``maxBatchBytes``; a message that is larger leaves alone."""

SINK_MAX_BATCH_BYTES: Final = MAX_MESSAGE_BYTES
"""The largest ``maxBatchBytes``: what a broker takes at most with its default settings."""

SINK_MAX_BATCH_ROWS: Final = 4096
"""Messages of one batch send: its answer names each with 33 characters, 135 KB."""

SPREAD_ROWS: Final = 256
"""Rows that may go to any queue are spread over queues in batches of at least so many."""

SLICE_BYTES: Final = 16 * 1024 * 1024
"""Bodies and properties encoded at once; what is encoded waits in memory until it is sent."""


MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""The most one pull may return, at brokers that honour such a limit (ours; 5.x)."""

BATCH_MESSAGES: Final = 2000
"""Messages from which an Arrow batch is made: the size that went fastest through Spark."""

BATCH_BYTES: Final = 2 * 1024 * 1024
"""Undecoded bytes from which one is made, whatever their number. With one more answer a batch
stays below 6 MiB."""

FILTERED_BATCH_BYTES: Final = 512 * 1024
"""The same while a filter leaves open how many messages that is."""

MAX_BATCH_ROWS: Final = 10_000
"""Rows of a batch at most; more than is gathered of a broker that gives no more than was asked."""

MAX_KEPT_CONNECTIONS: Final = 4
"""Unused connections kept per broker and process; a worker process runs one task at a time."""

CONNECT_TIMEOUT: Final = 3.0
"""Opening one connection."""

RETRY_FIRST: Final = 0.05
"""The bound of the first pause after a failed attempt; it doubles from there."""

RETRY_MAX: Final = 1.0
"""The longest pause: a task goes on soon after its broker is back."""

REFUSALS: Final = 3
"""How often in a row a broker may refuse a pull for a reason it doesn't name better than "error",
before the task gives up."""

LOSS_PATIENCE: Final = 2.0
"""How long a queue may end before the range does: a broker that has just started, or a slave, may
not have dispatched its last messages yet."""


MAX_IN_FLIGHT_REQUESTS: Final = 64
"""Unanswered requests to one broker: single messages need many to fill the line."""

MAX_IN_FLIGHT_MESSAGES: Final = 12 * 1024
"""Messages in them: a batch's answer has 33 characters for each, and a broker whose answers nobody
takes stops reading at 1 MiB."""

MAX_IN_FLIGHT_BYTES: Final = 4 * 1024 * 1024
"""Their bodies: four batches of the default size keep a broker busy while rows are encoded."""

ROUTE_PERIOD: Final = 1.0
"""A failing broker makes its topic's route be asked for again, but not more often."""

MAX_TOPICS: Final = 1024
"""Topics one task writes to; more is a column that isn't a topic."""

NAMES_SHOWN: Final = 3
"""Near names in the error about an unknown topic."""
