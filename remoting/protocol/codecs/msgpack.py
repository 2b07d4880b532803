"""PocketMQ's own header codec: a command as one msgpack array with typed fields.

``[code, flag, opaque, language, version, remark, fields, extra]``

``language`` is the number or nil. ``fields`` holds the typed header's values in declared order:
absent ones are nil, trailing absent ones are omitted, and surplus ones are ignored; nil when there
is no typed header. ``extra`` is a map of all other ext fields, nil when there are none.

Input is bounded: nesting and ext types are refused during parsing, wrong types and lengths before a
command is made. The type of each field is checked when the typed header is read.
"""

from __future__ import annotations

from itertools import count
from typing import Final, NoReturn

from msgpack import packb, unpackb

from remoting.protocol.codes import Language, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.errors import FrameError
from remoting.protocol.limits import MAX_EXT_FIELDS

_LENGTH: Final = 8
_MAX_CONTAINERS: Final = 3
"""The header's array, its fields and its extra fields."""

_INT32_END: Final = 1 << 31
_LANGUAGES: Final = {int(language): language for language in Language}
_SCALARS: Final = frozenset({bool, int, float, str, type(None)})


def encode_header(command: Command) -> bytes:
    """Encode a header. Raises ``ValueError`` for a text that has no UTF-8 form."""
    if command.header is not None:
        values: object = command.header.values()
    else:
        values = command.values
    header = (
        command.code,
        command.flag,
        command.opaque,
        command.language,
        command.version,
        command.remark,
        values,
        None if command.pairs is None else dict(command.pairs),
    )
    # Not a shared Packer: it is not thread-safe, and blocking clients run in several threads.
    return bytes(packb(header))


def decode_header(view: memoryview | bytes) -> Command:
    """Decode a header into a command without a body. Raises ``FrameError``."""
    containers = count(1)

    def bounded(container: object) -> object:
        # Called for the innermost container first, so a deeply nested header fails early.
        if next(containers) > _MAX_CONTAINERS:
            raise ValueError("too many lists and maps")
        return container

    try:
        header = unpackb(
            view,
            list_hook=bounded,
            object_hook=bounded,
            ext_hook=_refuse_ext,
            max_array_len=MAX_EXT_FIELDS,
            max_map_len=MAX_EXT_FIELDS,
            max_ext_len=0,
        )
    except ValueError as error:
        raise FrameError(f"the msgpack header can't be read: {error}") from error
    if type(header) is not list or len(header) != _LENGTH:
        raise FrameError(f"the msgpack header is not an array of {_LENGTH}")
    code, flag, opaque, language, version, remark, fields, extra = header
    if remark is not None and type(remark) is not str:
        raise FrameError("the msgpack header's remark is not a text")
    return Command(
        _integer("code", code),
        _integer("opaque", opaque),
        _integer("flag", flag),
        None if language is None else _LANGUAGES.get(_integer("language", language)),
        _integer("version", version),
        remark,
        None,
        _pairs(extra),
        _values(fields),
        b"",
        SerializeType.MSGPACK,
    )


def _refuse_ext(code: int, data: bytes) -> NoReturn:  # noqa: ARG001 - msgpack's signature
    raise ValueError("ext types are not allowed")


def _integer(name: str, value: object) -> int:
    if type(value) is int and -_INT32_END <= value < _INT32_END:
        return value
    raise FrameError(f"the msgpack header's {name} is not a 32-bit integer")


def _values(fields: object) -> tuple[bool | int | float | str | None, ...] | None:
    if fields is None:
        return None
    if type(fields) is list and _SCALARS.issuperset(map(type, fields)):
        return tuple(fields)
    raise FrameError("the msgpack header's fields are not an array of numbers, texts and booleans")


def _pairs(extra: object) -> tuple[tuple[str, str], ...] | None:
    if extra is None:
        return None
    if type(extra) is dict and {str}.issuperset(map(type, (*extra, *extra.values()))):
        return tuple(extra.items())
    raise FrameError("the msgpack header's extra fields are not a map of texts")
