"""Whether a broker has a store open, found out without disturbing it.

It holds a lock on the first byte of the store's file ``lock``, Apache's as ours. The system is
asked who would be in the way of such a lock; none is taken. Whoever closes the file gives up the
locks that his own process has on it, so a process that has the store open itself does not open it
here.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path
from typing import Final

_FLOCK: Final = struct.Struct("hhqqi4x")
"""``struct flock`` of Linux: type, whence, start, length, process."""


def is_open(root: Path) -> bool:
    """Whether a process has the store's lock; False where nobody can tell."""
    path = root / "lock"
    try:
        inode = path.stat().st_ino
        if sys.platform != "linux":
            return False
        if _is_mine(inode):
            return True
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    kind, *_ = _FLOCK.unpack(answer)
    return bool(kind != fcntl.F_UNLCK)


def _is_mine(inode: int) -> bool:
    """Whether this process has a lock on a file with such a number."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    for line in lines:
        words = line.split()
        # 1: POSIX ADVISORY WRITE 4711 08:01:131085 0 0
        mine = len(words) >= 6 and words[1] == "POSIX" and words[4] == str(os.getpid())
        if mine and words[5].rpartition(":")[2] == str(inode):
            return True
    return False
