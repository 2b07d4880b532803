"""Commands and their typed headers, which the three header codecs encode and decode.

A header class lists a command's own fields as annotated attributes. ``@header`` makes it a
keyword-only dataclass with slots. Attributes are the names on the wire in snake case; exceptions
are listed in ``wire_names``. Kinds of fields:

========  ===========================================  ==================
 kind      in ext fields (JSON, ROCKETMQ)               in msgpack
========  ===========================================  ==================
``str``    the text                                     string
``Int``    as ``Integer.parseInt`` reads it             integer
``Long``   as ``Long.parseLong`` reads it               integer
``bool``   ``true`` in any case; all else is false      boolean
========  ===========================================  ==================

A field without a default is required. A field whose value is ``None`` is not written. The order
of a class's fields is part of the msgpack form: **append new fields at the end**.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from operator import attrgetter
from types import NoneType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    Self,
    TypeVar,
    dataclass_transform,
    get_args,
    get_type_hints,
)

from remoting.protocol.codes import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    VERSION,
    Language,
    ResponseCode,
    SerializeType,
)
from remoting.protocol.errors import HeaderError

Int = Annotated[int, 32]
"""A field of 32 signed bits (Java ``int``)."""

Long = Annotated[int, 64]
"""A field of 64 signed bits (Java ``long``)."""

T = TypeVar("T")
H = TypeVar("H", bound="Header")

# Java accepts the digits of all scripts, but per UTF-16 unit: none beyond the BMP.
_INTEGER: Final = re.compile(r"[+-]?(?:(?![\U00010000-\U0010ffff])\d)+")
_SHOWN_CHARACTERS: Final = 40


class _Kind(NamedTuple):
    """How one type of field is decoded and encoded."""

    article_and_name: str
    parse: Callable[[str], Any]  # from text; raises ValueError
    check: Callable[[object], Any]  # from a msgpack value; raises ValueError
    text: Callable[[Any], str]


class _Field(NamedTuple):
    """One field of a header class."""

    attribute: str
    wire_name: str
    kind: _Kind
    required: bool
    default: object


class _Plan(NamedTuple):
    """How to decode and encode a header class, computed once per class."""

    fields: tuple[_Field, ...]
    names_and_texts: tuple[tuple[str, Callable[[Any], str]], ...]
    values: Callable[[Any], tuple[object, ...]]


class Header:
    """A command's own fields, typed. Subclasses need the decorator ``@header``."""

    __slots__ = ()

    wire_names: ClassVar[Mapping[str, str]] = {}
    """Wire names of attributes for which it is not the name in camel case."""

    def pairs(self) -> list[tuple[str, str]]:
        """Return the ext fields in declared order, without those that are ``None``."""
        plan = _plan(type(self))
        return [
            (name, text(value))
            for (name, text), value in zip(plan.names_and_texts, plan.values(self), strict=True)
            if value is not None
        ]

    def values(self) -> list[object]:
        """Return the values in declared order, without trailing ``None`` (the msgpack form)."""
        values = list(_plan(type(self)).values(self))
        while values and values[-1] is None:
            values.pop()
        return values

    def copy(self) -> Self:
        """Return a copy."""
        plan = _plan(type(self))
        copied = object.__new__(type(self))
        for declared, value in zip(plan.fields, plan.values(self), strict=True):
            setattr(copied, declared.attribute, value)
        return copied

    @classmethod
    def from_fields(cls, ext_fields: Mapping[str, str], *, empty_is_absent: bool = False) -> Self:
        """Decode the header from ext fields; unknown ones are ignored.

        Args:
            ext_fields: by their names on the wire.
            empty_is_absent: treat an empty text as absent (binary headers), except where a text is
                required.

        Raises:
            HeaderError: a required field is absent, or a field is not of its type.
        """
        values: dict[str, Any] = {}
        get = ext_fields.get
        for attribute, wire_name, kind, required, default in _plan(cls).fields:
            text = get(wire_name)
            if text is None or (not text and empty_is_absent and not (required and kind is _TEXT)):
                if required:
                    raise _missing(cls, wire_name)
                values[attribute] = default
            else:
                try:
                    values[attribute] = kind.parse(text)
                except ValueError:
                    raise _unreadable(cls, wire_name, kind, text) from None
        return cls(**values)

    @classmethod
    def from_values(cls, values: Sequence[object]) -> Self:
        """Decode the header from values in declared order; surplus ones are ignored.

        Raises:
            HeaderError: a required field is absent, or a value is not of its field's type.
        """
        arguments: dict[str, Any] = {}
        count = len(values)
        for position, (attribute, wire_name, kind, required, default) in enumerate(
            _plan(cls).fields
        ):
            value = values[position] if position < count else None
            if value is None:
                if required:
                    raise _missing(cls, wire_name)
                arguments[attribute] = default
            else:
                try:
                    arguments[attribute] = kind.check(value)
                except ValueError:
                    raise _unreadable(cls, wire_name, kind, value) from None
        return cls(**arguments)


@dataclass_transform(kw_only_default=True)
def header(cls: type[T]) -> type[T]:
    """Make a class of annotated fields a typed header."""
    return dataclass(slots=True, kw_only=True)(cls)


def free_opaque(first: int, used: Container[int]) -> int:
    """Return the first opaque from ``first`` on that is not in ``used``; wraps at 2^31."""
    opaque = first & _OPAQUE_MASK
    while opaque in used:
        opaque = (opaque + 1) & _OPAQUE_MASK
    return opaque


def wire_names_of(header_type: type[Header]) -> tuple[str, ...]:
    """Return the wire names of a header's fields, in declared order."""
    return tuple(declared.wire_name for declared in _plan(header_type).fields)


def _missing(header_type: type[Header], wire_name: str) -> HeaderError:
    return HeaderError(f"{header_type.__name__}: the field {wire_name} is missing")


def _unreadable(
    header_type: type[Header], wire_name: str, kind: _Kind, value: object
) -> HeaderError:
    shown = repr(value)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = shown[:_SHOWN_CHARACTERS] + "..."
    return HeaderError(
        f"{header_type.__name__}: the field {wire_name} must be {kind.article_and_name}: {shown}"
    )


def parse_bool(text: str) -> bool:
    """Parse a boolean as Java's ``Boolean.parseBoolean`` does."""
    return text.lower() == "true"


def parse_integer(text: str, bits: int) -> int:
    """Parse a number as Java's ``Integer.parseInt`` (32 bits) and ``Long.parseLong`` (64) do.

    Raises:
        ValueError: it is not a decimal number of ``bits`` signed bits.
    """
    # int() alone would also accept '1_000' and ' 5 '.
    if _INTEGER.fullmatch(text) is None:
        raise ValueError(text)
    value = int(text)
    bound = 1 << (bits - 1)
    if -bound <= value < bound:
        return value
    raise ValueError(text)


def natural(text: str, otherwise: int) -> int:
    """Parse a number of 0 to 2**63-1 as ``parse_integer`` does; return ``otherwise`` for others."""
    try:
        value = parse_integer(text, 64)
    except ValueError:
        return otherwise
    return value if value >= 0 else otherwise


def _check_of(kind: type[T]) -> Callable[[object], T]:
    def check(value: object) -> T:
        if type(value) is kind:
            return value
        raise ValueError(value)

    return check


def _integer_kind(bits: int) -> _Kind:
    bound = 1 << (bits - 1)
    digits_that_always_fit = len(str(bound)) - 1

    def parse(text: str) -> int:
        if len(text) <= digits_that_always_fit and text.isascii() and text.isdigit():
            return int(text)
        return parse_integer(text, bits)

    def check(value: object) -> int:
        if type(value) is int and -bound <= value < bound:
            return value
        raise ValueError(value)

    return _Kind(f"a {bits}-bit integer", parse, check, str)


def _same(text: str) -> str:
    return text


_TEXT: Final = _Kind("a text", _same, _check_of(str), _same)
_BOOL: Final = _Kind("true or false", parse_bool, _check_of(bool), lambda value: str(value).lower())
_KINDS: Final[dict[object, _Kind]] = {
    str: _TEXT,
    bool: _BOOL,
    Int: _integer_kind(32),
    Long: _integer_kind(64),
}


_PLANS: Final[dict[type[Header], _Plan]] = {}


def _plan(header_type: type[Header]) -> _Plan:
    plan = _PLANS.get(header_type)
    if plan is None:
        plan = _PLANS[header_type] = _make_plan(header_type)
    return plan


def _make_plan(header_type: type[Header]) -> _Plan:
    hints = get_type_hints(header_type, include_extras=True)
    planned = []
    for declared in fields(header_type):  # type: ignore[arg-type]  # a subclass is a dataclass
        required = declared.default is MISSING
        hint = hints[declared.name]
        first, *words = declared.name.split("_")
        camel_case = first + "".join(word.capitalize() for word in words)
        remaining = [part for part in get_args(hint) if part is not NoneType]
        planned.append(
            _Field(
                attribute=declared.name,
                wire_name=header_type.wire_names.get(declared.name) or camel_case,
                kind=_KINDS[(remaining[0] if NoneType in get_args(hint) else hint)],
                required=required,
                default=None if required else declared.default,
            )
        )
    getter = attrgetter(*[known.attribute for known in planned])
    return _Plan(
        fields=tuple(planned),
        names_and_texts=tuple((known.wire_name, known.kind.text) for known in planned),
        # With one attribute, attrgetter returns its value instead of a tuple.
        values=getter if len(planned) > 1 else lambda header: (getter(header),),
    )


_OPAQUE_MASK: Final = 0x7FFF_FFFF

UNKNOWN: Final = -1
"""A position that is not known."""

Extra = Mapping[str, str] | Iterable[tuple[str, str]]
"""Ext fields besides the typed header's."""


@dataclass(slots=True)
class Command:
    """The decoded content of a frame (cf. RemotingCommand).

    A command to be sent has a typed ``header``; a received one has ``pairs`` or, from a msgpack
    frame, ``values``, from which ``read`` makes the typed header.
    """

    code: int
    """The request code or the response code."""

    opaque: int = 0
    """The id that matches an answer to its request, per connection."""

    flag: int = 0
    """``FLAG_RESPONSE`` and ``FLAG_ONEWAY``."""

    language: Language | None = Language.PYTHON
    """The sender's language; ``None`` if it is unknown."""

    version: int = VERSION
    """The sender's release, an ordinal (see ``codes``)."""

    remark: str | None = None
    """Usually the text of an error."""

    header: Header | None = None
    """The typed header of a command to be sent."""

    pairs: tuple[tuple[str, str], ...] | None = None
    """Ext fields in wire order, repeats included; of a command to be sent, those after the typed
    header's. ``None`` when ext fields are absent, which in JSON differs from an empty object."""

    values: tuple[object, ...] | None = None
    """The declared header fields of a msgpack frame, by position."""

    body: bytes | memoryview = b""
    """Empty for none. Of a received command, a view of the buffer it was decoded from."""

    serialize: SerializeType = SerializeType.JSON
    """The header codec of the frame it was received in or will be sent in."""

    body_at: int = field(default=UNKNOWN, compare=False, repr=False)
    """The position of a received command's body in the buffer it is a view of."""

    @classmethod
    def request(
        cls,
        code: int,
        header: Header | None = None,
        *,
        body: bytes | memoryview = b"",
        extra: Extra = (),
        oneway: bool = False,
    ) -> Self:
        """Return a request to be sent. The connection sets its opaque and codec."""
        return cls(
            code,
            header=header,
            flag=FLAG_ONEWAY if oneway else 0,
            pairs=_extra_pairs(extra),
            body=body,
        )

    def reply(
        self,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        *,
        header: Header | None = None,
        body: bytes | memoryview = b"",
        extra: Extra = (),
    ) -> Command:
        """Return an answer to this request: same opaque and codec, language JAVA as in RocketMQ."""
        return Command(
            code,
            self.opaque,
            FLAG_RESPONSE,
            Language.JAVA,
            VERSION,
            remark,
            header,
            _extra_pairs(extra),
            None,
            body,
            self.serialize,
        )

    @property
    def is_response(self) -> bool:
        """Whether this is an answer to a request."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no answer."""
        return self.flag & FLAG_ONEWAY != 0

    @property
    def fields(self) -> dict[str, str]:
        """The ext fields by name, the last of repeated ones; a new dictionary each time."""
        return dict(self.all_pairs() or ())

    def all_pairs(self) -> Iterable[tuple[str, str]] | None:
        """Return the ext fields in wire order: the typed header's, then ``pairs``.

        ``None`` if ext fields are absent.
        """
        if self.header is None:
            return self.pairs
        if self.pairs is None:
            return self.header.pairs()
        return (*self.header.pairs(), *self.pairs)

    def read(self, header_type: type[H]) -> H:
        """Return the typed header, from any of the codecs.

        Raises:
            HeaderError: a required field is absent, or a field is not of its type.
        """
        if isinstance(self.header, header_type):
            return self.header
        if self.values is not None:
            return header_type.from_values(self.values)
        # RocketMQ decodes an empty text of a binary header as null.
        return header_type.from_fields(
            self.fields, empty_is_absent=self.serialize is SerializeType.ROCKETMQ
        )


def _extra_pairs(extra: Extra) -> tuple[tuple[str, str], ...] | None:
    if not extra:
        return None
    return tuple(extra.items() if isinstance(extra, Mapping) else extra)
