"""A message record read field by field, when it is asked for.

A consumer that takes a thousand records off the network looks at the bodies, perhaps the tags. So
a view keeps nothing but its buffer and six positions. They are checked against each other once,
when the view is made; from then on no field can reach outside the record. The view does not copy
its buffer: as long as it lives, so do the bytes it was cut from.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from remoting.protocol.limits import MAX_INFLATED_MESSAGE_BYTES
from remoting.protocol.message import compression, ids, properties
from remoting.protocol.message.record import (
    BORN_HOST_AT,
    BORN_HOST_V6,
    BORN_TIMESTAMP_AT,
    COMPRESSED,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    STORE_HOST_V6,
    Buffer,
    body_crc,
    host_of,
    locate,
)
from remoting.protocol.queue import PhysicalOffset, QueueOffset

_INT: Final = Struct(">i")
_UNSIGNED: Final = Struct(">I")
_LONG: Final = Struct(">q")
_TAGS: Final = properties.TAGS.encode()
_KEYS: Final = properties.KEYS.encode()
_UNIQ_KEY: Final = properties.UNIQ_KEY.encode()


class RecordView:
    """One message of the commit log or of a pull answer.

    Raises:
        RecordError: at creation, when the bytes are no whole record; never later.
    """

    __slots__ = (
        "_body",
        "_body_at",
        "_body_end",
        "_buffer",
        "_end",
        "_position",
        "_properties",
        "_topic_at",
        "_topic_end",
        "sys_flag",
    )

    sys_flag: int
    _body: bytes
    _properties: dict[str, str]

    def __init__(self, buffer: Buffer, position: int = 0, *, limit: int | None = None) -> None:
        """Look at the record at ``position``; ``limit`` is where the valid bytes end, if given."""
        self._locate(buffer, position, len(buffer) if limit is None else limit)

    def _locate(self, buffer: Buffer, position: int, limit: int) -> None:
        self._buffer = buffer
        self._position = position
        (
            self.sys_flag,
            self._body_at,
            self._body_end,
            self._topic_at,
            self._topic_end,
            self._end,
        ) = locate(buffer, position, limit)

    def __repr__(self) -> str:
        return (
            f"<RecordView {self.topic}/{self.queue_id} offset {self.queue_offset}, "
            f"{self.size} bytes at {self.physical_offset}>"
        )

    @property
    def size(self) -> int:
        """Bytes of the whole record."""
        return self._end - self._position

    @property
    def raw(self) -> memoryview:
        """The whole record."""
        return memoryview(self._buffer)[self._position : self._end]

    @property
    def magic(self) -> int:
        """``MAGIC_V1`` or ``MAGIC_V2``."""
        return int(_UNSIGNED.unpack_from(self._buffer, self._position + 4)[0])

    @property
    def body_crc(self) -> int:
        """The 31 bits that the writer stored; see ``check_crc``."""
        return int(_UNSIGNED.unpack_from(self._buffer, self._position + 8)[0])

    @property
    def queue_id(self) -> int:
        """Which queue of the topic."""
        return int(_INT.unpack_from(self._buffer, self._position + 12)[0])

    @property
    def flag(self) -> int:
        """A number of the application's own."""
        return int(_INT.unpack_from(self._buffer, self._position + 16)[0])

    @property
    def queue_offset(self) -> QueueOffset:
        """The message's number in its queue."""
        at = self._position + QUEUE_OFFSET_AT
        return QueueOffset(_LONG.unpack_from(self._buffer, at)[0])

    @property
    def physical_offset(self) -> PhysicalOffset:
        """Where the record begins in the commit log of its broker."""
        at = self._position + PHYSICAL_OFFSET_AT
        return PhysicalOffset(_LONG.unpack_from(self._buffer, at)[0])

    @property
    def born_timestamp_ms(self) -> int:
        """When the producer made the message, by its clock."""
        return int(_LONG.unpack_from(self._buffer, self._position + BORN_TIMESTAMP_AT)[0])

    @property
    def born_host(self) -> tuple[str, int]:
        """``(ip, port)`` of the producer as the broker saw it."""
        return host_of(self.born_host_bytes)

    @property
    def born_host_bytes(self) -> bytes:
        """The 8 or 20 bytes of it."""
        start = self._position + BORN_HOST_AT
        return bytes(self._buffer[start : self._born_host_end])

    @property
    def store_timestamp_ms(self) -> int:
        """When the broker stored the message, by its clock."""
        return int(_LONG.unpack_from(self._buffer, self._born_host_end)[0])

    @property
    def store_host(self) -> tuple[str, int]:
        """``(ip, port)`` of the broker."""
        return host_of(self.store_host_bytes)

    @property
    def store_host_bytes(self) -> bytes:
        """The 8 or 20 bytes of it."""
        start = self._born_host_end + 8
        length = 20 if self.sys_flag & STORE_HOST_V6 else 8
        return bytes(self._buffer[start : start + length])

    @property
    def _born_host_end(self) -> int:
        length = 20 if self.sys_flag & BORN_HOST_V6 else 8
        return self._position + BORN_HOST_AT + length

    @property
    def reconsume_times(self) -> int:
        """How often the message was sent back by a consumer."""
        return int(_INT.unpack_from(self._buffer, self._body_at - 16)[0])

    @property
    def prepared_transaction_offset(self) -> PhysicalOffset:
        """Where the half of a committed transaction lies in the commit log."""
        return PhysicalOffset(_LONG.unpack_from(self._buffer, self._body_at - 12)[0])

    @property
    def stored_body(self) -> memoryview:
        """The body as stored, which may be compressed; not copied."""
        return memoryview(self._buffer)[self._body_at : self._body_end]

    @property
    def body(self) -> bytes:
        """The body as it was sent, inflated if it was compressed.

        Raises:
            BodyError: it does not inflate, or to more than ``MAX_INFLATED_MESSAGE_BYTES``.
        """
        try:
            return self._body
        except AttributeError:
            body = bytes(self._buffer[self._body_at : self._body_end])
        if self.sys_flag & COMPRESSED:
            body = compression.decompress(body, self.sys_flag, max_bytes=MAX_INFLATED_MESSAGE_BYTES)
        self._body = body
        return body

    @property
    def topic(self) -> str:
        """The topic it is stored under; REAL_TOPIC may name another."""
        return str(self._buffer[self._topic_at : self._topic_end], "utf-8", "replace")

    @property
    def properties_text(self) -> bytes:
        """The properties as stored."""
        return bytes(self._buffer[self._topic_end + 2 : self._end])

    @property
    def properties(self) -> dict[str, str]:
        """The properties as a map, decoded once; the same map each time."""
        try:
            return self._properties
        except AttributeError:
            self._properties = properties.decode(self.properties_text)
            return self._properties

    @property
    def tags(self) -> str | None:
        """The tag; RocketMQ calls it TAGS, but there is one."""
        return self._property(_TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys under which the broker indexed the message."""
        keys = self._property(_KEYS)
        return keys.split() if keys else []

    @property
    def unique_id(self) -> str | None:
        """The id that the producer gave the message (UNIQ_KEY)."""
        return self._property(_UNIQ_KEY)

    @property
    def offset_id(self) -> str:
        """The id that says where the message lies: broker address and physical offset."""
        return ids.offset_id_of(self.store_host_bytes, self.physical_offset)

    @property
    def message_id(self) -> str:
        """The unique id, or the offset id of a message that has none (cf. clientDecode)."""
        return self.unique_id or self.offset_id

    def check_crc(self) -> bool:
        """Whether the body is what the CRC was taken of."""
        return body_crc(self.stored_body) == self.body_crc

    def _property(self, name: bytes) -> str | None:
        value = properties.find(self.properties_text, name)
        return None if value is None else value.decode("utf-8", "replace")


def iter_records(buffer: Buffer) -> Iterator[RecordView]:
    """The records of a pull answer, one after the other.

    Raises:
        RecordError: at the first damaged one, after all before it were given out; the rest can't
            be found without its size.
    """
    position, limit = 0, len(buffer)
    while position < limit:
        view = RecordView(buffer, position, limit=limit)
        position += view.size
        yield view
