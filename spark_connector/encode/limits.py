"""The encoder's named limits, each with its reason. Sizes in bytes."""

from __future__ import annotations

from typing import Final

from remoting.protocol.limits import MAX_MESSAGE_BYTES

BATCH_BYTES: Final = 1024 * 1024
"""One batch send (option ``maxBatchBytes``): more costs memory and is no faster."""

MIN_BATCH_BYTES: Final = 1024
"""The smallest ``maxBatchBytes``; a message that is larger leaves alone."""

MAX_BATCH_BYTES: Final = MAX_MESSAGE_BYTES
"""The largest ``maxBatchBytes``: what a broker takes at most with its default settings."""

MAX_BATCH_ROWS: Final = 4096
"""Messages of one batch send: its answer names each with 33 characters, 135 KB."""

SPREAD_ROWS: Final = 256
"""Rows that may go to any queue are spread over queues in batches of at least so many."""

SLICE_BYTES: Final = 16 * 1024 * 1024
"""Bodies and properties encoded at once; what is encoded waits in memory until it is sent."""
