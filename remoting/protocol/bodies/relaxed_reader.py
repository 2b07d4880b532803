"""A reader of the JSON dialect that fastjson accepts.

One pass over the text by compiled patterns, one Python call per value. It recurses once per level
and stops at ``MAX_JSON_DEPTH``, long before Python's own limit. Its caller bounds the number of
values (``relaxed_json``).
"""

from __future__ import annotations

import math
import re
from typing import Final, TypeAlias

from remoting.protocol.errors import BodyError
from remoting.protocol.limits import MAX_JSON_DEPTH

MAX_NUMBER_DIGITS: Final = 4300
"""Of one number: converting takes quadratic time, so Python and msgspec have this limit too."""

Scalar: TypeAlias = str | int | float | bool | None
Key: TypeAlias = "str | int | ObjectKey"


class ObjectKey(tuple[tuple[str, Scalar], ...]):
    """An object in the place of a key: its members, sorted by name, hashable.

    Only the reader and tests meet it: typed bodies have ``MessageQueue`` in its place.
    """

    __slots__ = ()

    @classmethod
    def of(cls, members: object) -> ObjectKey | None:
        """The key with these members; None of anything but a dict of names to plain values."""
        if not isinstance(members, dict):
            return None
        for name, value in members.items():
            if not isinstance(name, str) or isinstance(value, dict | list):
                return None
        return cls(sorted(members.items()))


_SPACE = re.compile(r"[ \t\r\n\f\b]*+")
_DOUBLE_QUOTED = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_SINGLE_QUOTED = re.compile(r"'((?:[^'\\]++|\\.)*+)'", re.DOTALL)
_NUMBER = re.compile(r"-?[0-9]++(\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_INTEGER_KEY = re.compile(r"-?[0-9]++(?=[ \t\r\n\f\b]*+:)")
_NAME = re.compile(r"(?:[^\W\d]|\$)[\w$]*+")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")

_ESCAPED: Final = {
    "b": "\b",
    "f": "\f",
    "F": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    **{str(digit): chr(digit) for digit in range(8)},
}
_WORDS: Final[dict[str, Scalar]] = {"true": True, "false": False, "null": None}


class RelaxedReader:
    """Reads one text, once."""

    __slots__ = ("_position", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def read(self) -> object:
        """The one value of the text.

        Raises:
            BodyError: the text is not JSON, or nests too deep.
        """
        try:
            self._skip_space()
            value = self._value(1)
            self._skip_space()
        except RecursionError:
            raise BodyError("the JSON nests too deep for the stack left") from None
        if self._position != len(self._text):
            raise self._error("there is more text after the end of the JSON")
        return value

    def _value(self, depth: int) -> object:
        """The value at the position, which is not at white space."""
        first = self._peek()
        if first in {'"', "'"}:
            return self._string(first)
        if first in {"{", "["}:
            if depth > MAX_JSON_DEPTH:
                raise BodyError(f"the JSON nests deeper than {MAX_JSON_DEPTH} levels")
            self._position += 1
            return self._object(depth) if first == "{" else self._array(depth)
        return self._number_or_word()

    def _object(self, depth: int) -> dict[Key, object]:
        members: dict[Key, object] = {}
        self._skip_space()
        if self._took("}"):
            return members
        while True:
            key = self._key(depth)
            self._skip_space()
            if not self._took(":"):
                raise self._error("a colon is missing after a key")
            self._skip_space()
            members[key] = self._value(depth + 1)
            self._skip_space()
            if self._took("}"):
                return members
            if not self._took(","):
                raise self._error("a comma or the end of an object is missing")
            self._skip_space()

    def _array(self, depth: int) -> list[object]:
        items: list[object] = []
        self._skip_space()
        if self._took("]"):
            return items
        while True:
            items.append(self._value(depth + 1))
            self._skip_space()
            if self._took("]"):
                return items
            if not self._took(","):
                raise self._error("a comma or the end of an array is missing")
            self._skip_space()

    def _key(self, depth: int) -> Key:
        first = self._peek()
        if first in {'"', "'"}:
            return self._string(first)
        if first == "{":
            return self._object_key(depth)
        if match := _INTEGER_KEY.match(self._text, self._position):
            return self._integer(match[0], match.end())
        if match := _NAME.match(self._text, self._position):
            self._position = match.end()
            return match[0]
        raise self._error("a key is missing or can't be read")

    def _object_key(self, depth: int) -> ObjectKey:
        start = self._position
        key = ObjectKey.of(self._value(depth + 1))
        if key is None:
            raise BodyError(f"the key at character {start} is an object that is not flat")
        return key

    def _string(self, quote: str) -> str:
        pattern = _DOUBLE_QUOTED if quote == '"' else _SINGLE_QUOTED
        match = pattern.match(self._text, self._position)
        if match is None:
            raise self._error("a string has no end")
        value = match[1]
        if "\\" in value:
            value = with_whole_surrogates(_ESCAPE.sub(self._unescaped_character, value))
        self._position = match.end()
        return value

    def _unescaped_character(self, match: re.Match[str]) -> str:
        escape = match[1]
        if len(escape) > 1:
            return chr(int(escape[1:], 16))
        if escape in {"u", "x"}:
            raise self._error("a string has a broken escape")
        return _ESCAPED.get(escape, escape)

    def _number_or_word(self) -> Scalar:
        match = _NUMBER.match(self._text, self._position)
        if match is None:
            return self._word()
        digits = match[0]
        if match.end(1) < 0 and "e" not in digits and "E" not in digits:
            return self._integer(digits, match.end())
        self._check_length(digits)
        value = float(digits)
        if math.isinf(value):
            raise self._error("a number is out of range")
        self._position = match.end()
        return value

    def _integer(self, digits: str, end: int) -> int:
        self._check_length(digits)
        self._position = end
        return int(digits)

    def _check_length(self, digits: str) -> None:
        if len(digits) > MAX_NUMBER_DIGITS + digits.startswith("-"):
            raise self._error(f"a number has more than {MAX_NUMBER_DIGITS} digits")

    def _word(self) -> Scalar:
        match = _NAME.match(self._text, self._position)
        if match is None or match[0] not in _WORDS:
            raise self._error("a value is missing or can't be read")
        self._position = match.end()
        return _WORDS[match[0]]

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _took(self, mark: str) -> bool:
        if self._text.startswith(mark, self._position):
            self._position += 1
            return True
        return False

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._position)
        assert match is not None  # the pattern matches the empty text
        self._position = match.end()

    def _error(self, what: str) -> BodyError:
        where = f"at character {self._position} of {len(self._text)}"
        return BodyError(f"{what}, {where}")


def with_whole_surrogates(text: str) -> str:
    """The text with surrogate pairs made one character and halves of them replaced by U+FFFD."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
