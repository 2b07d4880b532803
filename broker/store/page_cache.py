"""Asking the page cache: is a range of a file in memory, and if not, have it brought there.

``mincore`` tells it of a map, in less than a microsecond and without reading; Linux counts what
the page cache has, whether or not this map was used to look at it (``man 2 mincore``; to others
than a file's owners it says that all is there, but a store's are its broker's own). On other
systems the answer is that nobody knows. What may wait for the disk releases the GIL.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from mmap import PAGESIZE
from typing import Final

from broker.store.limits import ASKED_AHEAD_BYTES, FETCH_BYTES


def _find_mincore() -> Callable[[int, int, int], int] | None:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            # It waits for nothing, so the GIL need not be given away.
            found = ctypes.PyDLL(None).mincore
            found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
            return found
    return None


_mincore: Final = _find_mincore()
_PAGES_AT_ONCE: Final = ASKED_AHEAD_BYTES // PAGESIZE + 1
_answer: Final = bytearray(_PAGES_AT_ONCE)
_answer_at: Final = ctypes.addressof((ctypes.c_char * _PAGES_AT_ONCE).from_buffer(_answer))


def address_of(view: memoryview) -> int:
    """Where a writable map lies in memory, as long as somebody keeps it."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def is_range_cached(address: int, position: int, length: int) -> bool | None:
    """Whether a range of a map can be touched without waiting for the disk.

    Only for the loop's thread.

    Args:
        address: of the map, see ``address_of``.
        position: first byte of the range.
        length: of the range, within the map.

    Returns:
        None when that can't be told.
    """
    if _mincore is None:
        return None
    over = position % PAGESIZE
    pages = (over + length + PAGESIZE - 1) // PAGESIZE
    if pages > _PAGES_AT_ONCE:
        first = _PAGES_AT_ONCE * PAGESIZE - over
        found = is_range_cached(address, position, first)
        return is_range_cached(address, position + first, length - first) if found else found
    if _mincore(address + position - over, pages * PAGESIZE, _answer_at):
        return None
    return _answer.find(0, 0, pages) < 0


def fetch_range(descriptor: int, position: int, length: int) -> None:
    """Read a range into the page cache, however long the disk takes. Raises ``OSError``."""
    buffer = memoryview(bytearray(min(length, FETCH_BYTES)))
    end = position + length
    while position < end:
        got = os.preadv(descriptor, [buffer[: end - position]], position)
        if got == 0:
            return
        position += got


def read_range_ahead(descriptor: int, position: int, length: int) -> None:
    """Have the system begin to read a range that will be wanted soon."""
    advise = getattr(os, "posix_fadvise", None)
    if advise is not None and length > 0:
        advise(descriptor, position, length, os.POSIX_FADV_WILLNEED)
