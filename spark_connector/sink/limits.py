"""The sink's named limits, each with its reason. Sizes in bytes, times in seconds."""

from __future__ import annotations

from typing import Final

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
