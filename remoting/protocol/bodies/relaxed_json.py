"""Reading and writing the JSON dialect of fastjson.

``loads`` first tries msgspec, which is strict and fast, and then ``RelaxedReader``, which accepts
fastjson's dialect: one pass over the text with compiled patterns, one Python call per value. It
recurses once per level and stops at ``MAX_JSON_DEPTH``, far below Python's recursion limit.
``loads`` bounds the number of values before it parses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Final, TypeAlias

import msgspec

from remoting.protocol.errors import BodyError
from remoting.protocol.limits import MAX_JSON_DEPTH, MAX_JSON_NODES
from remoting.protocol.queue import MessageQueue

MAX_NUMBER_DIGITS: Final = 4300
"""The limit of Python and msgspec too, because conversion takes quadratic time."""

Scalar: TypeAlias = str | int | float | bool | None
Key: TypeAlias = "str | int | ObjectKey"


class ObjectKey(tuple[tuple[str, Scalar], ...]):
    """An object used as a key of a map: its members sorted by name, hashable.

    Only parsed trees contain it: typed bodies have ``MessageQueue`` instead.
    """

    __slots__ = ()

    @classmethod
    def of(cls, members: object) -> ObjectKey | None:
        """Return the key with these members; None unless they are a dict of names to scalars."""
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
    """A parser of one text."""

    __slots__ = ("_position", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def read(self) -> object:
        """Parse the text and return its value.

        Raises:
            BodyError: the text is not JSON in fastjson's dialect, or nests too deep.
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
        """Parse the value at the position, which must not be at white space."""
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
            start = self._position
            key = ObjectKey.of(self._value(depth + 1))
            if key is None:
                raise BodyError(f"the key at character {start} is an object that is not flat")
            return key
        if match := _INTEGER_KEY.match(self._text, self._position):
            return self._integer(match[0], match.end())
        if match := _NAME.match(self._text, self._position):
            self._position = match.end()
            return match[0]
        raise self._error("a key is missing or can't be read")

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
            match = _NAME.match(self._text, self._position)
            if match is None or match[0] not in _WORDS:
                raise self._error("a value is missing or can't be read")
            self._position = match.end()
            return _WORDS[match[0]]
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
    """Return the text with surrogate pairs combined and lone surrogates replaced by U+FFFD."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class RelaxedWriter:
    """Writes values as JSON, with the options of ``dumps``. Stateless."""

    __slots__ = ("_pretty", "_quote", "_standard")

    def __init__(self, *, standard: bool = False, pretty: bool = False) -> None:
        self._standard = standard
        self._pretty = pretty
        self._quote = encode_basestring_ascii if standard else encode_basestring

    def text(self, value: object, indent: int = 0) -> str:
        """Return the JSON of a value that is indented by ``indent`` tabs."""
        kind = type(value)
        if kind is str:
            return self._quote(value)  # type: ignore[arg-type]  # its type was just compared
        if kind is int:
            return str(value)
        if value is None:
            return "null"
        if kind is bool:
            return "true" if value else "false"
        if kind is dict:
            return self._map(value, indent)  # type: ignore[arg-type]  # its type was just compared
        if kind is list:
            return self._array(value, indent)  # type: ignore[arg-type]  # as above
        return self._uncommon(value, indent)

    def _uncommon(self, value: object, indent: int) -> str:
        if isinstance(value, msgspec.Struct | MessageQueue):
            return self._object(value, indent)
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else "null"
        if isinstance(value, str):
            return self._quote(str(value))
        if isinstance(value, int):
            return str(int(value))
        if isinstance(value, ObjectKey):
            return self._map(dict(value), indent)
        if isinstance(value, Mapping):
            return self._map(value, indent)
        if isinstance(value, tuple | set | frozenset):
            return self._array(value, indent)
        raise TypeError(f"{type(value).__name__} has no JSON form")

    def _object(self, value: msgspec.Struct | MessageQueue, indent: int) -> str:
        before = self._line(indent + 1)
        members = [
            f"{before}{name}:{self.text(member, indent + 1)}"
            for name, attribute in _members_of(value)
            if (member := getattr(value, attribute)) is not None
        ]
        return self._closed("{", members, "}", indent)

    def _map(self, value: Mapping[object, object], indent: int) -> str:
        entries: Iterable[tuple[object, object]] = value.items()
        if self._standard:
            # Number keys first, in numeric order.
            entries = sorted(
                entries,
                key=lambda entry: (
                    (0, entry[0], "") if isinstance(entry[0], int) else (1, 0, str(entry[0]))
                ),
            )
        members = [
            # A fast path for offsets by queue, of which there may be 65,536.
            f"{key}:{member}"
            if type(key) is int and type(member) is int and not self._standard
            else f"{self._key(key, indent + 1)}:{self.text(member, indent + 1)}"
            for key, member in entries
            if member is not None
        ]
        return self._closed("{", members, "}", indent)

    def _key(self, key: object, indent: int) -> str:
        if isinstance(key, str):
            return f"{self._line(indent)}{self._quote(str(key))}"
        if isinstance(key, bool) or not isinstance(key, int | ObjectKey | MessageQueue):
            raise TypeError(f"a key of type {type(key).__name__} has no JSON form")
        if not self._standard:
            return self.text(key, indent)
        return f"{self._line(indent)}{self._quote(RelaxedWriter().text(key))}"

    def _array(self, items: Iterable[object], indent: int) -> str:
        if isinstance(items, tuple):
            # An array of Java's: fastjson breaks the lines of lists alone.
            return f"[{','.join(self.text(item, indent) for item in items)}]"
        before = self._line(indent + 1)
        return self._closed(
            "[", [f"{before}{self.text(item, indent + 1)}" for item in items], "]", indent
        )

    def _closed(self, opening: str, parts: list[str], closing: str, indent: int) -> str:
        if not parts:
            return opening + closing
        return f"{opening}{','.join(parts)}{self._line(indent)}{closing}"

    def _line(self, indent: int) -> str:
        return "\n" + "\t" * indent if self._pretty else ""


Members = tuple[tuple[str, str], ...]
"""The members of an object type in the order they are written: name in quotes, attribute."""

_MEMBERS: dict[type, Members] = {
    MessageQueue: (
        ('"brokerName"', "broker_name"),
        ('"queueId"', "queue_id"),
        ('"topic"', "topic"),
    )
}


def _members_of(value: msgspec.Struct | MessageQueue) -> Members:
    members = _MEMBERS.get(type(value))
    if members is None:
        assert isinstance(value, msgspec.Struct)
        pairs = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        members = tuple((encode_basestring(name), attribute) for name, attribute in sorted(pairs))
        _MEMBERS[type(value)] = members
    return members


__all__ = ["ObjectKey", "dumps", "loads"]

_VALUES = re.compile(
    rb"""(?:"(?:[^"\\]++|\\.)*+"?|'(?:[^'\\]++|\\.)*+'?|[^"'{\[,]++)++|([{\[,])""", re.DOTALL
)
"""What each value but the outermost follows, as a group; and all that is between, strings at once.

Also matches unterminated strings, or each quote in one would be tried as a new beginning.
"""

_CONTAINERS = frozenset((dict, list))

Buffer: TypeAlias = bytes | bytearray | memoryview


def loads(data: Buffer, *, max_nodes: int = MAX_JSON_NODES) -> object:
    """Parse one JSON value into dicts, lists, strings, numbers, booleans and None.

    Raises:
        BodyError: it is not JSON even in fastjson's dialect, is not UTF-8, nests deeper than
            ``MAX_JSON_DEPTH`` or has more than ``max_nodes`` values.
    """
    raw = bytes(data)
    openings = raw.count(b"{") + raw.count(b"[")
    # Bound the number of values before parsing allocates memory for them: each value but the
    # outermost follows an opening bracket or a comma. Strings are looked at only if there are too
    # many of these.
    if openings + raw.count(b",") >= max_nodes:
        counted = (match for match in _VALUES.finditer(raw) if match.lastindex)
        if next(islice(counted, max_nodes - 1, None), None) is not None:
            raise BodyError(f"the JSON has more than {max_nodes} values")
    try:
        tree: object = msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BodyError(f"the JSON is not UTF-8 at byte {error.start}") from None
        return RelaxedReader(text).read()
    if openings > MAX_JSON_DEPTH and _is_deeper_than(tree, MAX_JSON_DEPTH):
        raise BodyError(f"the JSON nests deeper than {MAX_JSON_DEPTH} levels")
    return tree


def dumps(tree: object, *, standard: bool = False, pretty: bool = False) -> bytes:
    """Write a value as JSON; it may contain typed bodies and message queues.

    Members that are None are omitted. ``standard`` writes RFC 8259 JSON for readers that need it:
    all keys quoted, entries of maps sorted, non-ASCII characters as ``\\u`` escapes, and an object
    used as a key as the text of its JSON. ``pretty`` adds line breaks and indents with tabs, as in
    RocketMQ's configuration files.

    Raises:
        TypeError: a value has a type without a JSON form.
    """
    text = RelaxedWriter(standard=standard, pretty=pretty).text(tree)
    return text.encode("utf-8", "replace")


def _is_deeper_than(tree: object, limit: int) -> bool:
    level = [tree]
    for _ in range(limit):
        children: list[object] = []
        for node in level:
            if type(node) is dict:
                children += [child for child in node.values() if type(child) in _CONTAINERS]
            elif type(node) is list:
                children += [child for child in node if type(child) in _CONTAINERS]
        if not children:
            return False
        level = children
    return True
