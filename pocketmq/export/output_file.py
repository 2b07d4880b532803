"""The file that is exported to: it has its name only when it is whole."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

STDOUT: Final = Path("-")


@contextmanager
def output_file(path: Path) -> Iterator[IO[bytes]]:
    """A stream; what is written gets its name at the end of the block, unless that raises.

    Args:
        path: the name; ``-`` for stdout. A file of that name is replaced.

    Raises:
        OSError: it can't be written; nothing is left of it.
    """
    if path == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = path.with_name(path.name + ".part")
    if path.is_dir():
        raise IsADirectoryError(21, "it is a directory", str(path))
    stream = part.open("wb")
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_name(path)


def _sync_name(path: Path) -> None:
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
