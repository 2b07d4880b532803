"""Asking the page cache: is a range of a file in memory, and if not, have it brought there.

``preadv`` with RWF_NOWAIT reads what is in memory and refuses the rest, so it tells the two apart
without waiting for the disk; where the system or the file system can't do that (other systems,
tmpfs of older kernels) the answer is that nobody knows. All of it releases the GIL.
"""

from __future__ import annotations

import os
from typing import Final

from broker.store.limits import FETCH_BYTES, GRANULE_BYTES

_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
# What is read into it is of no interest to anybody, so all threads may share it.
_scratch: Final = memoryview(bytearray(GRANULE_BYTES))


def is_cached(descriptor: int, position: int, length: int) -> bool | None:
    """Whether a range can be read without waiting for the disk; None when that can't be told."""
    if not _NOWAIT:
        return None
    end = position + length
    try:
        while position < end:
            wanted = min(end - position, len(_scratch))
            if os.preadv(descriptor, [_scratch[:wanted]], position, _NOWAIT) < wanted:
                return False
            position += wanted
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def fetch(descriptor: int, position: int, length: int) -> None:
    """Read a range into the page cache, however long the disk takes. Raises ``OSError``."""
    buffer = memoryview(bytearray(min(length, FETCH_BYTES)))
    end = position + length
    while position < end:
        got = os.preadv(descriptor, [buffer[: end - position]], position)
        if got == 0:
            return
        position += got


def read_ahead(descriptor: int, position: int, length: int) -> None:
    """Have the system begin to read a range that will be wanted soon."""
    advise = getattr(os, "posix_fadvise", None)
    if advise is not None and length > 0:
        advise(descriptor, position, length, os.POSIX_FADV_WILLNEED)
