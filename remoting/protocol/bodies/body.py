"""The base class of JSON bodies, the types of their fields, ``decode`` and ``encode``.

A body is a ``msgspec.Struct`` with camel-case names on the wire and a default for every field.
msgspec decodes it at C speed. Only if msgspec rejects a body are fastjson's lax conversions applied
(cf. TypeUtils.cast) and the result decoded again; if that fails too, ``BodyError`` is raised.
Bodies with maps keyed by queues always need the conversions, because msgspec decodes a key of an
unknown type as text.

The conversions turn numbers into text and text into numbers, truncate fractions, and treat a null
member as absent. ``soften`` applies them to the parsed tree according to the body's types. It
leaves values that it can't convert unchanged, so that the decoder reports the error. Its recursion
depth is that of the body's type, whatever the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import inspect

from remoting.protocol.bodies import relaxed_json
from remoting.protocol.bodies.relaxed_json import ObjectKey
from remoting.protocol.errors import BodyError
from remoting.protocol.queue import MessageQueue


def soften(value: object, kind: inspect.Type) -> object:
    """Return the value with fastjson's conversions to ``kind`` applied where possible."""
    match kind:
        case inspect.StrType() if value is not None and not isinstance(value, str):
            return relaxed_json.dumps(value).decode()
        case inspect.IntType() if isinstance(value, bool):
            return int(value)
        case inspect.IntType() if isinstance(value, float) and math.isfinite(value):
            return int(value)
        case inspect.BoolType() if type(value) in {int, float}:
            return value == 1
        case inspect.ListType(item_type=item) if isinstance(value, list):
            return [soften(one, item) for one in value if _present(one, item)]
        case inspect.DictType(key_type=key_type, value_type=member_type) if isinstance(value, dict):
            return {
                _soften_key(key, key_type): soften(member, member_type)
                for key, member in value.items()
                if _present(member, member_type)
            }
        case inspect.StructType() if isinstance(value, dict):
            types = {field.encode_name: _required_type(field.type) for field in kind.fields}
            return {
                name: soften(value[name], member_type)
                for name, member_type in types.items()
                if _present(value.get(name), member_type)
            }
    return value


def _soften_key(key: object, kind: inspect.Type) -> object:
    """Return a converted key. Where an object is needed, text is parsed as its JSON.

    Text that is not the JSON of a flat object becomes an empty ``ObjectKey``.
    """
    if not (isinstance(kind, inspect.CustomType) and isinstance(key, str)):
        return soften(key, kind)
    try:
        members = relaxed_json.loads(key.encode())
    except BodyError:
        members = None
    return ObjectKey.of(members) or ObjectKey()


@cache
def type_of(kind: type) -> inspect.Type:
    """Return msgspec's description of a body class, cached."""
    return inspect.type_info(kind)


@cache
def has_object_keys(kind: type) -> bool:
    """Return whether a body of this class contains, at any depth, a map keyed by objects."""
    return _has_object_keys(type_of(kind))


def _has_object_keys(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.DictType):
        return isinstance(kind.key_type, inspect.CustomType) or _has_object_keys(kind.value_type)
    if isinstance(kind, inspect.ListType):
        return _has_object_keys(kind.item_type)
    if isinstance(kind, inspect.StructType):
        return any(_has_object_keys(_required_type(field.type)) for field in kind.fields)
    return False


def _present(value: object, kind: inspect.Type) -> bool:
    """Return False for null, and for empty text where a number is needed: fastjson skips them."""
    if value is None:
        return False
    wants_number = isinstance(kind, inspect.IntType | inspect.FloatType | inspect.BoolType)
    return not (wants_number and value in ("", "null", "NULL"))


def _required_type(kind: inspect.Type) -> inspect.Type:
    """Return the type inside an optional one."""
    if isinstance(kind, inspect.UnionType):
        return next(member for member in kind.types if not isinstance(member, inspect.NoneType))
    return kind


Int = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""Java's ``int``."""

Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Java's ``long``."""

if TYPE_CHECKING:
    Queue = MessageQueue
else:

    class _IsMessageQueue(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, MessageQueue)

    class Queue(metaclass=_IsMessageQueue):
        """Stands for ``MessageQueue`` in the types of bodies.

        msgspec would decode the dataclass by its Python names; for this unknown type it calls
        ``_read_custom``.
        """


class Body(msgspec.Struct, rename="camel"):
    """Base of all bodies. Attributes are the names on the wire in snake case."""


class _QueueMembers(Body):
    topic: str
    broker_name: str
    queue_id: Int = 0


BodyT = TypeVar("BodyT", bound=msgspec.Struct)


def decode(kind: type[BodyT], data: relaxed_json.Buffer) -> BodyT:
    """Decode a body; unknown members are ignored.

    Raises:
        BodyError: it is not JSON, exceeds the limits, or a member is not of its type; the message
            names the body's class, the error and its position.
    """
    if not data:
        raise BodyError(f"{kind.__name__}: the body is empty")
    try:
        tree = relaxed_json.loads(data)
    except BodyError as error:
        raise BodyError(f"{kind.__name__}: {error}") from None
    if not has_object_keys(kind):
        try:
            return _convert(tree, kind)
        except msgspec.ValidationError:
            pass  # fastjson's conversions may help
    try:
        return _convert(soften(tree, type_of(kind)), kind)
    except msgspec.ValidationError as error:
        raise BodyError(f"{kind.__name__}: {error}") from None


def encode(body: msgspec.Struct, *, standard: bool = False, pretty: bool = False) -> bytes:
    """Encode a body as RocketMQ does; for the options see ``relaxed_json.dumps``."""
    return relaxed_json.dumps(body, standard=standard, pretty=pretty)


def _convert(tree: object, kind: type[BodyT]) -> BodyT:
    return msgspec.convert(tree, kind, strict=False, dec_hook=_read_custom)


def _read_custom(kind: type, value: Any) -> MessageQueue:
    """Decode the only custom type within bodies: a message queue, as a value or as a key."""
    assert kind is Queue
    members = dict(value) if isinstance(value, ObjectKey) else value
    try:
        queue = msgspec.convert(members, _QueueMembers, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"Expected a message queue: {error}") from None  # msgspec adds the path
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)


class MapParts:
    """Assembles the JSON of a body with a large map or list from separately encoded entries.

    Args:
        empty: the body with its map or list empty; that must be the last member in the order of
            names, in which members are written.
        pretty: see ``encode``.
        brackets: of the map; ``[]`` for a list.
    """

    __slots__ = ("_closing", "_head", "_pretty", "_tail")

    def __init__(
        self, empty: msgspec.Struct, *, pretty: bool = False, brackets: bytes = b"{}"
    ) -> None:
        head, _, tail = encode(empty, pretty=pretty).rpartition(brackets)
        self._head = head + brackets[:1]
        self._tail = brackets[1:] + tail
        line = head.rpartition(b"\n")[2]
        # Before the brace that closes a non-empty map: a line break, and the indent of its name.
        self._closing = b"\n" + line[: len(line) - len(line.lstrip())] if pretty else b""
        self._pretty = pretty

    def part(self, body: msgspec.Struct) -> bytes:
        """Return the JSON of some entries; ``body`` is like ``empty``, with these in it."""
        text = encode(body, pretty=self._pretty)
        return text[len(self._head) : -len(self._closing + self._tail)]

    def whole(self, parts: Sequence[bytes]) -> bytes:
        """Return the JSON of the body with all these entries."""
        entries = b",".join([part for part in parts if part])
        closing = self._closing if entries else b""
        return b"".join((self._head, entries, closing, self._tail))
