"""What a process may use: memory and file descriptors.

A server that gives its last descriptor to a connection can't open the next file of its store. So
the servers of a process share a ``ConnectionRoom``: connections get what the store's files and a
reserve leave.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

_GROUPS: Final = Path("/sys/fs/cgroup")
_MEMBERSHIP: Final = Path("/proc/self/cgroup")
_LIMITS: Final = (("", "memory.max"), ("memory", "memory.limit_in_bytes"))
"""Directory and file of control groups of version 2, where it may say "max", and of version 1."""


def memory_bytes(groups: Path = _GROUPS, membership: Path = _MEMBERSHIP) -> int:
    """Physical memory of the machine, or less where a control group limits this process.

    The limits of the groups above its own hold as well. In a container the process's own group may
    be known by its path on the host, and be the topmost one that is seen. A system that tells
    nothing (Windows) counts as having no limit.

    Args:
        groups: where control groups are mounted.
        membership: the file that names the process's own.
    """
    found = [sys.maxsize]
    with suppress(AttributeError, ValueError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    paths = {Path()}
    with suppress(OSError, ValueError):
        for line in membership.read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if {"", "memory"}.intersection(controllers.split(",")):
                own = Path(name.lstrip("/"))
                paths |= {own, *own.parents}
    for path in paths:
        for directory, file in _LIMITS:
            with suppress(OSError, ValueError):
                found.append(int((groups / directory / path / file).read_text()))
    return min(found)


SHORT_BACKLOG: Final = 64
"""The same where descriptors are scarce: all of them may be accepted in one turn of the loop."""


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
    def allowed(self) -> int:
        """Connections that there may be at a time."""
        return max(limit() - self._files() - RESERVED, MIN_CONNECTIONS)

    def reason_to_refuse(self) -> str:
        """Why one more connection can't be taken; empty: it can."""
        if self.taken < self.allowed:
            return ""
        return (
            f"refused: {self.taken} connections are open, and the process needs its other file "
            f"descriptors for its files; raise ulimit -n, now {limit()}, before it is started"
        )
