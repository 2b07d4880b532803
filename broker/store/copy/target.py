"""Where a copy goes: a directory that has its name only when the copy is whole.

All is written to ``TARGET.part`` beside it, synced, and renamed at the end. What fails is removed;
what a killed process left keeps the name that says what it is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from broker.store.copy.limits import SYNC_THREADS
from broker.store.errors import StoreError


class Target:
    """A directory to be made.

    Args:
        path: its name.
        sources: directories it must not lie in.

    Attributes:
        part: where to write.

    Raises:
        StoreError: it can't be made there; the text says what to do.
    """

    def __init__(self, path: Path, sources: Sequence[Path]) -> None:
        self.path = _real(path)
        self.part = self.path.with_name(self.path.name + ".part")
        for source in map(_real, sources):
            if self.path == source or source in self.path.parents:
                raise StoreError(
                    f"the target {path} lies in what is to be copied, {source}: give a directory"
                    " elsewhere, best on another disk"
                )
        try:
            self._check_free(path)
            self.part.mkdir()
        except FileExistsError:
            raise StoreError(
                f"{self.part} is there: a copy that was broken off, or one that still runs; remove"
                " it, or give another target"
            ) from None
        except OSError as error:
            raise StoreError(
                f"the target {path} can't be made ({error.strerror or error}): check that the"
                " directory above it exists and that this user may write there"
            ) from error

    def _check_free(self, path: Path) -> None:
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise StoreError(f"the target {path} is a file: give the name of a new directory")
        if any(self.path.iterdir()):
            raise StoreError(
                f"the target {path} is not empty: give a new directory, or empty that one"
            )
        if self.path.is_mount():
            raise StoreError(
                f"the target {path} is where a disk is mounted, and can't be renamed: give a new"
                f" directory in it, such as {path / 'store'}"
            )

    def directory(self, *names: str) -> Path:
        """A directory of the copy, made if need be. Raises ``OSError``."""
        path = self.part.joinpath(*names)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, path: Path, data: bytes) -> None:
        """Make a small file, synced. Raises ``OSError``."""
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> None:
        """All is written: give it its name, for good. Raises ``OSError``."""
        directories = [Path(root) for root, _, _ in os.walk(self.part)]
        with ThreadPoolExecutor(SYNC_THREADS) as pool:
            for _ in pool.map(sync_directory, reversed(directories)):
                pass
        self.part.rename(self.path)
        sync_directory(self.path.parent)

    def abandon(self) -> None:
        """Leave nothing, if that can be done."""
        shutil.rmtree(self.part, ignore_errors=True)


def sync_directory(path: Path) -> None:
    """Wait until names in it are on the disk. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise StoreError(f"the path {path} leads nowhere ({error}): give another one") from error
