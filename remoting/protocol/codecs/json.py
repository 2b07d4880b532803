"""The JSON header codec: one object, with ext field values as text.

Keys are written in the order of RocketMQ's implementation: code, extFields, flag, language, opaque,
remark, serializeTypeCurrentRPC, version, without those that are null. They are read in any order:
unknown keys are ignored, missing ones are 0 (language JAVA), numbers may be texts, and ext values
may be bare numbers and booleans. Ext fields with a list or an object as value are ignored.

Ext fields keep their order and their repeats. The fast parser drops repeated keys, so the quotes in
the text are compared with the number of strings parsed: if they differ (repeats, escaped
backslashes, unknown keys with nested values), the standard library parses the text again, as pairs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from json import dumps
from typing import Any, Final

from remoting.protocol.accelerated import json_dumps, json_loads, json_loads_pairs
from remoting.protocol.codes import Language
from remoting.protocol.command import Command, parse_integer
from remoting.protocol.errors import FrameError
from remoting.protocol.limits import MAX_EXT_FIELDS, MAX_JSON_DEPTH

_INT32_END: Final = 1 << 31
_SCALARS: Final = {str, int, float, bool}
_LANGUAGES: Final = {language.name: language for language in Language}
_LANGUAGES_BY_NUMBER: Final = {int(language): language for language in Language}
_STRING_OR_BRACKET: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)


def encode_header(command: Command) -> bytes:
    """Encode a header. Raises ``ValueError`` or ``TypeError`` for a text with no UTF-8 form."""
    header: dict[str, object] = {"code": command.code}
    pairs = command.all_pairs()
    if pairs is not None:
        header["extFields"] = dict(pairs)
    header["flag"] = command.flag
    if command.language is not None:
        header["language"] = command.language.name
    header["opaque"] = command.opaque
    if command.remark is not None:
        header["remark"] = command.remark
    header["serializeTypeCurrentRPC"] = "JSON"
    header["version"] = command.version
    return json_dumps(header)


def decode_header(view: memoryview | bytes) -> Command:
    """Decode a header into a command without a body. Raises ``FrameError``."""
    data = bytes(view)
    header = _parse(data, json_loads)
    _check_depth(data)
    if type(header) is not dict:
        raise FrameError("the JSON header is not an object")
    pairs = _pairs(data, header)
    remark = header.get("remark")
    if remark is not None and type(remark) is not str:
        raise FrameError("the JSON header's remark is not a text")
    return Command(
        _integer(header, "code"),
        _integer(header, "opaque"),
        _integer(header, "flag"),
        _language(header.get("language", "JAVA")),
        _integer(header, "version"),
        remark,
        None,
        pairs,
    )


def _parse(data: bytes, loads: Callable[[bytes], Any]) -> Any:
    try:
        return loads(data)
    except ValueError as error:
        raise FrameError(f"the JSON header can't be read: {error}") from error


def _integer(header: dict[str, Any], key: str) -> int:
    value = header.get(key)
    if value is None:
        return 0
    if type(value) is str:
        with suppress(ValueError):
            return parse_integer(value, 32)
    if type(value) is int and -_INT32_END <= value < _INT32_END:
        return value
    raise FrameError(f"the JSON header's {key} is not a 32-bit integer")


def _language(value: object) -> Language | None:
    if type(value) is str:
        return _LANGUAGES.get(value)
    if type(value) is int:
        return _LANGUAGES_BY_NUMBER.get(value)
    if value is None:
        return None
    raise FrameError("the JSON header's language is not a name")


def _pairs(data: bytes, header: dict[str, Any]) -> tuple[tuple[str, str], ...] | None:
    ext_fields = header.get("extFields")
    if ext_fields is not None and type(ext_fields) is not dict:
        raise FrameError("the JSON header's extFields is not an object")
    if ext_fields is None:
        return None
    members = (
        ext_fields.items()
        if _strings_match(data, header, ext_fields)
        else dict(_parse(data, json_loads_pairs))["extFields"]
    )
    if len(members) > MAX_EXT_FIELDS:
        raise FrameError(f"{len(members)} ext fields are above {MAX_EXT_FIELDS}")
    return tuple(
        [
            (name, value if type(value) is str else dumps(value))
            for name, value in members
            if type(value) in _SCALARS
        ]
    )


def _strings_match(data: bytes, header: dict[str, Any], ext_fields: dict[str, Any]) -> bool:
    if b"\\\\" in data:
        return False
    strings = len(header) + len(ext_fields)
    for value in header.values():
        if type(value) is str:
            strings += 1
    for value in ext_fields.values():
        if type(value) is str:
            strings += 1
    return data.count(b'"') - data.count(b'\\"') == 2 * strings


def _check_depth(data: bytes) -> None:
    if data.count(b"{") + data.count(b"[") <= MAX_JSON_DEPTH:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(data):
        token = match[0]
        if token in b"[{":
            depth += 1
            if depth > MAX_JSON_DEPTH:
                raise FrameError(f"the JSON header nests deeper than {MAX_JSON_DEPTH} levels")
        elif token in b"]}":
            depth -= 1
