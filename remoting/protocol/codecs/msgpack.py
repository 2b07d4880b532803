"""Our own header codec: the same command as one msgpack array, its fields typed.

``[code, flag, opaque, language, version, remark, fields, extra]``

``language`` is the number or nil. ``fields`` holds the typed header's values in declared order:
absent ones nil, absent ones at the end cut, more than the reader knows ignored; nil when there is
no typed header. ``extra`` is a map of all other ext fields, nil when there are none.

The schema below is the limit on depth and types: anything nested, and every ext type, is refused
while it is read. A field's own type is checked when the typed header is read.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from remoting.protocol.codes import Language, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.errors import FrameError
from remoting.protocol.limits import MAX_EXT_FIELDS

_Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
_Fields = Annotated[list[bool | int | float | str | None], msgspec.Meta(max_length=MAX_EXT_FIELDS)]
_Extra = Annotated[dict[str, str], msgspec.Meta(max_length=MAX_EXT_FIELDS)]


class _Wire(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    code: _Int32
    flag: _Int32
    opaque: _Int32
    language: _Int32 | None
    version: _Int32
    remark: str | None
    fields: _Fields | None
    extra: _Extra | None


_LANGUAGES: Final = {int(language): language for language in Language}
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Wire).decode


def encode_header(command: Command) -> bytes:
    """The header's bytes. Raises ``ValueError`` for a text without a UTF-8 form."""
    if command.header is not None:
        values: object = command.header.values()
    else:
        values = command.values
    return _encode(
        (
            command.code,
            command.flag,
            command.opaque,
            command.language,
            command.version,
            command.remark,
            values,
            None if command.pairs is None else dict(command.pairs),
        )
    )


def decode_header(view: memoryview | bytes) -> Command:
    """The command of a header. Raises ``FrameError``."""
    try:
        wire = _decode(view)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"the msgpack header can't be read: {error}") from error
    return Command(
        wire.code,
        wire.opaque,
        wire.flag,
        None if wire.language is None else _LANGUAGES.get(wire.language),
        wire.version,
        wire.remark,
        None,
        None if wire.extra is None else tuple(wire.extra.items()),
        None if wire.fields is None else tuple(wire.fields),
        b"",
        SerializeType.MSGPACK,
    )
