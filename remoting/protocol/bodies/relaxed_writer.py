"""A writer of JSON in the forms that Java's fastjson gives it.

Members of an object come sorted by name, as fastjson sorts a bean's getters; entries of a map keep
their order (``standard`` sorts them). Pretty text follows fastjson's serializers: a line break
stands before every key that is a string and before the end of anything not empty, but not before
a key that is a number or an object.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring, encode_basestring_ascii

import msgspec

from remoting.protocol.bodies.relaxed_reader import ObjectKey
from remoting.protocol.queue import MessageQueue


class RelaxedWriter:
    """Writes values in one of the forms; keeps nothing between calls."""

    __slots__ = ("_pretty", "_quote", "_standard")

    def __init__(self, *, standard: bool = False, pretty: bool = False) -> None:
        self._standard = standard
        self._pretty = pretty
        self._quote = encode_basestring_ascii if standard else encode_basestring

    def text(self, value: object, indent: int = 0) -> str:
        """The JSON text of a value that stands in a place indented by so many tabs."""
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
            entries = sorted(entries, key=_sort_key)
        members = [
            # Offsets by queue: there may be 65,536 of them.
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
"""Of a kind of object in the order they are written: name in quotes, attribute."""

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


def _sort_key(entry: tuple[object, object]) -> tuple[int, int, str]:
    key = entry[0]
    if isinstance(key, int):
        return 0, key, ""
    return 1, 0, str(key)
