"""The named limits of the index, each with its reason. Sizes in bytes unless the name says so."""

from __future__ import annotations

from typing import Final

SLICE_KEYS: Final = 4096
"""Keys that are indexed at once where the compiled core does it."""

MIN_SLICE_BYTES: Final = 512 * 1024
"""The least of the log that is read for so many keys, and what is read first."""

MAX_SLICE_BYTES: Final = 4 * 1024 * 1024
"""The most, however large messages are."""

PLAIN_SLICE_BYTES: Final = 64 * 1024
"""What is read at once by the Python path: what takes longer keeps the loop from its thread."""

PAUSE_SECONDS: Final = 0.001
"""Between two slices, so that the thread never competes with the loop for long."""

SLICES_IN_A_ROW: Final = 8
"""While nothing is stored: some 5 ms. To begin anew after a pause takes a fifth more, for all that
was in the processor's caches has gone."""

LOOK_SECONDS: Final = 1.0
"""How often the thread looks whether there is something to do."""

BUSY_BYTES: Final = 8 * 1024 * 1024
"""A store that took more than this since the last look is busy: its index waits."""

MAX_BACKLOG_SLICES: Final = 1024
"""What may wait for its index while the store is busy, if memory has so much of the log
(``HOT_LOG_RATIO``): some four million keys. A query that has to index them first takes a second."""

HOT_LOG_RATIO: Final = 1 / 8
"""Part of the machine's memory: so much as was appended last is taken to be in memory; what lies
before it is fetched first, which takes as long as indexing it."""

RETRY_SECONDS: Final = 10.0
"""How long the thread rests when the disk has refused what it wrote."""

FINISH_SECONDS: Final = 10.0
"""What completing the index at a clean stop may take; the next start goes on with the rest."""

QUERY_WAIT_SECONDS: Final = 2.0
"""How long a query waits for the index of what came before it."""

MAX_QUERIES: Final = 64
"""Queries that wait for their turn; each is a client that looks for a message."""

MAX_CANDIDATES: Final = 1024
"""Entries that one query looks at: those of other keys with the same hash come out only later."""

MAX_KEYS_OF_QUERY: Final = 64
"""Messages that one query finds, whatever it asks for (cf. maxMsgsNumBatch)."""

PAGE_BYTES: Final = 4096
"""Slots are given room in pages, as they come to be used."""
