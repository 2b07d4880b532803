"""Measures the speed of ``pocketmq store verify``, and of reading the commit log alone."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.tools import BenchmarkError

READ_BYTES: Final = 1 << 20
MOST_READ: Final = 4 << 30
"""The most bytes of the log that are read to measure the disk."""


def drop_from_page_cache(store: Path) -> None:
    """Write the files of a store to the disk and drop them from the page cache."""
    for path in store.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDWR)
            try:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def log_files(root: Path) -> list[Path]:
    """Return the files of the commit log, oldest first."""
    return sorted((root / "commitlog").iterdir())


def log_bytes(root: Path) -> int:
    """Return the bytes of records in the log, without the unused part of its last file."""
    told = _pocketmq("store", "info", str(root), "--json")
    facts = json.loads(told.stdout)
    return int(facts["end_offset"]) - int(facts["first_offset"])


def _pocketmq(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "pocketmq", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def disk_mb_per_s(root: Path, size: int) -> float:
    """Return the speed of reading the log from its start, with an empty page cache."""
    drop_from_page_cache(root)
    most = min(size, MOST_READ)
    done, begun = 0, time.monotonic()
    for path in log_files(root):
        with path.open("rb", buffering=0) as file:
            while done < most and (data := file.read(READ_BYTES)):
                done += len(data)
    return round(done / 1e6 / (time.monotonic() - begun), 1)


def verify(root: Path, size: int) -> dict[str, Any] | None:
    """Measure ``pocketmq store verify``, first with an empty page cache, then again.

    Returns:
        None if this version has no such command.
    """
    if _pocketmq("store", "verify", "--help").returncode:
        return None
    disk = disk_mb_per_s(root, size)
    drop_from_page_cache(root)
    return {"disk_mb_per_s": disk, "cold": _verify(root, size), "warm": _verify(root, size)}


def _verify(root: Path, size: int) -> dict[str, float]:
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
    }
