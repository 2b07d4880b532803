"""The compiled core, and whether it runs.

Attributes:
    KIND: ``compiled``, or ``python`` where the plain Python path does the work.
    WHY: why it is ``python``; empty otherwise.
"""

from __future__ import annotations

import os

KIND, WHY = "compiled", ""

if os.environ.get("POCKETMQ_PURE") == "1":
    KIND, WHY = "python", "POCKETMQ_PURE is 1"
else:
    try:
        from remoting.protocol.core import index_entries, record  # noqa: F401 - do they load?
    except ImportError as error:
        KIND, WHY = "python", str(error)
