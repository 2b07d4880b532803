"""How much memory a process may use."""

from __future__ import annotations

import os
import sys
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
