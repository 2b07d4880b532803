"""The name server's small files on disk: replaced as a whole or not at all.

A new text is written beside the file and synced, the former one is copied to ``.bak``, and the new
one takes its place by renaming. Whenever the process dies, the file itself is whole; the ``.bak``
is for files that others damaged.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from remoting.protocol.errors import BodyError

T = TypeVar("T")

_log = structlog.get_logger("nameserver")


class StateFileError(Exception):
    """A file can't be used; the text says which, why, and what to do."""


def load(file: Path, read: Callable[[bytes], T], empty: T, *, max_bytes: int) -> T:
    """What a file holds, or its ``.bak`` when the file is missing, empty or damaged.

    Raises:
        StateFileError: there is a file, and neither it nor its ``.bak`` can be understood.
    """
    problems: list[str] = []
    for candidate in (file, _backup_of(file)):
        try:
            text = _read_bounded(candidate, max_bytes)
            if not text.strip():
                continue
            value = read(text)
        except FileNotFoundError:
            continue
        except (OSError, BodyError) as error:
            problems.append(f"{candidate}: {_reason(error)}")
            continue
        if candidate != file:
            _log.warning("took the backup of a state file", file=str(file), problems=problems)
        return value
    if not problems:
        return empty
    raise StateFileError(
        f"can't read {'; '.join(problems)}. Restore the file from a copy, or move it and its "
        ".bak away to start without it"
    )


def save(file: Path, text: bytes) -> None:
    """Replace a file by a new text that is on disk when this returns.

    Raises:
        StateFileError: it can't be written; the former text is still in place.
    """
    fresh = file.with_name(file.name + ".tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("wb") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if file.exists():
            shutil.copyfile(file, _backup_of(file))
        fresh.replace(file)
        _sync_directory(file.parent)
    except OSError as error:
        raise StateFileError(
            f"can't write {file}: {_reason(error)}; see that the disk has room and that the "
            "directory is writable. Nothing was changed"
        ) from error


def _backup_of(file: Path) -> Path:
    return file.with_name(file.name + ".bak")


def _read_bounded(file: Path, max_bytes: int) -> bytes:
    with file.open("rb") as stream:
        text = stream.read(max_bytes + 1)
    if len(text) > max_bytes:
        raise BodyError(f"it has more than {max_bytes} bytes")
    return text


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
