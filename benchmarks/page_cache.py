"""A machine as a broker finds it that has run for a while: its memory is full of cached files.

A virtual machine's host may take back the memory that its guest leaves free. The first use of such
a page costs ten times what a page costs that a cached file gave up (on the machine of
docs/performance.md 0.97 instead of 0.10 us for each KiB written), so a run's figures would tell how
much memory was free when it began.
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
    """Write back what waits for the disk, and fill the free memory with the pages of a file.

    The first call takes as long as it takes to touch all of the free memory, each later one as long
    as what has been freed since.
    """
    os.sync()
    if MEMORY.exists():
        file, buffer = _file(), _buffer()
        for _ in range(0, _told("MemTotal"), STEP):
            if _told("MemFree") < LEFT_FREE:
                break
            # From where the last call ended: the kernel gave up the oldest pages.
            if file.readinto(buffer) < STEP:  # type: ignore[attr-defined]
                file.seek(0)


@cache
def _file() -> IO[bytes]:
    """A file as large as the memory, of holes, without a name."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it stays as long as the program
    file.truncate(_told("MemTotal"))
    return file


@cache
def _buffer() -> bytearray:
    return bytearray(STEP)


def _told(what: str) -> int:
    found = re.search(rf"^{what}: +(\d+) kB$", MEMORY.read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0
