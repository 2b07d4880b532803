"""Commands and their typed headers: what all three header codecs read and write.

A header class lists a command's own fields as annotated attributes. ``@header`` makes it a
keyword-only dataclass with slots. Attributes are the wire's names in snake case; where that
rule fails, ``wire_names`` says so. Kinds of fields:

========  ===========================================  ==================
 kind      in ext fields (JSON, ROCKETMQ)               in msgpack
========  ===========================================  ==================
``str``    the text                                     string
``Int``    as ``Integer.parseInt`` reads it             integer
``Long``   as ``Long.parseLong`` reads it               integer
``bool``   ``true`` in any case; all else is false      boolean
========  ===========================================  ==================

A field without a default is required. A field whose value is ``None`` is not written. The order
of a class's fields is part of the msgpack form: **new fields go to the end**.
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

# Java takes the digits of every script, but one UTF-16 unit at a time: none beyond the BMP.
_INTEGER: Final = re.compile(r"[+-]?(?:(?![\U00010000-\U0010ffff])\d)+")
_SHOWN_CHARACTERS: Final = 40


class _Kind(NamedTuple):
    """How one type of field is read and written."""

    article_and_name: str
    parse: Callable[[str], Any]  # from text; raises ValueError
    check: Callable[[object], Any]  # from a msgpack value; raises ValueError
    text: Callable[[Any], str]


class _Field(NamedTuple):
    """One field of a header class, as the plan keeps it."""

    attribute: str
    wire_name: str
    kind: _Kind
    required: bool
    default: object


class _Plan(NamedTuple):
    """What a header class needs to be read and written, worked out once."""

    fields: tuple[_Field, ...]
    names_and_texts: tuple[tuple[str, Callable[[Any], str]], ...]
    values: Callable[[Any], tuple[object, ...]]


class Header:
    """A command's own fields, typed. Subclasses carry the decorator ``@header``."""

    __slots__ = ()

    wire_names: ClassVar[Mapping[str, str]] = {}
    """Attributes whose wire name isn't their camel case."""

    def pairs(self) -> list[tuple[str, str]]:
        """The ext fields, in declared order, without those that are ``None``."""
        plan = _plan(type(self))
        return [
            (name, text(value))
            for (name, text), value in zip(plan.names_and_texts, plan.values(self), strict=True)
            if value is not None
        ]

    def values(self) -> list[object]:
        """The values in declared order, without the ``None`` ones at the end (msgpack)."""
        values = list(_plan(type(self)).values(self))
        while values and values[-1] is None:
            values.pop()
        return values

    def copy(self) -> Self:
        """Another one with the same values."""
        plan = _plan(type(self))
        made = object.__new__(type(self))
        for known, value in zip(plan.fields, plan.values(self), strict=True):
            setattr(made, known.attribute, value)
        return made

    @classmethod
    def from_fields(cls, ext_fields: Mapping[str, str], *, empty_is_absent: bool = False) -> Self:
        """Reads the header from ext fields; unknown ones are not looked at.

        Args:
            ext_fields: by their names on the wire.
            empty_is_absent: an empty text means that the field is absent (binary headers), unless
                it is a required text.

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
        """Reads the header from values in declared order; more than we know are ignored.

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
    """Makes a class of annotated fields a typed header."""
    return dataclass(slots=True, kw_only=True)(cls)


def free_opaque(first: int, used: Container[int]) -> int:
    """The first correlation id from ``first`` on that is not used; wraps within positive int32."""
    opaque = first & _OPAQUE_MASK
    while opaque in used:
        opaque = (opaque + 1) & _OPAQUE_MASK
    return opaque


def wire_names_of(header_type: type[Header]) -> tuple[str, ...]:
    """The wire names of a header's fields, in declared order."""
    return tuple(known.wire_name for known in _plan(header_type).fields)


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
    """As Java's ``Boolean.parseBoolean``."""
    return text.lower() == "true"


def parse_integer(text: str, bits: int) -> int:
    """As Java's ``Integer.parseInt`` (32 bits) and ``Long.parseLong`` (64).

    Raises:
        ValueError: it is no decimal number of so many signed bits.
    """
    # int() alone would also take '1_000' and ' 5 '.
    if _INTEGER.fullmatch(text) is None:
        raise ValueError(text)
    value = int(text)
    bound = 1 << (bits - 1)
    if -bound <= value < bound:
        return value
    raise ValueError(text)


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
        # Of one attribute attrgetter gives the value, not a tuple.
        values=getter if len(planned) > 1 else lambda header: (getter(header),),
    )


_OPAQUE_MASK: Final = 0x7FFF_FFFF

UNKNOWN: Final = -1
"""Of a position: nobody has said."""

Extra = Mapping[str, str] | Iterable[tuple[str, str]]
"""Ext fields besides the typed header's."""


@dataclass(slots=True)
class Command:
    """A frame's meaning (cf. RemotingCommand).

    A command we build has a typed ``header``; one that came in has ``pairs`` or, from a msgpack
    frame, ``values``, and ``read`` makes the typed header of either.
    """

    code: int
    """The request's code in a request, the response's in an answer."""

    opaque: int = 0
    """Correlates an answer with its request, per connection."""

    flag: int = 0
    """``FLAG_RESPONSE`` and ``FLAG_ONEWAY``."""

    language: Language | None = Language.PYTHON
    """The sender's; ``None`` when we don't know it."""

    version: int = VERSION
    """The sender's release (see ``versions``)."""

    remark: str | None = None
    """An error's text, mostly."""

    header: Header | None = None
    """The typed header of a command we build."""

    pairs: tuple[tuple[str, str], ...] | None = None
    """Ext fields in wire order, repeats kept; on a command we build, those after the header's.
    ``None`` when there is no such part, which differs from an empty one in JSON."""

    values: tuple[object, ...] | None = None
    """The declared header fields of a msgpack frame, by position."""

    body: bytes | memoryview = b""
    """Empty means none. A command that came in refers to the buffer it was decoded from."""

    serialize: SerializeType = SerializeType.JSON
    """The codec of the frame it came in or goes out in."""

    body_at: int = field(default=UNKNOWN, compare=False, repr=False)
    """Where the body of a command that came in begins in what it is a view of."""

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
        """A request of ours. The connection that sends it fills in opaque and codec."""
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
        """The answer to this request: same opaque and codec, language JAVA as every broker's."""
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
        """Whether this answers a request."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer."""
        return self.flag & FLAG_ONEWAY != 0

    @property
    def fields(self) -> dict[str, str]:
        """The ext fields by name; of a repeated one the last. Made anew at each call."""
        return dict(self.all_pairs() or ())

    def all_pairs(self) -> Iterable[tuple[str, str]] | None:
        """The ext fields in wire order: the typed header's, then ``pairs``; ``None``: no part."""
        if self.header is None:
            return self.pairs
        if self.pairs is None:
            return self.header.pairs()
        return (*self.header.pairs(), *self.pairs)

    def read(self, header_type: type[H]) -> H:
        """The typed header, whichever codec the command came in.

        Raises:
            HeaderError: a required field is absent, or a field is not of its type.
        """
        if isinstance(self.header, header_type):
            return self.header
        if self.values is not None:
            return header_type.from_values(self.values)
        # Java reads an empty text of a binary header as null.
        return header_type.from_fields(
            self.fields, empty_is_absent=self.serialize is SerializeType.ROCKETMQ
        )


def _extra_pairs(extra: Extra) -> tuple[tuple[str, str], ...] | None:
    if not extra:
        return None
    return tuple(extra.items() if isinstance(extra, Mapping) else extra)
