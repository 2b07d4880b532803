"""Locates the records of a buffer and their parts, for all records at once.

The start of a record follows from the size of the previous one, so ``walk`` is a loop: the only
step that NumPy can't do for all records at once. The fixed fields are at fixed positions, except
that an IPv6 host takes twelve bytes more and shifts the following fields. So the head is read in
three parts, each at positions that follow from the previous ones. Then all lengths are checked
against each other, as ``remoting``'s ``locate`` does for one record. Nothing outside the buffer is
ever read. An inconsistent record raises ``NeedsFallback`` for the whole buffer; ``fallback`` finds
out which record it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from remoting.addresses import address_text
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
"""Positions have to fit into the 32-bit offsets of Arrow's binary arrays."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions and fixed fields of the records of one buffer, with an array element per record.

    Attributes:
        buffer: the buffer.
        starts, ends: the bounds of the records.
        first: the fields up to the born host; of an IPv6 host only the first 8 bytes.
        store: store timestamp and store host, with the same limitation.
        last: the fields between the store host and the body.
        body_at, body_end: the bounds of the bodies.
        topic_at, topic_end: the bounds of the topics.
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
        """Where the properties texts begin; they extend to the ends of the records."""
        return self.topic_end + 2

    def sys_flags(self, mask: int) -> NDArray[np.bool_]:
        """Return which records have one of these bits in their system flag."""
        found: NDArray[np.bool_] = (self.first["sys_flag"] & mask) != 0
        return found

    def has_v6(self) -> bool:
        """Return whether any record has an IPv6 host."""
        return bool(self.sys_flags(HOSTS_V6_MASK).any())

    def only(self, keep: NDArray[np.bool_]) -> Layout:
        """Return the layout of the records selected by a mask."""
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
    """Locate the parts of the records that begin at ``starts``, of which there is at least one.

    Raises:
        NeedsFallback: a record is incomplete or inconsistent, or the starts are not ascending.
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
    # count_nonzero is faster than all().
    for condition in conditions:
        if np.count_nonzero(condition) < len(condition):
            raise NeedsFallback


def gather(buffer: Buffer, positions: Starts, kind: np.dtype[Any]) -> NDArray[Any]:
    """Return the values of a type at some positions of a buffer, which need not be aligned."""
    size = kind.itemsize
    raw = f"V{size}" if kind.names else kind
    every = np.ndarray((len(buffer) - size + 1,), raw, buffer, strides=(1,))
    return every[positions].view(kind)


def _extra(sys_flag: NDArray[Any]) -> tuple[Any, Any]:
    """Return the additional bytes of an IPv6 born host, and of both hosts together."""
    if not (sys_flag & HOSTS_V6_MASK).any():
        return 0, 0
    flags = sys_flag.astype(np.int64)
    born = np.where(flags & BORN_HOST_V6, _V6_EXTRA, 0)
    return born, born + np.where(flags & STORE_HOST_V6, _V6_EXTRA, 0)


def _topics(buffer: Buffer, magic: NDArray[Any], body_end: Starts) -> tuple[Starts, Starts]:
    """Return the bounds of the topics, whose length field has one byte (V1) or two (V2)."""
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
    """Return the positions of adjacent records, or None if they do not end exactly at ``end``.

    Only the size fields are read. If the sizes don't add up, ``fallback`` finds the damaged record.

    Args:
        buffer: the buffer.
        begin, end: the bounds of the records; by default the whole buffer.
    """
    unpack = _SIZE.unpack_from
    limit = len(buffer) if end is None else end
    last = limit - FIXED_BYTES_V4
    found: list[int] = []
    append = found.append
    position = begin
    # A for loop with the highest possible number of records ends even if a size is 0.
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
    """Yield the starts in portions of at most so many rows and bytes, and at least one row."""
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
    """Return the size fields of the records; 0 for a start outside the buffer."""
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
    """Convert a binary array to strings.

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
    """Format IPv4 hosts of eight bytes each as ``ip:port``; each distinct host only once."""
    if not np.count_nonzero(hosts != hosts[0]):
        return pa.repeat(address_text(host_of(hosts[0].tobytes())), len(hosts))
    encoded = pa.array(hosts).dictionary_encode()
    known = np.array(encoded.dictionary.to_pylist(), dtype=np.uint64)
    shown = [address_text(host_of(host.tobytes())) for host in known]
    return pa.array(shown, pa.string()).take(encoded.indices)


def offset_ids_v4(hosts: NDArray[Any], physical_offsets: NDArray[Any]) -> Any:
    """Return the offset ids of messages: host and physical offset, 8 bytes each, in hexadecimal."""
    number = len(hosts)
    raw = np.empty((number, 2), dtype="V8")
    raw[:, 0] = hosts
    raw[:, 1] = physical_offsets.astype(">i8").view("V8")
    digits = _HEX[raw.view(np.uint8)]
    offsets = np.arange(number + 1, dtype=np.int32) * (2 * _OFFSET_ID_BYTES)
    return pa.Array.from_buffers(
        pa.string(), number, [None, pa.py_buffer(offsets), pa.py_buffer(np.ravel(digits))]
    )
