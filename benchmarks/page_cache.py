"""Fills the memory with cached files, as on a machine that has been running for a while.

The host of a virtual machine may reclaim memory that the guest leaves free. The first use of such a
page takes ten times as long as reusing a page of a cached file (0.97 instead of 0.10 us for each
KiB written, on the machine of docs/performance.md). So without this the figures of a run would
depend on the amount of free memory at its start.
"""

from __future__ import annotations

import os
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import IO, Final

MEMORY: Final = Path("/proc/meminfo")
LEFT_FREE: Final = 512 << 20
STEP: Final = 8 << 20


def settle() -> None:
    """Write dirty pages to the disk, and fill the free memory with the cached pages of a file.

    The first call has to touch all free memory, later ones what has been freed since.
    """
    os.sync()
    if MEMORY.exists():
        file, buffer = _file(), _buffer()
        for _ in range(0, _told("MemTotal"), STEP):
            if _told("MemFree") < LEFT_FREE:
                break
            # Continue where the last call ended: the kernel evicts the oldest pages first.
            if file.readinto(buffer) < STEP:  # type: ignore[attr-defined]
                file.seek(0)


@cache
def _file() -> IO[bytes]:
    """Return a sparse temporary file of the size of the memory."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it stays as long as the program
    file.truncate(_told("MemTotal"))
    return file


@cache
def _buffer() -> bytearray:
    return bytearray(STEP)


def _told(what: str) -> int:
    found = re.search(rf"^{what}: +(\d+) kB$", MEMORY.read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0
