"""How fast ``pocketmq store verify`` goes through a store, beside how fast the disk alone is."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.cold import drop_from_page_cache
from benchmarks.tools import BenchmarkError
from broker.store import page_cache

SAMPLE_BYTES: Final = 1 << 20
READ_BYTES: Final = 1 << 20
MOST_READ: Final = 4 << 30
"""Of the log, to see how fast the disk alone is."""


def log_files(root: Path) -> list[Path]:
    """The log's files, oldest first."""
    return sorted((root / "commitlog").iterdir())


def log_bytes(root: Path) -> int:
    """Of records in the log, without the rest of its last file."""
    told = _pocketmq("store", "info", str(root), "--json")
    facts = json.loads(told.stdout)
    return int(facts["end_offset"]) - int(facts["first_offset"])


def _pocketmq(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "pocketmq", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def share_in_memory(root: Path) -> float:
    """How much of the log the page cache has: a page of each MiB is asked for."""
    asked = found = 0
    for path in log_files(root):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            for position in range(0, path.stat().st_size, SAMPLE_BYTES):
                asked += 1
                found += page_cache.is_cached(descriptor, position, 4096) is True
        finally:
            os.close(descriptor)
    return round(found / asked, 3)


def disk_mb_per_s(root: Path) -> float:
    """The disk alone: the log read from its beginning, nothing of it in memory."""
    drop_from_page_cache(root)
    done, begun = 0, time.monotonic()
    for path in log_files(root):
        with path.open("rb", buffering=0) as file:
            while done < MOST_READ and (data := file.read(READ_BYTES)):
                done += len(data)
    return round(done / 1e6 / (time.monotonic() - begun), 1)


def verify(root: Path, size: int) -> dict[str, Any] | None:
    """``pocketmq store verify`` with nothing in memory, and again; None when there is no such."""
    if _pocketmq("store", "verify", "--help").returncode:
        return None
    disk = disk_mb_per_s(root)
    drop_from_page_cache(root)
    return {"disk_mb_per_s": disk, "cold": _verify(root, size), "warm": _verify(root, size)}


def _verify(root: Path, size: int) -> dict[str, float]:
    share = share_in_memory(root)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.monotonic()
    done = _pocketmq("store", "verify", str(root), "--json")
    seconds = time.monotonic() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        told = (done.stderr or done.stdout).strip()[-500:]
        raise BenchmarkError(f"store verify ended with {done.returncode}: {told}")
    return {
        "seconds": round(seconds, 2),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        "mb_per_s": round(size / 1e6 / seconds, 1),
        "in_memory_before": share,
    }
