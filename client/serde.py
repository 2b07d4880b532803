"""How values become message bodies and back.

A serde is any object with ``dumps`` and ``loads``; ``raw``, ``text``, ``json`` and ``msgpack`` are
ready, and ``typed`` makes one for a class of yours. Libraries are imported at the first use.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from client.errors import UsageError

Format: TypeAlias = Literal["json", "msgpack"]

V = TypeVar("V")
S = TypeVar("S")


class Serde(Protocol[S]):
    """Turns values into bytes and back; both may raise what they like on bad input."""

    def dumps(self, value: S, /) -> bytes:
        """The body for a value."""
        ...

    def loads(self, body: bytes, /) -> S:
        """The value of a body."""
        ...


class Raw:
    """Bodies as they are."""

    def dumps(self, value: bytes, /) -> bytes:
        """The bytes themselves."""
        return value

    def loads(self, body: bytes, /) -> bytes:
        """The bytes themselves."""
        return body

    def __repr__(self) -> str:
        return "client.serde.raw"


class Text:
    """UTF-8 text."""

    def dumps(self, value: str, /) -> bytes:
        """Encodes as UTF-8."""
        return value.encode()

    def loads(self, body: bytes, /) -> str:
        """Decodes UTF-8; raises UnicodeDecodeError."""
        return body.decode()

    def __repr__(self) -> str:
        return "client.serde.text"


class Json:
    """Any JSON value; dataclasses, datetimes and UUIDs are written too where orjson is there."""

    def dumps(self, value: Any, /) -> bytes:
        """Writes compact JSON; raises TypeError for what JSON can't say."""
        return _json()[0](value)

    def loads(self, body: bytes, /) -> Any:
        """Reads JSON; raises ValueError."""
        return _json()[1](body)

    def __repr__(self) -> str:
        return "client.serde.json"


class MsgPack:
    """Any msgpack value; dataclasses, datetimes and UUIDs are written too."""

    def dumps(self, value: Any, /) -> bytes:
        """Packs; raises TypeError for what msgpack can't say."""
        return _msgpack()[0](value)

    def loads(self, body: bytes, /) -> Any:
        """Unpacks; raises ValueError."""
        return _msgpack()[1](body)

    def __repr__(self) -> str:
        return "client.serde.msgpack"


class Typed(Generic[V]):
    """JSON or msgpack of one class, checked when read (see ``typed``)."""

    def __init__(self, kind: type[V], *, format: Format = "json") -> None:  # noqa: A002
        if format not in ("json", "msgpack"):
            raise UsageError(f"format can't be {format!r}", hint="use json or msgpack")
        codec = {"json": _json_of, "msgpack": _msgpack_of}[format]
        self._kind = kind
        self._encode, self._decode = codec(kind)

    def dumps(self, value: V, /) -> bytes:
        """Writes the value."""
        return self._encode(value)

    def loads(self, body: bytes, /) -> V:
        """Reads and checks; raises ValueError, for a wrong type msgspec.ValidationError."""
        return self._decode(body)

    def __repr__(self) -> str:
        return f"client.serde.typed({self._kind.__name__})"


def typed(kind: type[V], *, format: Format = "json") -> Typed[V]:  # noqa: A002
    """A serde for a dataclass, TypedDict or msgspec.Struct: ``Producer[Order]``.

    Args:
        kind: the class of all values.
        format: ``json`` or ``msgpack``.

    Raises:
        UsageError: ``format`` is another.
    """
    return Typed(kind, format=format)


def _json() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    try:
        from orjson import dumps, loads  # noqa: PLC0415 - the standard library's where it's missing
    except ImportError:
        import json as standard  # noqa: PLC0415

        return lambda value: standard.dumps(
            value, separators=(",", ":"), ensure_ascii=False
        ).encode(), standard.loads
    return dumps, loads


def _msgpack() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    from msgpack import packb, unpackb  # noqa: PLC0415 - only who uses it pays for it
    from msgspec import to_builtins  # noqa: PLC0415

    def plain(value: object) -> object:
        # A datetime with a time zone is a msgpack timestamp; one without can only be text.
        if isinstance(value, datetime):
            return value.isoformat()
        return to_builtins(value, builtin_types=(bytes, bytearray, datetime))

    return (
        partial(packb, datetime=True, default=plain),
        partial(unpackb, timestamp=3, strict_map_key=False),
    )


def _json_of(kind: type[V]) -> tuple[Callable[[V], bytes], Callable[[bytes], V]]:
    import msgspec  # noqa: PLC0415 - only who uses it pays for its import

    return msgspec.json.Encoder().encode, msgspec.json.Decoder(kind).decode


def _msgpack_of(kind: type[V]) -> tuple[Callable[[V], bytes], Callable[[bytes], V]]:
    from msgspec import convert  # noqa: PLC0415 - only who uses it pays for its import

    dumps, loads = _msgpack()
    return dumps, lambda body: convert(loads(body), kind)


raw = Raw()
text = Text()
json = Json()
msgpack = MsgPack()
