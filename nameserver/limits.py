"""The named limits of the name server, each with its reason."""

from __future__ import annotations

from typing import Final

MAX_BROKERS: Final = 2_000
"""Registered broker addresses; the largest known clusters have some hundreds."""

MAX_ROUTE_ENTRIES: Final = 1_000_000
"""Topics times the brokers that hold them: some 300 MB, 100,000 topics on ten brokers."""

MAX_FILTER_SERVERS: Final = 64
"""Filter servers of one broker, a feature of 3.x; brokers since 4.0 send none."""

MAX_NAME_LENGTH: Final = 255
"""Characters of a cluster's, broker's or topic's name and of an address."""

MAX_QUEUES: Final = 65_536
"""Queues of a topic at one broker that are believed; clients build a list of them."""

MAX_KV_ENTRIES: Final = 100_000
"""Entries of the key-value table, all namespaces together."""

MAX_KV_TEXT_LENGTH: Final = 65_536
"""Characters of a namespace, a key or a value; an order topic's value has some 20 per broker."""

MAX_KV_BYTES: Final = 32 * 1024 * 1024
"""All texts of the key-value table together, namespaces included, as they stand in its file."""

MAX_WATCHED_TOPICS: Final = 10_000
"""Topics one connection may ask to hear about."""

MAX_WATCHES: Final = 1_000_000
"""Topics that all connections together may ask to hear about: some 200 MB."""

BROKER_TIMEOUT_MS: Final = 120_000
"""Without a registration or heartbeat, after which a broker is taken for dead."""

MAX_BROKER_TIMEOUT_MS: Final = 3_600_000
"""The longest silence that a broker may ask for in place of the above."""
