"""The usual requests, worked by compiled code in one pass over each read.

Sends, pulls and commits of offsets as clients write them are worked here without a command, a
header object or a task for each. Whatever is unusual in any way, by its header, its topic, its
properties or the state of the broker, takes the slow path, ``broker.processors``, which is the
reference: both give the same records, queue entries, answers and errors, in the same order.

``read_pass`` is the loop, ``host`` what it asks of the broker, ``templates`` the answers it fills
in, ``feed`` its place on a connection.
"""

from __future__ import annotations

from typing import Final, Literal

from remoting.protocol import core

MODULES: Final = ("read_pass",)

WHY: Final = core.WHY or core.why_not(__name__, MODULES)
"""Why the fast path can't be used, and everything takes the slow path; empty: it can."""

KIND: Final[Literal["compiled", "python"]] = "python" if WHY else "compiled"
