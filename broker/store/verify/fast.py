"""The way by numpy, where that can be had; the plain way finds the same."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple


class Fast(NamedTuple):
    """The modules that need numpy: ``columns``, and ``index_columns`` as ``chains``."""

    columns: ModuleType
    chains: ModuleType


def load() -> Fast | None:
    """Import them; None without numpy."""
    try:
        from broker.store.derive import columns  # noqa: PLC0415 - 20 MB, only where it is wanted
        from broker.store.verify import index_columns  # noqa: PLC0415 - likewise
    except ImportError:
        return None
    return Fast(columns, index_columns)
