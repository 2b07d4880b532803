"""The stored message record: its layout, how it is encoded, and how it is checked and found.

A record is what the commit log stores and a pull answer carries. All numbers are big endian:

=====  ======================================================================================
bytes  field
=====  ======================================================================================
4      size of the whole record
4      magic: ``MAGIC_V1`` or ``MAGIC_V2``
4      CRC of the stored body, 31 bits
4      queue id
4      flag, a number of the application
8      queue offset
8      physical offset
4      system flag
8      born timestamp, ms
8, 20  born host: IP (4 or 16 bytes), then an int32 port
8      store timestamp, ms
8, 20  store host
4      reconsume times
8      prepared transaction offset
4 + n  body: length, bytes
1 + n  topic: length (2 bytes in a v2 record), bytes
2 + n  properties: length, bytes
=====  ======================================================================================

cf. MessageDecoder, CommitLog. ``remoting.protocol.core.record`` is the compiled counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from mmap import mmap
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from remoting.protocol.accelerated import crc32
from remoting.protocol.errors import RecordError
from remoting.protocol.limits import MAX_PROPERTIES_BYTES, MAX_TOPIC_LENGTH

HOST_BYTES_V4: Final = 8
HOST_BYTES_V6: Final = 20


@lru_cache(maxsize=1024)
def ip_bytes(ip: str) -> bytes:
    """Return the 4 or 16 bytes of an IP address.

    An IPv4-mapped IPv6 address (``::ffff:10.0.0.1``, which a dual-stack socket reports) becomes
    IPv4. The zone of an IPv6 address (``fe80::1%eth0``) is dropped: it is valid on this machine
    only.

    Raises:
        ValueError: ``ip`` is not a numeric address.
    """
    address: IPv4Address | IPv6Address = ip_address(ip)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.packed
    return address.packed


def host_bytes(ip: str, port: int) -> bytes:
    """Return the 8 (IPv4) or 20 (IPv6) bytes of an address.

    Raises:
        ValueError: ``ip`` is not a numeric address, or ``port`` is not in 0..65535.
    """
    if not 0 <= port <= 0xFFFF:
        raise ValueError(f"port {port} of host {ip} is not in 0..65535")
    return ip_bytes(ip) + port.to_bytes(4, "big")


@lru_cache(maxsize=1024)
def ip_text(packed: bytes) -> str:
    """Return the text of an IP address given as 4 or 16 bytes; IPv6 in its short form."""
    return str(ip_address(packed))


def host_of(packed: bytes) -> tuple[str, int]:
    """Return ``(ip, port)`` from the 8 or 20 bytes of an address.

    The port is the stored number, unsigned and of 32 bits: it is not checked.
    """
    return ip_text(packed[:-4]), int.from_bytes(packed[-4:], "big")


COMPRESSED: Final = 0x1
"""The body is compressed, in the format given by the bits of ``COMPRESSION_MASK``."""

MULTI_TAGS: Final = 0x2

TRANSACTION_MASK: Final = 0xC
TRANSACTION_NONE: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC

BORN_HOST_V6: Final = 0x10
"""The born host takes 20 bytes instead of 8."""

STORE_HOST_V6: Final = 0x20
"""The store host takes 20 bytes instead of 8."""

HOSTS_V6_MASK: Final = BORN_HOST_V6 | STORE_HOST_V6

COMPRESSION_MASK: Final = 0x700
COMPRESSION_LEGACY: Final = 0x000
"""No format given, as by senders before 4.9.4: zlib."""

COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300


Buffer: TypeAlias = bytes | bytearray | memoryview | mmap

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
"""A record of 5.x whose topic has a two-byte length."""

MAGIC_BLANK: Final = 0xCBD43194

HEAD_V4: Final = Struct(">IIIiiqqiq8sq8siqI")
"""All fields from the size to the body's length, in stored order, with IPv4 hosts."""

HEAD_BYTES_V4: Final = HEAD_V4.size
FIXED_BYTES_V4: Final = HEAD_BYTES_V4 + 3
"""The size of a v1 record with IPv4 hosts and an empty body, topic and properties: 91 bytes."""

QUEUE_OFFSET_AT: Final = 20
PHYSICAL_OFFSET_AT: Final = 28
BORN_TIMESTAMP_AT: Final = 40
BORN_HOST_AT: Final = 48

MIN_TAIL_BYTES: Final = 8
"""Bytes that must stay free in a file after a record, for the blank record."""

MAX_TOPIC_BYTES_V2: Final = 32767

_V6_EXTRA: Final = HOST_BYTES_V6 - HOST_BYTES_V4
_START: Final = Struct(">II")
_LENGTH: Final = Struct(">H")
_BODY_LENGTH: Final = Struct(">I")
# Size, magic, system flag and body length of a record whose hosts are both IPv4.
_SHAPE_V4: Final = Struct(">II28xi44xI")


def record_size(
    body_length: int,
    topic_length: int,
    properties_length: int,
    *,
    born_host_length: int = HOST_BYTES_V4,
    store_host_length: int = HOST_BYTES_V4,
    version: int = 1,
) -> int:
    """Return the size of a record in bytes, from the lengths of its parts in bytes.

    ``version`` is 1 or 2, see ``MAGIC_V1`` and ``MAGIC_V2``.
    """
    variable = body_length + topic_length + properties_length
    hosts = born_host_length + store_host_length
    return FIXED_BYTES_V4 - 2 * HOST_BYTES_V4 + hosts + (version - 1) + variable


def takes_queue_offset(sys_flag: int) -> bool:
    """Return whether a message gets a queue offset; prepared and rolled-back ones do not."""
    kind = sys_flag & TRANSACTION_MASK
    return kind in {TRANSACTION_NONE, TRANSACTION_COMMIT}


def body_crc(body: bytes | memoryview) -> int:
    """Return the CRC that a record stores for a body: 31 bits of CRC-32 (cf. UtilAll.crc32)."""
    return crc32(body) & 0x7FFFFFFF


def tail(topic: bytes, properties: bytes, *, magic: int = MAGIC_V1) -> bytes:
    """Return what follows the body: topic and properties with their lengths.

    Raises:
        ValueError: one of them is too long for its length field.
    """
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise ValueError(
            f"the properties take {len(properties)} bytes, more than {MAX_PROPERTIES_BYTES}"
        )
    if magic == MAGIC_V2:
        length, longest = _LENGTH.pack(min(len(topic), 0xFFFF)), MAX_TOPIC_BYTES_V2
    else:
        length, longest = bytes((min(len(topic), 0xFF),)), MAX_TOPIC_LENGTH
    if len(topic) > longest:
        raise ValueError(f"the topic's name takes {len(topic)} bytes, more than {longest}")
    return b"".join((length, topic, _LENGTH.pack(len(properties)), properties))


def encode_record(
    *,
    topic: str | bytes,
    body: bytes | memoryview,
    properties: bytes = b"",
    born_host: bytes,
    store_host: bytes,
    queue_id: int = 0,
    flag: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    sys_flag: int = 0,
    born_timestamp_ms: int = 0,
    store_timestamp_ms: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    crc: int | None = None,
    magic: int = MAGIC_V1,
) -> bytes:
    """Return a whole record.

    Args:
        topic: its name.
        body: as stored: compressed if ``sys_flag`` has the bit ``COMPRESSED``.
        properties: the encoded text.
        born_host: 8 or 20 bytes, see ``host_bytes``; determines ``BORN_HOST_V6`` of ``sys_flag``.
        store_host: the same, for ``STORE_HOST_V6``.
        crc: of the body; None to compute it.
        magic: ``MAGIC_V1`` or ``MAGIC_V2``.

    Raises:
        ValueError: topic, properties or a host do not fit into their fields.
    """
    hosts_v6 = _v6_bit(born_host, BORN_HOST_V6) | _v6_bit(store_host, STORE_HOST_V6)
    rest = tail(topic.encode() if isinstance(topic, str) else topic, properties, magic=magic)
    if len(born_host) == len(store_host) == HOST_BYTES_V4:
        head = HEAD_V4
    else:
        head = Struct(f">IIIiiqqiq{len(born_host)}sq{len(store_host)}siqI")
    fixed = head.pack(
        head.size + len(body) + len(rest),
        magic,
        body_crc(body) if crc is None else crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag & ~HOSTS_V6_MASK | hosts_v6,
        born_timestamp_ms,
        born_host,
        store_timestamp_ms,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        len(body),
    )
    return b"".join((fixed, body, rest))


def _v6_bit(host: bytes, bit: int) -> int:
    if len(host) not in {HOST_BYTES_V4, HOST_BYTES_V6}:
        raise ValueError(f"a host takes 8 or 20 bytes, not {len(host)}: see host_bytes()")
    return bit if len(host) == HOST_BYTES_V6 else 0


def blank(remaining: int) -> bytes:
    """Return the blank record, which marks a file's last ``remaining`` bytes as unused.

    Raises:
        ValueError: fewer than ``MIN_TAIL_BYTES`` remain, which a writer must not let happen.
    """
    if remaining < MIN_TAIL_BYTES:
        raise ValueError(f"a blank record needs {MIN_TAIL_BYTES} bytes, {remaining} remain")
    return _START.pack(remaining, MAGIC_BLANK)


Layout: TypeAlias = tuple[int, int, int, int, int, int]
"""System flag, begin and end of the body, begin and end of the topic, end of the record.

All but the flag are positions in the buffer.
"""


def locate(buffer: Buffer, position: int, limit: int) -> Layout:
    """Find the parts of the record at ``position`` and check that their lengths match its size.

    Args:
        buffer: holds the record.
        position: where it begins, 0 or more.
        limit: the end of the valid bytes, within the buffer.

    Raises:
        RecordError: there is no whole record there, or its lengths contradict each other.
    """
    if limit - position < FIXED_BYTES_V4:
        raise _no_record(position, f"only {limit - position} bytes are left")
    size, magic, sys_flag, body_length = _SHAPE_V4.unpack_from(buffer, position)
    end = position + size
    if end > limit:
        raise _no_record(position, f"its size is {size}, {limit - position} bytes are left")
    body_at = position + HEAD_BYTES_V4
    if sys_flag & HOSTS_V6_MASK:
        body_at += _V6_EXTRA if sys_flag & BORN_HOST_V6 else 0
        body_at += _V6_EXTRA if sys_flag & STORE_HOST_V6 else 0
        if body_at > end:
            raise _no_record(position, f"its size is {size}, too small for IPv6 hosts")
        (body_length,) = _BODY_LENGTH.unpack_from(buffer, body_at - 4)
    # Checked before the topic's length is read, which is after the body.
    body_end = body_at + body_length
    if body_end + 3 > end:
        raise _no_record(position, f"its body length is {body_length}, its size {size}")
    if magic == MAGIC_V1:
        topic_at = body_end + 1
        topic_length = buffer[body_end]
        longest = MAX_TOPIC_LENGTH
    elif magic == MAGIC_V2:
        topic_at = body_end + 2
        (topic_length,) = _LENGTH.unpack_from(buffer, body_end)
        longest = MAX_TOPIC_BYTES_V2
    else:
        raise _no_record(position, f"its magic is {magic:#010x}")
    topic_end = topic_at + topic_length
    if topic_length > longest or topic_end + 2 > end:
        raise _no_record(position, f"its topic length is {topic_length}, its size {size}")
    (length,) = _LENGTH.unpack_from(buffer, topic_end)
    if length > MAX_PROPERTIES_BYTES or topic_end + 2 + length != end:
        raise _no_record(position, f"its properties length {length} does not match its size {size}")
    return sys_flag, body_at, body_end, topic_at, topic_end, end


def _no_record(position: int, why: str) -> RecordError:
    return RecordError(f"the bytes at {position} are not a whole record: {why}")


class FoundRecord(NamedTuple):
    """A valid record of ``size`` bytes."""

    size: int


class Blank(NamedTuple):
    """A blank record: the last ``size`` bytes of the file hold no message."""

    size: int


class End(NamedTuple):
    """The end of the written bytes: a size of 0, or no room for a record."""


class Invalid(NamedTuple):
    """Bytes that are not a valid record."""

    reason: str


Scan: TypeAlias = FoundRecord | Blank | End | Invalid


def examine(
    buffer: Buffer, position: int, *, check_crc: bool = True, limit: int | None = None
) -> Scan:
    """Return what the bytes at a position of the log are. Never raises.

    Args:
        buffer: a file of the commit log, or a part of it.
        position: the position in the buffer, 0 or more.
        check_crc: also compare the CRC of the body (checkCRCOnRecover).
        limit: the end of the valid bytes; None for the end of the buffer.
    """
    limit = len(buffer) if limit is None else limit
    if limit - position < MIN_TAIL_BYTES:
        return End()
    size, magic = _START.unpack_from(buffer, position)
    if magic == MAGIC_BLANK:
        if MIN_TAIL_BYTES <= size <= limit - position:
            return Blank(size)
        return Invalid(f"the blank record at {position} has the size {size}, which does not fit")
    if size == 0:
        return End()
    try:
        _, body_at, body_end, _, _, _ = locate(buffer, position, limit)
    except RecordError as error:
        return Invalid(str(error))
    if check_crc:
        actual = body_crc(memoryview(buffer)[body_at:body_end])
        (stored,) = _BODY_LENGTH.unpack_from(buffer, position + 8)
        if actual != stored:
            return Invalid(
                f"the body of the record at {position} has CRC {actual:#x}, not {stored:#x}"
            )
    return FoundRecord(size)


# Size, magic and physical offset.
_PLACED_HEAD: Final = Struct(">II20xq")
_MAGICS: Final = frozenset({MAGIC_V1, MAGIC_V2})
_MAGIC_AT: Final = 4
_MAGIC_PREFIX: Final = MAGIC_V1.to_bytes(4, "big")[:3]


def chain(data: memoryview, base: int, end: int) -> tuple[list[int], int]:
    """Return the positions of the records at the beginning of ``data``, and the end of the last.

    Only size, magic and physical offset of each record are checked, not the lengths within it or
    its CRC, so the walk takes a fraction of a microsecond per record.

    Args:
        data: bytes of the log.
        base: physical offset of the first byte.
        end: records at or after this physical offset are left out.
    """
    starts = []
    at, last = 0, min(len(data) - _PLACED_HEAD.size, end - base - 1)
    length, unpack, magics = len(data), _PLACED_HEAD.unpack_from, _MAGICS
    while at <= last:
        size, magic, physical = unpack(data, at)
        following = at + size
        if (
            physical != base + at
            or magic not in magics
            or size < FIXED_BYTES_V4
            or following > length
        ):
            break
        starts.append(at)
        at = following
    return starts, at


def find_heads(
    read: Callable[[int, int], Buffer], begin: int, stop: int, *, end: int, step: int
) -> Iterator[int]:
    """Yield the physical offsets in ``[begin, stop)`` at which a record may begin.

    A head is recognised by its magic and its physical offset; the caller has to check whether a
    record follows.

    Args:
        read: returns bytes of one log file, by physical offset and length.
        begin, stop: physical offsets that bound the search.
        end: physical offset of the end of the file's bytes.
        step: bytes to read at once, more than a head has.
    """
    while begin < stop:
        # Copied, because a memoryview has no ``find``.
        data = bytes(read(begin, min(step, end - begin)))
        at = data.find(_MAGIC_PREFIX, _MAGIC_AT) - _MAGIC_AT
        while 0 <= at <= len(data) - _PLACED_HEAD.size:
            _, magic, physical = _PLACED_HEAD.unpack_from(data, at)
            if magic in _MAGICS and physical == begin + at < stop:
                yield physical
            at = data.find(_MAGIC_PREFIX, at + _MAGIC_AT + 1) - _MAGIC_AT
        if begin + len(data) >= end:
            return
        # Steps overlap, so that a head across their border is found.
        begin += len(data) - _PLACED_HEAD.size + 1
