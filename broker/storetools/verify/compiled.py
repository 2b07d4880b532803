"""The compiled way, where that runs; the Python path finds the same."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

from remoting.protocol import core


class Fast(NamedTuple):
    """The compiled modules for records, and for entries of the index."""

    records: ModuleType
    chains: ModuleType


def load() -> Fast | None:
    """Import them; None where the compiled core does not run."""
    if core.KIND != "compiled":
        return None
    from remoting.protocol.core import index_entries, record  # noqa: PLC0415 - only where they run

    return Fast(record, index_entries)
