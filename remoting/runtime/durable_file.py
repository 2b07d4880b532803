"""Small files that are replaced atomically: never partial after a crash or a power failure.

A new version is written to ``<name>.bak`` and then to the file itself, each time to a temporary
file that is synced and renamed. The backup is used when the file is damaged by other means. It is
never copied from the file, which may be damaged by then.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from remoting.protocol.errors import BodyError

T = TypeVar("T")


class Loaded(NamedTuple, Generic[T]):
    """The result of ``load``.

    Attributes:
        value: the parsed value; None if neither file could be used.
        problems: the errors in the file and in its backup, in this order.
    """

    value: T | None
    problems: tuple[str, ...]


def load(
    file: Path, parse: Callable[[bytes], T], *, max_bytes: int, blank_is_missing: bool = False
) -> Loaded[T]:
    """Read a file, or its backup if the file is missing or damaged.

    A missing file is not reported as a problem. A backup that was used is copied to the file, so
    that the next damage is survived too.

    Args:
        file: the main file.
        parse: returns the value; raises ``BodyError`` or ``ValueError`` if the file is damaged.
        max_bytes: a larger file counts as damaged.
        blank_is_missing: whether a file of only white space counts as missing, not as damaged.
    """
    problems: list[str] = []
    for candidate in (file, backup_of(file)):
        try:
            with candidate.open("rb") as stream:
                data = stream.read(max_bytes + 1)
            if len(data) > max_bytes:
                problems.append(f"{candidate}: it has more than {max_bytes} bytes")
            elif data.strip() or not blank_is_missing:
                value = parse(data)
                if candidate != file:
                    with contextlib.suppress(OSError):
                        replace(file, data, backup=False)
                return Loaded(value, tuple(problems))
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{candidate}: {error.strerror or error}")
        except (BodyError, ValueError) as error:
            problems.append(f"{candidate}: {error}")
    return Loaded(None, tuple(problems))


def replace(file: Path, data: bytes, *, backup: bool = True, sync: bool = True) -> None:
    """Replace a file atomically and sync it to disk.

    Args:
        file: its path; the directory must exist.
        data: the new content.
        backup: whether to write ``<name>.bak`` too, before the file.
        sync: False for files that need not outlast a power failure.

    Raises:
        OSError: writing failed; the file has its old content, unless only the last sync has failed.
    """
    for target in (backup_of(file), file) if backup else (file,):
        fresh = target.with_name(target.name + ".tmp")
        try:
            with fresh.open("wb") as stream:
                stream.write(data)
                stream.flush()
                # Sync before the rename, or a power failure may leave an empty file under the name.
                if sync:
                    os.fsync(stream.fileno())
        except OSError:
            # On a full disk the half-written file takes room that others need.
            fresh.unlink(missing_ok=True)
            raise
        fresh.replace(target)
    if sync:
        sync_path(file.parent)


def backup_of(file: Path) -> Path:
    """Return the path of a file's backup."""
    return file.with_name(file.name + ".bak")


def sync_path(path: Path | str) -> None:
    """Sync a file, or a directory's entries, to disk. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
