"""Small files that are whole whenever the process dies or the power fails.

A new version is written beside the old one and synced, the old one is kept as ``<name>.bak``, then
the new one takes the name. The backup is for files that somebody else damaged.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from remoting.protocol.errors import BodyError

T = TypeVar("T")


class Loaded(NamedTuple, Generic[T]):
    """What ``load`` found.

    Attributes:
        value: as parsed; None when neither file could be used.
        problems: what is wrong with the file, and then with its backup; empty if nothing is.
    """

    value: T | None
    problems: tuple[str, ...]


def load(
    file: Path, parse: Callable[[bytes], T], *, max_bytes: int, blank_is_missing: bool = False
) -> Loaded[T]:
    """Read a file, or else its backup; that one is missing is no problem.

    Args:
        file: the main file.
        parse: makes the value; raises ``BodyError`` or ``ValueError`` when it can't.
        max_bytes: a larger file is damaged.
        blank_is_missing: a file without content counts as missing, not as damaged.
    """
    problems: list[str] = []
    for candidate in (file, backup_of(file)):
        try:
            with candidate.open("rb") as stream:
                data = stream.read(max_bytes + 1)
            if len(data) > max_bytes:
                problems.append(f"{candidate}: it has more than {max_bytes} bytes")
            elif data.strip() or not blank_is_missing:
                return Loaded(parse(data), tuple(problems))
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{candidate}: {error.strerror or error}")
        except (BodyError, ValueError) as error:
            problems.append(f"{candidate}: {error}")
    return Loaded(None, tuple(problems))


def replace(file: Path, data: bytes, *, backup: bool = True) -> None:
    """Write a file atomically; it is on the disk when this returns.

    Args:
        file: the name, in a directory that exists.
        data: the new version.
        backup: keep the old version as ``<name>.bak``, unless it is empty.

    Raises:
        OSError: the disk refuses; the old version is still there.
    """
    fresh = file.with_name(file.name + ".tmp")
    with fresh.open("wb") as stream:
        stream.write(data)
        stream.flush()
        # Before the rename: else a power cut may leave the name with an empty file.
        os.fsync(stream.fileno())
    if backup and file.exists() and (old := file.read_bytes()):
        # A copy, not a rename: there is never a moment without the main file.
        replace(backup_of(file), old, backup=False)
    fresh.replace(file)
    sync_directory(file.parent)


def backup_of(file: Path) -> Path:
    """Where the version before the last is kept."""
    return file.with_name(file.name + ".bak")


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
