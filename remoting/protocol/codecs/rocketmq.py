"""The codec of RocketMQ's binary header (cf. RocketMQSerializable).

=====  =====  =========================================================
 order  size   field (big endian)
=====  =====  =========================================================
 1      2      code, int16
 2      1      language's number
 3      2      version, int16
 4      4      opaque
 5      4      flag
 6      4 + n  remark: byte length, bytes; length 0: none
 7      4 + n  ext fields: byte length, entries; length 0: none
=====  =====  =========================================================

An entry is an int16 key length, the key, an int32 value length, the value. Keys may repeat:
RocketMQ's fast encoder of send and pull headers writes each field, and then the ext fields, into
which a signing hook may have copied the same fields. Order and repeats are kept, so that encoding a
decoded header returns the same bytes.

A code is truncated to 16 bits. The POP codes, which do not fit, are restored in requests from their
low 16 bits.
"""

from __future__ import annotations

import struct
from typing import Final

from remoting.protocol.codes import FLAG_RESPONSE, Language, RequestCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.errors import FrameError
from remoting.protocol.limits import MAX_EXT_FIELDS

_HEAD: Final = struct.Struct(">hBhiii")
_HEAD_OUT: Final = struct.Struct(">HBHiii")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_LONGEST_KEY: Final = 32767
_SMALLEST_ENTRY_BYTES: Final = _INT16.size + _INT32.size

_LANGUAGES: Final = {int(language): language for language in Language}
_CUT_CODES: Final = {code & 0xFFFF: code.value for code in RequestCode if code > 0x7FFF}


def encode_header(command: Command) -> bytes:
    """Encode a header. Raises ``ValueError`` for a key that is too long or has no UTF-8 form."""
    language = Language.OTHER if command.language is None else command.language
    remark = command.remark.encode() if command.remark else b""
    parts: list[bytes] = []
    for name, text in command.all_pairs() or ():
        key = name.encode()
        value = text.encode()
        if len(key) > _LONGEST_KEY:
            raise ValueError(f"the ext field {name[:40]}... has a name of {len(key)} bytes")
        parts += (_INT16.pack(len(key)), key, _INT32.pack(len(value)), value)
    ext_fields = b"".join(parts)
    return b"".join(
        (
            _HEAD_OUT.pack(
                command.code & 0xFFFF,
                language,
                command.version & 0xFFFF,
                command.opaque,
                command.flag,
                len(remark),
            ),
            remark,
            _INT32.pack(len(ext_fields)),
            ext_fields,
        )
    )


def decode_header(view: memoryview | bytes) -> Command:
    """Decode a header into a command without a body. Raises ``FrameError``."""
    data = bytes(view)
    if len(data) < _HEAD.size + _INT32.size:
        raise FrameError(f"a binary header of {len(data)} bytes is too short")
    code, language, version, opaque, flag, remark_length = _HEAD.unpack_from(data)
    remark_end = _HEAD.size + remark_length
    ext_start = remark_end + _INT32.size
    if remark_length < 0 or ext_start > len(data):
        raise FrameError(f"a remark of {remark_length} bytes in a binary header of {len(data)}")
    (ext_length,) = _INT32.unpack_from(data, remark_end)
    if ext_length < 0 or ext_start + ext_length > len(data):
        raise FrameError(f"ext fields of {ext_length} bytes in a binary header of {len(data)}")
    try:
        remark = data[_HEAD.size : remark_end].decode() if remark_length else None
        pairs = _decode_pairs(data, ext_start, ext_start + ext_length) if ext_length else None
    except UnicodeDecodeError as error:
        raise FrameError("a text in the binary header is not UTF-8") from error
    return Command(
        code if flag & FLAG_RESPONSE else _CUT_CODES.get(code, code),
        opaque,
        flag,
        _LANGUAGES.get(language),
        version,
        remark,
        None,
        pairs,
        None,
        b"",
        SerializeType.ROCKETMQ,
    )


def _decode_pairs(data: bytes, position: int, end: int) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    while position < end:
        if end - position < _SMALLEST_ENTRY_BYTES:
            raise FrameError("an ext field of the binary header is cut off")
        (key_length,) = _INT16.unpack_from(data, position)
        key_start = position + _INT16.size
        key_end = key_start + key_length
        value_start = key_end + _INT32.size
        if key_length < 0 or value_start > end:
            raise FrameError(f"an ext field's name of {key_length} bytes is cut off")
        (value_length,) = _INT32.unpack_from(data, key_end)
        position = value_start + value_length
        if value_length < 0 or position > end:
            raise FrameError(f"an ext field's value of {value_length} bytes is cut off")
        pairs.append((data[key_start:key_end].decode(), data[value_start:position].decode()))
        if len(pairs) > MAX_EXT_FIELDS:
            raise FrameError(f"more than {MAX_EXT_FIELDS} ext fields")
    return tuple(pairs)
