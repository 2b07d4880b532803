"""Small state files (``config/*.json``), of which one complete version always exists.

A new version is written to ``<name>.bak`` and then to the main file, see
``remoting.runtime.durable_file``.
If the main file is missing, empty or can't be parsed, the backup is read (cf. ConfigManager) and
copied to the main file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from broker.store.os_files import Files
from broker.store.results import StoreError
from remoting.protocol.bodies import relaxed_json
from remoting.protocol.errors import BodyError

T = TypeVar("T")


class LoadedState(NamedTuple, Generic[T]):
    """The result of reading a state file.

    Attributes:
        value: the parsed content; None if there is none.
        warning: the problem of the main file, for the log; None if there was none.
    """

    value: T | None
    warning: str | None = None


def load(path: Path, parse: Callable[[bytes], T], *, files: Files | None = None) -> LoadedState[T]:
    """Read a state file, or its backup if the file can't be used.

    If the main file is damaged and there is no backup, the value is None and the broker starts with
    an empty table, as RocketMQ does. The caller must log the warning.

    Args:
        path: the path of the main file.
        parse: parses the content; raises ``BodyError`` or ``ValueError`` if that is invalid.
        files: the file system.

    Raises:
        StoreError: the backup is needed and damaged, or a file can't be read.
    """
    files = Files() if files is None else files
    backup = path.with_name(path.name + ".bak")
    text = _read(files, path)
    wrong = f"{path} is missing" if text is None else f"{path} is empty"
    if text is not None and text.strip():
        try:
            return LoadedState(parse(text))
        except (BodyError, ValueError) as error:
            wrong = f"{path} is damaged ({error})"
    old = _read(files, backup)
    if old is not None and old.strip():
        try:
            value = parse(old)
        except (BodyError, ValueError) as error:
            raise StoreError(
                f"{wrong} and its backup is damaged too ({error}): put {path.name} back from a"
                f" copy, or remove it and {backup.name} to begin with an empty one"
            ) from error
        with contextlib.suppress(OSError):
            files.replace(path, old, backup=False)
        return LoadedState(value, f"{wrong}, so its backup {backup.name} was taken")
    if text is None and old is None:
        return LoadedState(None)
    return LoadedState(None, f"{wrong} and has no backup, so an empty one was taken")


def load_json(path: Path, *, files: Files | None = None) -> LoadedState[object]:
    """Read a state file as JSON in any of its dialects; see ``load``."""
    return load(path, relaxed_json.loads, files=files)


def save_json(path: Path, text: bytes, *, files: Files | None = None) -> None:
    """Write a state file and its backup durably.

    Raises:
        OSError: writing failed; the old version still exists.
    """
    files = Files() if files is None else files
    files.make_directory(path.parent, durable=True)
    files.replace(path, text, backup=True)


def _read(files: Files, path: Path) -> bytes | None:
    try:
        return files.read(path)
    except OSError as error:
        raise StoreError(
            f"{path} can't be read ({error.strerror or error}): check the owner of the file"
        ) from error
