"""Metrics of what a broker made of its store: how it opened it, and how far the index is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from broker.app import Broker


def opening_and_index(broker: Broker) -> Iterator[Metric]:
    """What the last start found, and what the index lacks."""
    found, index = broker.store.recovery, broker.store.index
    for name, text, value in (
        ("recovery_seconds", "How long opening the store took at the start.", found.seconds),
        ("recovery_records", "Records looked at for that.", found.scanned_records),
        (
            "recovery_stepped_over",
            "Damaged places in the middle of the log that were found by that.",
            found.damaged_records,
        ),
        (
            "recovery_cut_bytes",
            "Bytes behind the last good record that were given up.",
            found.cut_bytes,
        ),
        (
            "offsets_lost",
            "1 if there were messages at the start, but no file of consumer offsets.",
            int(broker.state.offsets_lost),
        ),
        ("index_backlog_bytes", "Log that is not indexed yet.", index.backlog_bytes),
        (
            "index_broken",
            "1 while messages can't be indexed, so that they are not found by their keys.",
            int(index.trouble is not None),
        ),
    ):
        yield GaugeMetricFamily(f"pocketmq_{name}", text, value=value)
