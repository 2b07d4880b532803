"""Entries of queues by the run, and the stretches of the log that call for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

QueueKey = tuple[str, int]
"""Topic and queue id."""


class EntryRun(NamedTuple):
    """Packed entries of a queue, of messages from number ``first`` on."""

    key: QueueKey
    first: int
    entries: bytes | bytearray


class Stretch(NamedTuple):
    """Good records that follow each other in the log.

    Attributes:
        physical_offset: of the first.
        size: bytes of all.
        records: how many they are.
        last: physical offset of the last.
        last_store_ms: its store time.
        runs: the entries that they call for; those of one queue in the log's order.
    """

    physical_offset: int
    size: int
    records: int
    last: int
    last_store_ms: int
    runs: Sequence[EntryRun]
