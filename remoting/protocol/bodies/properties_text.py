"""Settings in the syntax of Java's ``Properties``: the body of requests about configurations.

Lines ``key=value`` (``:`` and white space are separators too), UTF-8. ``#`` and ``!`` begin a
comment, a backslash at the end of a line continues it, ``\\uXXXX`` and ``\\n`` are escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from remoting.protocol.bodies.relaxed_json import with_whole_surrogates
from remoting.protocol.errors import BodyError

_LINE_END = re.compile(r"\r\n|\n|\r")
_KEY = re.compile(r"((?:[^\\=: \t\f]++|\\.?)*+)[ \t\f]*+[=:]?[ \t\f]*+(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.?)", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_TO_ESCAPE_IN_KEY = re.compile(r"[\\=: \t\f\n\r#!]")
_TO_ESCAPE_IN_VALUE = re.compile(r"[\\\n\r]|^[ \t\f]")
_ESCAPES: Final = {value: f"\\{name}" for name, value in _ESCAPED.items()}


def parse(text: bytes | bytearray | memoryview | str) -> dict[str, str]:
    """Parse a properties text; the last of repeated keys counts.

    Raises:
        BodyError: the text is not UTF-8 or has a broken ``\\u`` escape.
    """
    if not isinstance(text, str):
        try:
            text = bytes(text).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BodyError(f"the properties text is not UTF-8 at byte {error.start}") from None
    settings: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        assert match is not None  # every part of the pattern may be empty
        settings[_unescaped(match[1])] = _unescaped(match[2])
    return settings


def render(settings: Mapping[str, str | None]) -> bytes:
    """Return the properties text of settings, in their order, without those that are None."""
    lines = [
        f"{_TO_ESCAPE_IN_KEY.sub(_escaped, key)}={_TO_ESCAPE_IN_VALUE.sub(_escaped, value)}\n"
        for key, value in settings.items()
        if value is not None
    ]
    return "".join(lines).encode("utf-8", "replace")


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines without comments and blank lines; continued lines are joined."""
    parts: list[str] = []
    for natural in _LINE_END.split(text):
        line = natural.lstrip(" \t\f")
        if not parts and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            parts.append(line[:-1])
            continue
        parts.append(line)
        if any(parts):
            yield "".join(parts)
        parts.clear()
    if any(parts):
        yield "".join(parts)


def _unescaped(part: str) -> str:
    if "\\" not in part:
        return part
    return with_whole_surrogates(_ESCAPE.sub(_unescaped_character, part))


def _unescaped_character(match: re.Match[str]) -> str:
    escape = match[1]
    if len(escape) > 1:
        return chr(int(escape[1:], 16))
    if escape == "u":
        raise BodyError("the properties text has a \\u escape without its four digits")
    return _ESCAPED.get(escape, escape)


def _escaped(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[0], f"\\{match[0]}")
