"""The limits of a process: memory and file descriptors.

A server that uses its last file descriptor for a connection can't open the next file of its store.
So the servers of a process share a ``ConnectionRoom``: connections may use only the descriptors
that the store's files and a reserve do not need.
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
"""Directory and file of the limit in control groups of version 2 (a number or "max") and 1."""


def memory_bytes(groups: Path = _GROUPS, membership: Path = _MEMBERSHIP) -> int:
    """Return the machine's physical memory, or the limit of this process's control groups if less.

    Limits of parent groups apply too. In a container, the membership file may name the group by its
    path on the host, while the mounted root is this group; so the root is read as well. If the
    memory can't be determined (Windows), the result is ``sys.maxsize``.

    Args:
        groups: the mount point of control groups.
        membership: the file that names the groups of the process.
    """
    limits = [sys.maxsize]
    with suppress(AttributeError, ValueError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
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
                limits.append(int((groups / directory / path / file).read_text()))
    return min(limits)


SHORT_BACKLOG: Final = 64
"""The listen backlog if file descriptors are scarce: all of it may be accepted in one iteration of
the event loop."""


HTTP_CONNECTIONS: Final = 16
"""Connections of a metrics port at a time: Prometheus and the probes make one a second."""

RESERVED: Final = 4 * SHORT_BACKLOG + 2 * HTTP_CONNECTIONS
"""Descriptors reserved for logs, state files, outgoing connections, threads' wake-up pipes, sockets
that three servers have accepted but not yet counted, and the metrics port, each of whose requests
may read a file."""

ENOUGH: Final = 4096
"""Descriptors that suffice for a store with a thousand queues and some thousand clients."""

MIN_CONNECTIONS: Final = 16
"""Connections that are always accepted, so that an operator can connect."""

_UNLIMITED: Final = 1 << 20
"""Used when there is no limit: more than one process needs."""


def limit() -> int:
    """Return the soft limit of file descriptors, ``ulimit -n``."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> tuple[int, int]:
    """Raise the soft limit to the hard limit; return the soft limit before and after.

    If the system refuses, the limit is unchanged.
    """
    before = limit()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _UNLIMITED if hard == resource.RLIM_INFINITY else hard
    if target > before:
        # macOS reports "unlimited" but refuses more than kern.maxfilesperproc.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return before, limit()


class ConnectionRoom:
    """The number of connections that the servers of one process may have together.

    Args:
        files: returns the number of descriptors needed for other files; called each time.

    Attributes:
        taken: the number of open connections.
        waiting: the number of sockets whose TLS handshake has not ended.
    """

    __slots__ = ("_files", "taken", "waiting")

    def __init__(self, files: Callable[[], int] = lambda: 0) -> None:
        self._files = files
        self.taken = 0
        self.waiting = 0

    @property
    def allowed(self) -> int:
        """The number of connections that may be open at a time."""
        return max(limit() - self._files() - RESERVED, MIN_CONNECTIONS)

    def reason_to_refuse(self) -> str:
        """Return why a new connection is refused; empty when it is accepted."""
        if self.taken < self.allowed:
            return ""
        return (
            f"refused: {self.taken} connections are open, and the process needs its other file "
            f"descriptors for its files; raise ulimit -n, now {limit()}, before it is started"
        )
