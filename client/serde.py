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

    def loads(self, body: bytes, /) -> S:
        """Return the value of a body."""


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
        self._kind = kind
        self._encode: Callable[[V], bytes]
        self._decode: Callable[[bytes], V]
        self._encode, self._decode = _functions_for(kind, format)

    def dumps(self, value: V, /) -> bytes:
        """Encode the value."""
        return self._encode(value)

    def loads(self, body: bytes, /) -> V:
        """Decode and validate; raises ValueError, for a wrong type msgspec.ValidationError."""
        return self._decode(body)

    def __repr__(self) -> str:
        return f"client.serde.typed({getattr(self._kind, '__name__', self._kind)})"


def _functions_for(
    kind: Any, form: Format
) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    import msgspec  # noqa: PLC0415 - slow to import, and rarely needed

    is_pydantic = hasattr(kind, "model_validate_json")
    if not is_pydantic:
        try:
            msgspec.json.schema(kind, schema_hook=_schema_of_other)
        except TypeError as error:
            raise UsageError(
                f"typed can't read {kind!r}: {str(error).rpartition(chr(10))[2]}",
                hint="use a dataclass, TypedDict, msgspec.Struct or pydantic model whose fields can"
                " be read too, or give an object with dumps and loads",
            ) from error
    if form == "msgpack":
        pack, unpack = _msgpack()
        if not is_pydantic:
            return pack, lambda body: msgspec.convert(unpack(body), kind)
        return (
            lambda value: pack(value.model_dump(by_alias=True)),
            lambda body: kind.model_validate(unpack(body)),
        )
    if is_pydantic:
        # Aliases are what the model reads.
        return lambda value: value.model_dump_json(by_alias=True).encode(), kind.model_validate_json
    return msgspec.json.Encoder().encode, msgspec.json.Decoder(kind).decode


def _schema_of_other(kind: type) -> dict[str, Any]:
    """Return a schema if values of JSON are instances of a class such as ``object``.

    Raises:
        NotImplementedError: none is.
    """
    if not any(issubclass(plain, kind) for plain in (dict, list, str, int, float, bool)):
        raise NotImplementedError
    return {"title": kind.__name__}


def typed(kind: type[V], *, format: Format = "json") -> Typed[V]:  # noqa: A002
    """Return a serde for a dataclass, TypedDict, msgspec.Struct or pydantic model.

    A ``Producer[Order]`` has ``serde=typed(Order)``.

    Args:
        kind: the class of all values.
        format: ``json`` or ``msgpack``.

    Raises:
        UsageError: ``format`` is neither, or ``kind`` or the class of a field can't be read.
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
