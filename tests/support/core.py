"""Whether a compiled core can be tested, whichever core the tests themselves use."""

from __future__ import annotations

from typing import Final

from broker import fast_path

LACKING: Final = "" if fast_path.WHY == "POCKETMQ_PURE is set" else fast_path.WHY
"""Why there is no compiled core to test; empty if there is one."""
