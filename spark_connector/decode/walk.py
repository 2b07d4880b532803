"""Where the records of a buffer begin.

Each record says how long it is, so they are found one after the other: the one step that numpy
can't do for all at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

import numpy as np

from remoting.protocol.message.record import FIXED_BYTES_V4, Buffer
from spark_connector.decode.model import Starts

_SIZE: Final = Struct(">I")


def walk(buffer: Buffer, begin: int = 0, end: int | None = None) -> Starts | None:
    """Where the records between two positions begin; None if they do not end exactly at ``end``.

    Only sizes are looked at. What a buffer holds whose sizes don't add up, ``plain`` finds out.
    """
    unpack = _SIZE.unpack_from
    limit = len(buffer) if end is None else end
    last = limit - FIXED_BYTES_V4
    found: list[int] = []
    append = found.append
    position = begin
    # The number of records is bounded, so a size of 0 does not keep us here.
    for _ in range((limit - begin) // FIXED_BYTES_V4):
        if position > last:
            break
        append(position)
        position += unpack(buffer, position)[0]
    starts = np.array(found, dtype=np.int64)
    if position != limit or (np.diff(starts) < FIXED_BYTES_V4).any():
        return None
    return starts


def portions(buffer: Buffer, starts: Starts, max_rows: int, max_bytes: int) -> Iterator[Starts]:
    """The starts in parts of at most so many records and bytes, at least one record each."""
    if len(starts) <= max_rows and len(buffer) <= max_bytes:
        yield starts
        return
    ends = np.cumsum(_sizes(buffer, starts))
    done = 0
    while done < len(starts):
        before = int(ends[done - 1]) if done else 0
        until = int(np.searchsorted(ends, before + max_bytes, side="right"))
        until = max(min(until, done + max_rows), done + 1)
        yield starts[done:until]
        done = until


def _sizes(buffer: Buffer, starts: Starts) -> Starts:
    """How long the records say they are; 0 for one outside the buffer."""
    sizes = np.zeros(len(starts), dtype=np.int64)
    room = len(buffer) - 3
    if room > 0:
        every = np.ndarray((room,), ">u4", buffer, strides=(1,))
        inside = (starts >= 0) & (starts < room)
        sizes[inside] = every[starts[inside]]
    return sizes
