"""The properties syntax in which RocketMQ keeps its configuration.

Lines ``key=value`` (also ``key: value`` and ``key value``), comments after ``#`` or ``!``, a
backslash at a line's end continues it, ``\\t \\n \\r \\f \\uXXXX`` are escapes and a backslash
before anything else stands for that character (cf. java.util.Properties). Text is UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_BLANK = " \t\f"
_SEPARATOR = re.compile(r"(?<!\\)(?:\\\\)*[ \t\f=:]")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.|$)", re.DOTALL)
_NAMED_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_QUOTED = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"})
_QUOTED_IN_KEYS = _QUOTED | str.maketrans({mark: "\\" + mark for mark in " =:#!"})


def parse_properties(text: str) -> dict[str, str]:
    """Read properties text; of a repeated key the last value counts. Never raises."""
    return dict(_split(line) for line in _logical_lines(text))


def format_properties(values: Mapping[str, str]) -> str:
    """Write values as properties text, a line each, such that reading gives them back."""
    return "".join(
        f"{key.translate(_QUOTED_IN_KEYS)}={_quote(value)}\n" for key, value in values.items()
    )


def _logical_lines(text: str) -> Iterator[str]:
    pending = ""
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(_BLANK)
        if not pending and (not line or line[0] in "#!"):
            continue
        line = pending + line
        if _is_continued(line):
            pending = line[:-1]
            continue
        pending = ""
        yield line
    if pending:
        yield pending


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    match = _SEPARATOR.search(line)
    if match is None:
        return _unescape(line), ""
    end = match.end() - 1
    rest = line[end:].lstrip(_BLANK)
    if rest[:1] in {"=", ":"}:
        rest = rest[1:].lstrip(_BLANK)
    return _unescape(line[:end]), _unescape(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    units = _ESCAPE.sub(_escaped_character, text)
    # \\uXXXX names UTF-16 units: pairs become one character, a lone half the replacement mark.
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _escaped_character(match: re.Match[str]) -> str:
    escape = match.group(1)
    if len(escape) == 5:
        return chr(int(escape[1:], 16))
    return _NAMED_ESCAPES.get(escape, escape)


def _quote(value: str) -> str:
    quoted = value.translate(_QUOTED)
    return "\\" + quoted if quoted[:1] == " " else quoted
