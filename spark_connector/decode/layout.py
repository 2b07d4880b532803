"""Where the parts of many records are, found for all at once.

The fixed fields lie at fixed places, but for the hosts: one of IPv6 takes twelve bytes more and
moves what follows. So the head is gathered in three parts, each moved by what is known from those
before. All lengths are then held against each other as ``remoting``'s ``locate`` does for one
record. Nothing outside the buffer is ever looked at; a record that does not hold together makes
the whole buffer ``UnusualError``, and ``plain`` finds out which it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from remoting.protocol.limits import MAX_PROPERTIES_BYTES, MAX_TOPIC_LENGTH
from remoting.protocol.message.record import (
    BORN_HOST_V6,
    FIXED_BYTES_V4,
    HEAD_BYTES_V4,
    HOSTS_V6_MASK,
    MAGIC_V1,
    MAGIC_V2,
    MAX_TOPIC_BYTES_V2,
    STORE_HOST_V6,
    Buffer,
)
from spark_connector.decode.model import Starts, UnusualError

_FIRST: Final = np.dtype(
    [
        ("size", ">u4"),
        ("magic", ">u4"),
        ("crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_host", "<u8"),
    ]
)
_STORE: Final = np.dtype([("store_timestamp", ">i8"), ("store_host", "V8")])
_LAST: Final = np.dtype(
    [("reconsume_times", ">i4"), ("prepared_offset", ">i8"), ("body_length", ">u4")]
)
_V6_EXTRA: Final = 12
_STORE_AT: Final = _FIRST.itemsize
_LAST_AT: Final = _STORE_AT + _STORE.itemsize

_LARGEST_BUFFER: Final = 2**31 - 1
"""Positions have to fit into the offsets of Arrow's ordinary arrays."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions and fixed fields of the records of one buffer, one array element each.

    Attributes:
        first: fields up to the born host, which is the whole host only of IPv4.
        store: store timestamp and host, likewise.
        last: what stands between the hosts and the body.
    """

    buffer: Buffer
    starts: Starts
    ends: Starts
    first: NDArray[Any]
    store: NDArray[Any]
    last: NDArray[Any]
    body_at: Starts
    body_end: Starts
    topic_at: Starts
    topic_end: Starts

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def properties_at(self) -> Starts:
        """Where the properties text begins; it goes on to the record's end."""
        return self.topic_end + 2

    def sys_flags(self, mask: int) -> NDArray[np.bool_]:
        """Which records have one of these bits."""
        found: NDArray[np.bool_] = (self.first["sys_flag"] & mask) != 0
        return found

    def has_v6(self) -> bool:
        """Whether any record has a host of IPv6."""
        return bool(self.sys_flags(HOSTS_V6_MASK).any())

    def only(self, keep: NDArray[np.bool_]) -> Layout:
        """The layout of some of the records."""
        return Layout(
            self.buffer,
            self.starts[keep],
            self.ends[keep],
            self.first[keep],
            self.store[keep],
            self.last[keep],
            self.body_at[keep],
            self.body_end[keep],
            self.topic_at[keep],
            self.topic_end[keep],
        )


def locate(buffer: Buffer, starts: Starts) -> Layout:
    """Find the parts of the records that begin at ``starts``, which must be at least one.

    Raises:
        UnusualError: one is no whole record, or they are not in the order of the buffer.
    """
    limit = len(buffer)
    if limit > _LARGEST_BUFFER or limit < FIXED_BYTES_V4:
        raise UnusualError
    require(starts >= 0, starts <= limit - FIXED_BYTES_V4)
    first = _gather(buffer, starts, _FIRST)
    ends = starts + first["size"]
    require(ends <= limit, ends[:-1] <= starts[1:])
    born_extra, hosts_extra = _extra(first["sys_flag"])
    body_at = starts + (HEAD_BYTES_V4 + hosts_extra)
    require(body_at + 3 <= ends)
    store = _gather(buffer, starts + (_STORE_AT + born_extra), _STORE)
    last = _gather(buffer, starts + (_LAST_AT + hosts_extra), _LAST)
    body_end = body_at + last["body_length"]
    require(body_end + 3 <= ends)
    topic_at, topic_end = _topics(buffer, first["magic"], body_end)
    require(topic_end + 2 <= ends)
    properties_length = _gather(buffer, topic_end, np.dtype(">u2"))
    require(properties_length <= MAX_PROPERTIES_BYTES, topic_end + 2 + properties_length == ends)
    return Layout(buffer, starts, ends, first, store, last, body_at, body_end, topic_at, topic_end)


def require(*conditions: NDArray[np.bool_]) -> None:
    """Raise ``UnusualError`` unless every element of all arrays is true."""
    # Counting is the cheapest way to ask numpy whether all are true.
    for condition in conditions:
        if np.count_nonzero(condition) < len(condition):
            raise UnusualError


def _gather(buffer: Buffer, positions: Starts, kind: np.dtype[Any]) -> NDArray[Any]:
    """The values of a type at any positions, aligned or not."""
    size = kind.itemsize
    raw = f"V{size}" if kind.names else kind
    every = np.ndarray((len(buffer) - size + 1,), raw, buffer, strides=(1,))
    return every[positions].view(kind)


def _extra(sys_flag: NDArray[Any]) -> tuple[Any, Any]:
    """Bytes by which the born host, and both hosts, are longer than of IPv4."""
    if not (sys_flag & HOSTS_V6_MASK).any():
        return 0, 0
    flags = sys_flag.astype(np.int64)
    born = np.where(flags & BORN_HOST_V6, _V6_EXTRA, 0)
    return born, born + np.where(flags & STORE_HOST_V6, _V6_EXTRA, 0)


def _topics(buffer: Buffer, magic: NDArray[Any], body_end: Starts) -> tuple[Starts, Starts]:
    """Where the topics begin and end; the length before them takes one byte, or two."""
    is_v1 = magic == MAGIC_V1
    every = np.frombuffer(buffer, np.uint8)
    high = every[body_end].astype(np.int64)
    if is_v1.all():
        require(high <= MAX_TOPIC_LENGTH)
        topic_at = body_end + 1
        return topic_at, topic_at + high
    require(is_v1 | (magic == MAGIC_V2))
    length = np.where(is_v1, high, high * 256 + every[body_end + 1])
    require(length <= np.where(is_v1, MAX_TOPIC_LENGTH, MAX_TOPIC_BYTES_V2))
    topic_at = body_end + np.where(is_v1, 1, 2)
    return topic_at, topic_at + length
