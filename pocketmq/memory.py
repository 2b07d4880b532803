"""How much memory a process has for itself."""

from __future__ import annotations

import re
from pathlib import Path

_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ...([ps]) ")
_MEGABYTE = 1024 * 1024


def private_bytes(pid: int) -> int:
    """The memory that only this process has, in bytes; 0 where the system doesn't say.

    That is Private_Clean and Private_Dirty of every mapping but the shared ones: the pages of a
    file that is mapped to be shared belong to the page cache, and the kernel counts them as
    private only as long as nobody else maps the same file.
    """
    kilobytes, shared = 0, False
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    for line in lines:
        mapping = _MAPPING.match(line)
        if mapping:
            shared = mapping[1] == "s"
        elif not shared and line.startswith(("Private_Clean:", "Private_Dirty:")):
            kilobytes += int(line.split()[1])
    return kilobytes * 1024


def private_megabytes(pid: int) -> float:
    """``private_bytes`` in MiB."""
    return private_bytes(pid) / _MEGABYTE
