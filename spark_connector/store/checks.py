"""Looking at many records of a log at once, before any is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from remoting.protocol.message.record import (
    BORN_HOST_V6,
    FIXED_BYTES_V4,
    HEAD_BYTES_V4,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    STORE_HOST_V6,
    SYS_FLAG_AT,
)
from spark_connector.store.gathering import Gathered, Numbers

_V6_EXTRA: Final = 12


def are_whole(gathered: Gathered, queue_ids: Numbers) -> Any:
    """Which records are those that their entries say: size, place, queue and number agree.

    Args:
        gathered: the records.
        queue_ids: by the index that entries have.
    """
    buffer, starts, entries = gathered.buffer, gathered.starts, gathered.entries
    return (
        (_numbers(buffer, starts, ">u4") == entries.sizes)
        & (_is_magic(_numbers(buffer, starts + 4, ">u4")))
        & (_numbers(buffer, starts + QUEUE_ID_AT, ">i4") == queue_ids[entries.queues])
        & (_numbers(buffer, starts + QUEUE_OFFSET_AT, ">i8") == entries.offsets)
        & (_numbers(buffer, starts + PHYSICAL_OFFSET_AT, ">i8") == entries.positions)
    )


def are_of(buffer: memoryview, starts: Numbers, topics: Sequence[str]) -> Any:
    """Which records are of one of these topics; so are those whose topic can't be told.

    Args:
        buffer: holds the whole records.
        starts: where they begin.
        topics: the names.
    """
    ends = starts + _numbers(buffer, starts, ">u4")
    flags = _numbers(buffer, starts + SYS_FLAG_AT, ">u4")
    extra = _V6_EXTRA * (flags & BORN_HOST_V6 != 0) + _V6_EXTRA * (flags & STORE_HOST_V6 != 0)
    body_at = starts + HEAD_BYTES_V4 + extra
    told = body_at <= ends
    at = np.where(told, body_at, starts + HEAD_BYTES_V4)
    at = at + _numbers(buffer, at - 4, ">u4")
    told &= at + 2 <= ends
    at = np.where(told, at, starts)
    wide = _numbers(buffer, starts + 4, ">u4") == MAGIC_V2
    lengths = np.where(wide, _numbers(buffer, at, ">u2"), _numbers(buffer, at, ">u1"))
    topic_at = at + 1 + wide
    told &= topic_at + lengths + 2 <= ends
    kept = ~told
    for topic in topics:
        name = topic.encode()
        same = told & (lengths == len(name))
        if same.any():
            kept[same] |= _texts(buffer, topic_at[same], len(name)) == name
    return kept


def are_readable(positions: Numbers, sizes: Numbers, starts: Numbers, ends: Numbers) -> Any:
    """Which entries point into one log file.

    Args:
        positions: physical offsets of the entries.
        sizes: bytes they say.
        starts: of the log's files, ascending.
        ends: of the same.
    """
    index = np.searchsorted(starts, positions, side="right") - 1
    inside = index >= 0
    file_ends = ends[np.maximum(index, 0)] if len(ends) else positions * 0
    return inside & (sizes >= FIXED_BYTES_V4) & (positions + sizes <= file_ends)


def _numbers(buffer: memoryview, places: Numbers, kind: str) -> Numbers:
    width = np.dtype(kind).itemsize
    every: Any = np.ndarray((max(0, len(buffer) - width + 1),), kind, buffer, strides=(1,))
    found: Numbers = every[places].astype(np.int64)
    return found


def _is_magic(magics: Numbers) -> Any:
    return (magics == MAGIC_V1) | (magics == MAGIC_V2)


def _texts(buffer: memoryview, places: Numbers, length: int) -> Any:
    every: Any = np.ndarray((len(buffer) - length + 1,), f"S{length}", buffer, strides=(1,))
    return every[places]
