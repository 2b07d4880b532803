"""How values become message bodies and back.

A serde is any object with ``dumps`` and ``loads``; ``raw``, ``text``, ``json`` and ``msgpack`` are
ready, and ``typed`` makes one for a class of yours. Libraries are imported at the first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

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
    """Any msgpack value."""

    def dumps(self, value: Any, /) -> bytes:
        """Packs; raises TypeError for what msgpack can't say."""
        from msgspec import msgpack as codec  # noqa: PLC0415 - only who uses it pays for it

        return codec.encode(value)

    def loads(self, body: bytes, /) -> Any:
        """Unpacks; raises ValueError."""
        from msgspec import msgpack as codec  # noqa: PLC0415 - only who uses it pays for it

        return codec.decode(body)

    def __repr__(self) -> str:
        return "client.serde.msgpack"


class Typed(Generic[V]):
    """JSON or msgpack of one class, checked when read (see ``typed``)."""

    def __init__(self, kind: type[V], *, format: str = "json") -> None:  # noqa: A002
        import msgspec  # noqa: PLC0415 - only who uses it pays for its import

        codec: Any = {"json": msgspec.json, "msgpack": msgspec.msgpack}[format]
        self._kind = kind
        self._encode: Callable[[V], bytes] = codec.Encoder().encode
        self._decode: Callable[[bytes], V] = codec.Decoder(kind).decode

    def dumps(self, value: V, /) -> bytes:
        """Writes the value."""
        return self._encode(value)

    def loads(self, body: bytes, /) -> V:
        """Reads and checks; raises msgspec.ValidationError, which is a ValueError."""
        return self._decode(body)

    def __repr__(self) -> str:
        return f"client.serde.typed({self._kind.__name__})"


def typed(kind: type[V], *, format: str = "json") -> Typed[V]:  # noqa: A002
    """A serde for a dataclass, TypedDict or msgspec.Struct: ``Producer[Order]``.

    Args:
        kind: the class of all values.
        format: ``json`` or ``msgpack``.
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


raw = Raw()
text = Text()
json = Json()
msgpack = MsgPack()
