"""``deliveryProgress``: up to where each delay level is delivered; PocketMQ's own.

===========  ==================================================================
type         content, 4096 bytes long, big endian
===========  ==================================================================
8 bytes      ``PMQDELAY``
int64        end of the commit log after these deliveries
int32        number of levels that follow
int32        CRC-32 of all other bytes up to the last level
12 each      int32 level, int64 queue offset of its next message
===========  ==================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final

from remoting.protocol.accelerated import crc32

FILE_NAME: Final = "deliveryProgress"
FILE_BYTES: Final = 4096

_MAGIC: Final = b"PMQDELAY"
_HEAD: Final = Struct(">8sqiI")
_LEVEL: Final = Struct(">iq")
_MOST: Final = (FILE_BYTES - _HEAD.size) // _LEVEL.size


def encode(offsets: Mapping[int, int], log_end: int) -> bytes:
    """Return the content of ``deliveryProgress``; levels that don't fit are left out."""
    levels = sorted(offsets.items())[:_MOST]
    body = b"".join(_LEVEL.pack(level, offset) for level, offset in levels)
    crc = crc32(_HEAD.pack(_MAGIC, log_end, len(levels), 0) + body)
    return _HEAD.pack(_MAGIC, log_end, len(levels), crc) + body


def decode(data: bytes | memoryview, log_end: int) -> dict[int, int]:
    """Return the offsets in ``deliveryProgress``, by level.

    The result is empty if the file is invalid or is ahead of a commit log that ends at ``log_end``.
    Never raises, whatever the bytes are.
    """
    if len(data) < _HEAD.size:
        return {}
    magic, end, count, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC or not 0 <= count <= (len(data) - _HEAD.size) // _LEVEL.size:
        return {}
    body = bytes(data[_HEAD.size : _HEAD.size + count * _LEVEL.size])
    if crc != crc32(_HEAD.pack(_MAGIC, end, count, 0) + body) or end > log_end:
        return {}
    return dict(_LEVEL.iter_unpack(body))
