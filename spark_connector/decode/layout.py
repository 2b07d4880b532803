"""Where the records of a buffer and their parts are, found for all at once.

Each record has its length, so they are found one after the other: the one step that NumPy can't do
for all at once. The fixed fields are at fixed positions, except for the hosts: an IPv6 one takes
twelve bytes more and moves what follows. So the head is gathered in three parts, each moved by what
is known from those before. All lengths are then checked against each other as ``remoting``'s
``locate`` does for one record. Nothing outside the buffer is ever read; a record that is
inconsistent makes the whole buffer ``NeedsFallback``, and ``fallback`` finds out which one it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
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
    host_of,
)
from spark_connector.arrow import bytes_of
from spark_connector.decode.fallback import host_text
from spark_connector.decode.model import NeedsFallback, Starts

FIRST: Final = np.dtype(
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
_STORE_AT: Final = FIRST.itemsize
_LAST_AT: Final = _STORE_AT + _STORE.itemsize

_LARGEST_BUFFER: Final = 2**31 - 1
"""Positions have to fit into the offsets of Arrow's ordinary arrays."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions and fixed fields of the records of one buffer, one array element each.

    Attributes:
        first: fields up to the born host, which is the whole host only of IPv4.
        store: the same for store timestamp and host.
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
        NeedsFallback: one is no whole record, or they are not in the order of the buffer.
    """
    limit = len(buffer)
    if limit > _LARGEST_BUFFER or limit < FIXED_BYTES_V4:
        raise NeedsFallback
    require(starts >= 0, starts <= limit - FIXED_BYTES_V4)
    first = gather(buffer, starts, FIRST)
    ends = starts + first["size"]
    require(ends <= limit, ends[:-1] <= starts[1:])
    born_extra, hosts_extra = _extra(first["sys_flag"])
    body_at = starts + (HEAD_BYTES_V4 + hosts_extra)
    require(body_at + 3 <= ends)
    store = gather(buffer, starts + (_STORE_AT + born_extra), _STORE)
    last = gather(buffer, starts + (_LAST_AT + hosts_extra), _LAST)
    body_end = body_at + last["body_length"]
    require(body_end + 3 <= ends)
    topic_at, topic_end = _topics(buffer, first["magic"], body_end)
    require(topic_end + 2 <= ends)
    properties_length = gather(buffer, topic_end, np.dtype(">u2"))
    require(properties_length <= MAX_PROPERTIES_BYTES, topic_end + 2 + properties_length == ends)
    return Layout(buffer, starts, ends, first, store, last, body_at, body_end, topic_at, topic_end)


def require(*conditions: NDArray[np.bool_]) -> None:
    """Raise ``NeedsFallback`` unless every element of all arrays is true."""
    # Counting is the cheapest way to ask numpy whether all are true.
    for condition in conditions:
        if np.count_nonzero(condition) < len(condition):
            raise NeedsFallback


def gather(buffer: Buffer, positions: Starts, kind: np.dtype[Any]) -> NDArray[Any]:
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


_SIZE: Final = Struct(">I")


def walk(buffer: Buffer, begin: int = 0, end: int | None = None) -> Starts | None:
    """Where the records between two positions begin; None if they do not end exactly at ``end``.

    Only sizes are looked at. What a buffer holds whose sizes don't add up, ``fallback`` finds out.
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


_ASCII_END: Final = 0x80
_HEX: Final = np.frombuffer(b"".join(b"%02X" % value for value in range(256)), dtype=np.uint16)
_OFFSET_ID_BYTES: Final = 16


def as_text(array: Any) -> Any:
    """A binary array as an array of strings.

    Raises:
        NeedsFallback: a value is not UTF-8.
    """
    block = bytes_of(array)
    if not block.size or block.max() < _ASCII_END:
        return array.view(pa.string())
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise NeedsFallback from error


def hosts_v4(hosts: NDArray[np.uint64]) -> Any:
    """``ip:port`` of hosts of eight bytes each; few of many are different."""
    if not np.count_nonzero(hosts != hosts[0]):
        return pa.repeat(host_text(host_of(hosts[0].tobytes())), len(hosts))
    encoded = pa.array(hosts).dictionary_encode()
    known = np.array(encoded.dictionary.to_pylist(), dtype=np.uint64)
    shown = [host_text(host_of(host.tobytes())) for host in known]
    return pa.array(shown, pa.string()).take(encoded.indices)


def offset_ids_v4(hosts: NDArray[Any], physical_offsets: NDArray[Any]) -> Any:
    """The offset ids of messages: eight bytes of host, eight of physical offset, in hexadecimal."""
    number = len(hosts)
    raw = np.empty((number, 2), dtype="V8")
    raw[:, 0] = hosts
    raw[:, 1] = physical_offsets.astype(">i8").view("V8")
    digits = _HEX[raw.view(np.uint8)]
    offsets = np.arange(number + 1, dtype=np.int32) * (2 * _OFFSET_ID_BYTES)
    return pa.Array.from_buffers(
        pa.string(), number, [None, pa.py_buffer(offsets), pa.py_buffer(np.ravel(digits))]
    )
