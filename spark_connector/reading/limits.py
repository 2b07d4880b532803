"""The named limits of reading, each with its reason. Sizes in bytes, times in seconds."""

from __future__ import annotations

from typing import Final

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""What one pull may bring, at brokers that let themselves be told (ours; 5.x)."""

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
