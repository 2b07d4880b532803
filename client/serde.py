"""Converting values to message bodies and back.

A serde is any object with ``dumps`` and ``loads``: one of ``raw``, ``text``, ``json`` and
``msgpack``, the result of ``typed`` for one class, or the application's own. Libraries are imported
on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from client.errors import UsageError

Format: TypeAlias = Literal["json", "msgpack"]

V = TypeVar("V")
S = TypeVar("S")


class Serde(Protocol[S]):
    """Converts values to bytes and back; both methods may raise any exception on bad input."""

    def dumps(self, value: S, /) -> bytes:
        """Return the body for a value."""
        ...

    def loads(self, body: bytes, /) -> S:
        """Return the value of a body."""
        ...


class _Codec(Generic[S]):
    """A serde made of two functions, which are imported on first use."""

    def __init__(
        self, name: str, functions: Callable[[], tuple[Callable[[S], bytes], Callable[[bytes], S]]]
    ) -> None:
        self._name = name
        self._functions = functions

    @cached_property
    def dumps(self) -> Callable[[S], bytes]:
        return self._functions()[0]

    @cached_property
    def loads(self) -> Callable[[bytes], S]:
        return self._functions()[1]

    def __repr__(self) -> str:
        return f"client.serde.{self._name}"


class Typed(Generic[V]):
    """JSON or msgpack for one class, validated on reading (see ``typed``)."""

    def __init__(self, kind: type[V], *, format: Format = "json") -> None:  # noqa: A002
        if format not in ("json", "msgpack"):
            raise UsageError(f"format can't be {format!r}", hint="use json or msgpack")
        import msgspec  # noqa: PLC0415 - slow to import, and rarely needed

        self._kind = kind
        self._encode: Callable[[V], bytes] = msgspec.json.Encoder().encode
        self._decode: Callable[[bytes], V] = msgspec.json.Decoder(kind).decode
        if format == "msgpack":
            self._encode, loads = _msgpack()
            self._decode = lambda body: msgspec.convert(loads(body), kind)

    def dumps(self, value: V, /) -> bytes:
        """Encode the value."""
        return self._encode(value)

    def loads(self, body: bytes, /) -> V:
        """Decode and validate; raises ValueError, for a wrong type msgspec.ValidationError."""
        return self._decode(body)

    def __repr__(self) -> str:
        return f"client.serde.typed({self._kind.__name__})"


def typed(kind: type[V], *, format: Format = "json") -> Typed[V]:  # noqa: A002
    """Return a serde for a dataclass, TypedDict or msgspec.Struct: ``Producer[Order]``.

    Args:
        kind: the class of all values.
        format: ``json`` or ``msgpack``.

    Raises:
        UsageError: ``format`` is neither.
    """
    return Typed(kind, format=format)


def _json() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    # orjson reads whole numbers of more than 64 bits as floats.
    from msgspec.json import decode  # noqa: PLC0415 - rarely needed

    try:
        from orjson import dumps  # noqa: PLC0415 - optional; else the standard library
    except ImportError:
        import json as standard  # noqa: PLC0415

        return lambda value: standard.dumps(
            value, separators=(",", ":"), ensure_ascii=False
        ).encode(), decode
    return dumps, decode


def _msgpack() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    from msgpack import packb, unpackb  # noqa: PLC0415 - rarely needed
    from msgspec import to_builtins  # noqa: PLC0415

    def plain(value: object) -> object:
        # A msgpack timestamp is an instant, so a datetime without a time zone is written as text.
        if isinstance(value, datetime):
            return value.isoformat()
        return to_builtins(value, builtin_types=(bytes, bytearray, datetime))

    return (
        partial(packb, datetime=True, default=plain),
        partial(unpackb, timestamp=3, strict_map_key=False),
    )


def _same(body: bytes) -> bytes:
    return body


raw = _Codec("raw", lambda: (_same, _same))
"""Bodies are bytes and stay unchanged."""

text = _Codec[str]("text", lambda: (str.encode, bytes.decode))
"""UTF-8; reading raises UnicodeDecodeError."""

json = _Codec[Any]("json", _json)
"""Any JSON value; with orjson installed, dataclasses, datetimes and UUIDs can be written too.

Writing raises TypeError for unsupported values; reading raises ValueError.
"""

msgpack = _Codec[Any]("msgpack", _msgpack)
"""Any msgpack value; dataclasses, datetimes and UUIDs can be written too.

Writing raises TypeError for unsupported values; reading raises ValueError.
"""
