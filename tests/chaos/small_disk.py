"""A small disk, and the memory and files that a store in this process uses."""

from __future__ import annotations

import errno
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from broker.store.os_files import DiskUse, Files, Region
from tests.unit.broker.store.stores import open_files

CAPACITY: Final = 96 << 20

_COUNT_SECONDS: Final = 0.02
"""Seconds for which a count of all files is reused; later writes are added to it."""


class SmallRegion:
    """A region of a small disk that reports most pages as not in memory."""

    def __init__(self, region: Region, disk: SmallDisk) -> None:
        self._region = region
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._region, name)

    def write(self, position: int, data: bytes | memoryview) -> None:
        self._disk.take(len(data))
        self._region.write(position, data)

    def allocate(self, position: int, length: int) -> bool:
        self._disk.take(length)
        return self._region.allocate(position, length)

    def is_cached(self, position: int, length: int) -> bool | None:
        return random.random() < 0.5 and self._region.is_cached(position, length)


class SmallDisk(Files):
    """A disk of 96 MiB; what was deleted takes its place as long as somebody holds it.

    Attributes:
        most: the most that was ever taken of it.
        most_held: the most of that by files that were deleted.
        most_kept: the most of that by files that were not.
        refusals: how often there was no room.
    """

    __slots__ = ("_counted", "_held", "_kept", "most", "most_held", "most_kept", "refusals", "root")

    def __init__(self, root: Path) -> None:
        self.root = root
        self.most = self.most_held = self.most_kept = self.refusals = 0
        self._kept = self._held = 0
        self._counted = 0.0

    def take(self, length: int) -> None:
        """Use more space; raise ``OSError`` if there is not enough."""
        if self.used() + length > CAPACITY:
            self.refusals += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._kept += length
        self.most = max(self.most, self._kept + self._held)
        self.most_kept = max(self.most_kept, self._kept)

    def used(self) -> int:
        """Return the bytes in use, except for very recent growth."""
        now = time.monotonic()
        if now - self._counted >= _COUNT_SECONDS:
            self._held = deleted_bytes(self.root)
            self._kept = sum(_blocks(path) for path in self.root.rglob("*"))
            self._counted = now
            self.most_held = max(self.most_held, self._held)
        return self._kept + self._held

    def disk_use(self, path: Path) -> DiskUse:
        used = self.used()
        return DiskUse(used, max(0, CAPACITY - used))

    def open_mapped(self, path: Path, size: int, *, create: bool) -> Region:
        return SmallRegion(super().open_mapped(path, size, create=create), self)


def _blocks(path: Path) -> int:
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0
    return status.st_blocks * 512 if path.is_file() else 0


def deleted_bytes(root: Path) -> int:
    """Return the bytes of the store's deleted files that are still mapped."""
    found: dict[str, int] = {}
    for line in _maps(root):
        if line.endswith("(deleted)"):
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            found[line.split(maxsplit=5)[5]] = end - begin
    return sum(found.values())


def _maps(root: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(root) in line]


@dataclass
class Held:
    """The files and bytes that a store uses at one moment."""

    files: int
    directories: int
    descriptors: int
    maps: int

    @classmethod
    def of(cls, root: Path) -> Held:
        """Measure the store in this process, whose files may change meanwhile."""
        paths = list(root.rglob("*"))
        directories = sum(path.is_dir() for path in paths)
        return cls(
            files=len(paths) - directories,
            directories=directories,
            descriptors=len(open_files(root)),
            maps=len(_maps(root)),
        )
