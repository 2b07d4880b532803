"""File descriptors: how many a process may open, and how many of them connections may take.

A server that gives its last descriptor to a connection can't open the next file of its store. So
the servers of a process share a ``ConnectionRoom``: connections get what the store's files and a
reserve leave.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from remoting.limits import SHORT_BACKLOG

RESERVED: Final = 4 * SHORT_BACKLOG
"""For logs, state files, outgoing connections, threads' wake-up pipes, and sockets that three
servers have accepted but not looked at yet."""

ENOUGH: Final = 4096
"""Room for a store with a thousand queues and some thousand clients."""

MIN_CONNECTIONS: Final = 16
"""Taken in any case: an operator has to be able to look."""

_UNLIMITED: Final = 1 << 20
"""Stands for no limit: more than one process serves."""


def limit() -> int:
    """The descriptors that this process may open: the soft limit, ``ulimit -n``."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> tuple[int, int]:
    """Raise the soft limit to the hard limit; the soft limit before and after.

    Where the system refuses that, the limit stays as it is.
    """
    before = limit()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _UNLIMITED if hard == resource.RLIM_INFINITY else hard
    if wanted > before:
        # macOS says "unlimited" and refuses more than kern.maxfilesperproc.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return before, limit()


class ConnectionRoom:
    """How many connections the servers of one process may have together.

    Args:
        files: the descriptors that are kept for other files; asked anew each time.

    Attributes:
        taken: connections that are open.
    """

    __slots__ = ("_files", "taken")

    def __init__(self, files: Callable[[], int] = lambda: 0) -> None:
        self._files = files
        self.taken = 0

    @property
    def most(self) -> int:
        """Connections that there may be at a time."""
        return max(limit() - self._files() - RESERVED, MIN_CONNECTIONS)

    def reason_to_refuse(self) -> str:
        """Why one more connection can't be taken; empty: it can."""
        if self.taken < self.most:
            return ""
        return (
            f"refused: {self.taken} connections are open, and the process needs its other file "
            f"descriptors for its files; raise ulimit -n, now {limit()}, before it is started"
        )
