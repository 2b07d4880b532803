"""Copying what a store has beside log, queues and state: the index, and what others keep there.

The file of the index that is being written to is left out unless the store is closed; what it knows
is indexed anew by our broker. Everything else of the index is full, and is copied as far as the log
of the copy has its messages.

Of the other directories, those of extended queue entries only grow and can be copied at any time,
as can a name server's table. What Apache's 5.x keeps (timers, batch queues, compacted topics) is of
one moment only when the store is closed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.store.copy.file_copy import copy_beginning
from broker.store.copy.log_copy import LogCopy
from broker.store.copy.moment import Moment, is_clean
from broker.store.copy.target import Target
from broker.store.view_files import StoreChanged, unreadable
from remoting.protocol.disk.files import Checkpoint
from remoting.protocol.disk.index_file import HEADER, IndexHeader

_INDEX_NAME: Final = re.compile(r"\d{17}")
_COPIED_ALREADY: Final = frozenset({"commitlog", "consumequeue", "config", "index"})
_OF_A_RUN: Final = frozenset(
    {"abort", "abort.bak", "checkpoint", "lock"}
    | {"pocketmq-clean-stop", "pocketmq-index", "pocketmq-safe-point"}
)
_UNFINISHED: Final = ".tmp"
_ANY_TIME: Final = frozenset({"consumequeue_ext", "namesrv"})


def copy_index(moment: Moment, log: LogCopy, target: Target) -> Checkpoint:
    """Copy the index files that can be; the checkpoint that fits the copy.

    Raises:
        StoreError: a file can't be read.
        OSError: the target can't be written.
    """
    source, index_ms, copied = moment.view.root / "index", moment.checkpoint.index_ms, 0
    names = sorted(name for name in _names(source) if _INDEX_NAME.fullmatch(name))
    for name in names:
        header = _header(source / name)
        is_last = name == names[-1]
        if header is None or not _fits(header, log):
            continue
        if is_last and (moment.is_past or not is_clean(moment.view.root)):
            continue
        path = target.directory("index") / name
        size = (source / name).stat().st_size
        try:
            copy_beginning(source / name, path, end=size, size=size, tell=_nobody)
        except StoreChanged:
            path.unlink(missing_ok=True)
            continue
        if is_last and not is_clean(moment.view.root):
            # A broker has opened the store meanwhile.
            path.unlink()
            continue
        copied += 1
    return Checkpoint(log.last_ms, log.last_ms, min(index_ms, log.last_ms) if copied else 0)


def index_files(target: Target) -> int:
    """How many files of the index the copy has."""
    return len(_names(target.part / "index"))


def copy_others(moment: Moment, target: Target) -> list[str]:
    """Copy what else there is; names of what was left out.

    Raises:
        StoreError: a file can't be read.
        OSError: the target can't be written.
    """
    left_out = []
    root, clean = moment.view.root, is_clean(moment.view.root) and not moment.is_past
    for name in _names(root):
        path = root / name
        if name in _COPIED_ALREADY | _OF_A_RUN or name.endswith(_UNFINISHED):
            continue
        if not (path.is_dir() or path.is_file()):
            continue
        if name not in _ANY_TIME and not clean:
            left_out.append(name)
            continue
        for file in [path] if path.is_file() else _files_in(path):
            _copy_whole(file, target.part / file.relative_to(root))
    return left_out


def _files_in(path: Path) -> Iterator[Path]:
    for name in _names(path):
        inner = path / name
        if inner.is_symlink():
            # It may lead anywhere, back into the store too.
            continue
        if inner.is_dir():
            yield from _files_in(inner)
        elif inner.is_file():
            yield inner


def _copy_whole(source: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        size = source.stat().st_size
        copy_beginning(source, path, end=size, size=size, tell=_nobody)
    except (FileNotFoundError, StoreChanged):
        path.unlink(missing_ok=True)


def _header(path: Path) -> IndexHeader | None:
    try:
        with path.open("rb") as file:
            data = file.read(HEADER.size)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(str(path), error) from error
    return IndexHeader(*HEADER.unpack(data)) if len(data) == HEADER.size else None


def _fits(header: IndexHeader, log: LogCopy) -> bool:
    """Whether it knows messages, and only such as the copy has or as retention has taken."""
    return header.next_entry > 1 and log.start <= header.end_offset < log.end


def _names(path: Path) -> list[str]:
    try:
        return sorted(inner.name for inner in path.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(str(path), error) from error


def _nobody(_: int) -> None:
    """What is large is the log."""
