"""The fast path: compiled code that handles common requests in one pass over each socket read.

Common sends, pulls and offset commits are handled without creating a command, a header object or a
task for each. A request with an unusual header, topic or properties, or in an unusual state of the
broker, takes the slow path, ``broker.processors``. The slow path is the reference: both produce the
same records, queue entries, answers and errors, in the same order.

``read_pass`` is the compiled loop. ``host`` connects it to the broker and to connections.
``templates`` makes the templates of answers.
"""

from __future__ import annotations

from typing import Final, Literal

from remoting.protocol import core

MODULES: Final = ("read_pass",)

WHY: Final = core.WHY or core.why_not(__name__, MODULES)
"""Why the fast path can't be used, so that all requests take the slow path; empty if it can."""

KIND: Final[Literal["compiled", "python"]] = "python" if WHY else "compiled"
