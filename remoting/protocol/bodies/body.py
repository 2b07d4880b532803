"""What all bodies share: their base class, the types of their fields, ``decode`` and ``encode``.

A body is a ``msgspec.Struct`` with camel-case names on the wire and a default for every field.
msgspec decodes it at C speed. Only if msgspec refuses a body are fastjson's lax conversions tried
(cf. TypeUtils.cast), which also treat null as absent; if that fails too the result is a
``BodyError``. Bodies with maps keyed by queues always take that path, because msgspec reads a key
of an unknown type as text.

The conversions turn numbers into text and text into numbers, cut off fractions, treat a null member
as absent and a bare name used as a key as text. ``soften`` applies them to the parsed tree, guided
by the types of the body, and leaves alone what it can't improve, so that the decoder names the
fault. Its depth is that of the body's type: no input makes it recurse further.
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
    """The value with Java's conversions made wherever they bring it nearer to ``kind``."""
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
    """A key; text in place of an object is its JSON, and other text an empty one."""
    if not (isinstance(kind, inspect.CustomType) and isinstance(key, str)):
        return soften(key, kind)
    try:
        members = relaxed_json.loads(key.encode())
    except BodyError:
        members = None
    return ObjectKey.of(members) or ObjectKey()


@cache
def type_of(kind: type) -> inspect.Type:
    """The description of a body's class that guides ``soften``."""
    return inspect.type_info(kind)


@cache
def has_object_keys(kind: type) -> bool:
    """Whether a body of this class has, at any depth, a map keyed by objects."""
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
    """Whether a value counts at all: to Java null, and a blank where a number belongs, don't."""
    if value is None:
        return False
    wants_number = isinstance(kind, inspect.IntType | inspect.FloatType | inspect.BoolType)
    return not (wants_number and value in ("", "null", "NULL"))


def _required_type(kind: inspect.Type) -> inspect.Type:
    """The type within an optional one."""
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
        """How bodies name ``MessageQueue`` to msgspec, which would read a dataclass by its own
        (Python's) names; a type it does not know it leaves to ``_read_custom``."""


class Body(msgspec.Struct, rename="camel"):
    """Base of all bodies. Attributes are the wire's names in Python's spelling."""


class _QueueMembers(Body):
    topic: str
    broker_name: str
    queue_id: Int = 0


BodyT = TypeVar("BodyT", bound=msgspec.Struct)


def decode(kind: type[BodyT], data: relaxed_json.Buffer) -> BodyT:
    """The body that ``data`` holds, unknown members ignored.

    Raises:
        BodyError: it is not JSON, beyond the limits, or a member is not of its type; the sentence
            names the body's class, what is wrong and where.
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
            pass  # perhaps nothing but what fastjson takes
    try:
        return _convert(soften(tree, type_of(kind)), kind)
    except msgspec.ValidationError as error:
        raise BodyError(f"{kind.__name__}: {error}") from None


def encode(body: msgspec.Struct, *, standard: bool = False, pretty: bool = False) -> bytes:
    """The JSON of a body as Java writes it; the two forms are those of ``relaxed_json.dumps``."""
    return relaxed_json.dumps(body, standard=standard, pretty=pretty)


def _convert(tree: object, kind: type[BodyT]) -> BodyT:
    return msgspec.convert(tree, kind, strict=False, dec_hook=_read_custom)


def _read_custom(kind: type, value: Any) -> MessageQueue:
    """The one type of our own within bodies: a message queue, as a value or as a key."""
    assert kind is Queue
    members = dict(value) if isinstance(value, ObjectKey) else value
    try:
        queue = msgspec.convert(members, _QueueMembers, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"Expected a message queue: {error}") from None  # msgspec adds the place
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)


class MapParts:
    """The text of a body, put together from texts of its map's entries.

    Args:
        empty: the body with its map empty; the map has to be the last of its members to be
            written, by name.
        pretty: as of ``encode``.
    """

    __slots__ = ("_closing", "_head", "_pretty", "_tail")

    def __init__(self, empty: msgspec.Struct, *, pretty: bool = False) -> None:
        head, _, tail = encode(empty, pretty=pretty).rpartition(b"{}")
        self._head = head + b"{"
        self._tail = b"}" + tail
        line = head.rpartition(b"\n")[2]
        # What ends a map that isn't empty: a line of its own, indented as the map's own name.
        self._closing = b"\n" + line[: len(line) - len(line.lstrip())] if pretty else b""
        self._pretty = pretty

    def part(self, body: msgspec.Struct) -> bytes:
        """The text of some entries, given as the same body with nothing else in its map."""
        text = encode(body, pretty=self._pretty)
        return text[len(self._head) : -len(self._closing + self._tail)]

    def whole(self, parts: Sequence[bytes]) -> bytes:
        """The body's text with all these entries."""
        entries = b",".join([part for part in parts if part])
        closing = self._closing if entries else b""
        return b"".join((self._head, entries, closing, self._tail))
