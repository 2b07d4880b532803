"""What all bodies share: their base class, the types of their fields, ``decode`` and ``encode``.

A body is a ``msgspec.Struct`` with camel-case names on the wire and a default for everything.
Decoding is done by msgspec at C speed. Only when it refuses a body, the lax conversions of
fastjson are tried (``leniency``), which also treat null as absent; what is still wrong then is a
``BodyError``. Bodies with maps keyed by queues always go that way, since msgspec takes any text
for a key of a type that it does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from remoting.protocol.bodies import relaxed_json
from remoting.protocol.bodies.leniency import has_object_keys, soften, type_of
from remoting.protocol.bodies.relaxed_reader import ObjectKey
from remoting.protocol.errors import BodyError
from remoting.protocol.queue import MessageQueue

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
