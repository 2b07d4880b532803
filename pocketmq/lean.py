"""Importing structlog without what it would bring along.

structlog imports rich as soon as rich is installed, to paint tracebacks: some 20 ms and 4 MB that a
server has no use for.
"""

from __future__ import annotations

import sys


def import_structlog() -> None:
    """Import structlog, hiding rich from it; rich itself can be imported afterwards as ever."""
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    # None makes ``import rich`` raise ImportError, which structlog is prepared for.
    sys.modules["rich"] = None  # type: ignore[assignment]  # documented, but not in the stubs
    try:
        import structlog  # noqa: F401, PLC0415 - imported for its effect, at this moment
    finally:
        del sys.modules["rich"]
