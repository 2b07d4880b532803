"""A view of a message record that decodes each field on access.

A consumer that receives a thousand records usually reads only their bodies and tags. So a view
keeps only its buffer and six numbers. ``locate`` checks them once, when the view is created; after
that, no field can extend beyond the record. The view does not copy its buffer, and keeps it in
memory.
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
        RecordError: at creation, if the bytes are not a whole record; never later.
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
        """Create a view of the record at ``position``.

        ``limit`` is the end of the valid bytes, None for the end of the buffer.
        """
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
        """The bytes of the whole record, not copied."""
        return memoryview(self._buffer)[self._position : self._end]

    @property
    def magic(self) -> int:
        """``MAGIC_V1`` or ``MAGIC_V2``."""
        return int(_UNSIGNED.unpack_from(self._buffer, self._position + 4)[0])

    @property
    def body_crc(self) -> int:
        """The stored CRC of 31 bits; see ``check_crc``."""
        return int(_UNSIGNED.unpack_from(self._buffer, self._position + 8)[0])

    @property
    def queue_id(self) -> int:
        """The queue's number within the topic at its broker."""
        return int(_INT.unpack_from(self._buffer, self._position + 12)[0])

    @property
    def flag(self) -> int:
        """A number set by the application."""
        return int(_INT.unpack_from(self._buffer, self._position + 16)[0])

    @property
    def queue_offset(self) -> QueueOffset:
        """The message's offset in its queue."""
        at = self._position + QUEUE_OFFSET_AT
        return QueueOffset(_LONG.unpack_from(self._buffer, at)[0])

    @property
    def physical_offset(self) -> PhysicalOffset:
        """Where the record begins in the commit log of its broker."""
        at = self._position + PHYSICAL_OFFSET_AT
        return PhysicalOffset(_LONG.unpack_from(self._buffer, at)[0])

    @property
    def born_timestamp_ms(self) -> int:
        """When the producer created the message, by its clock, ms since 1970."""
        return int(_LONG.unpack_from(self._buffer, self._position + BORN_TIMESTAMP_AT)[0])

    @property
    def born_host(self) -> tuple[str, int]:
        """``(ip, port)`` of the producer as seen by the broker."""
        return host_of(self.born_host_bytes)

    @property
    def born_host_bytes(self) -> bytes:
        """The 8 or 20 bytes of ``born_host``."""
        start = self._position + BORN_HOST_AT
        return bytes(self._buffer[start : self._born_host_end])

    @property
    def store_timestamp_ms(self) -> int:
        """When the broker stored the message, by its clock, ms since 1970."""
        return int(_LONG.unpack_from(self._buffer, self._born_host_end)[0])

    @property
    def store_host(self) -> tuple[str, int]:
        """``(ip, port)`` of the broker."""
        return host_of(self.store_host_bytes)

    @property
    def store_host_bytes(self) -> bytes:
        """The 8 or 20 bytes of ``store_host``."""
        start = self._born_host_end + 8
        length = 20 if self.sys_flag & STORE_HOST_V6 else 8
        return bytes(self._buffer[start : start + length])

    @property
    def _born_host_end(self) -> int:
        length = 20 if self.sys_flag & BORN_HOST_V6 else 8
        return self._position + BORN_HOST_AT + length

    @property
    def reconsume_times(self) -> int:
        """How often a consumer has sent the message back."""
        return int(_INT.unpack_from(self._buffer, self._body_at - 16)[0])

    @property
    def prepared_transaction_offset(self) -> PhysicalOffset:
        """The physical offset of the half message of a committed transaction."""
        return PhysicalOffset(_LONG.unpack_from(self._buffer, self._body_at - 12)[0])

    @property
    def stored_body(self) -> memoryview:
        """The body as stored, which may be compressed; not copied."""
        return memoryview(self._buffer)[self._body_at : self._body_end]

    @property
    def body(self) -> bytes:
        """The body as it was sent, decompressed if necessary.

        Raises:
            BodyError: it can't be decompressed, or is larger than ``MAX_INFLATED_MESSAGE_BYTES``.
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
        """The topic it is stored under; the original may be in the property REAL_TOPIC."""
        return str(self._buffer[self._topic_at : self._topic_end], "utf-8", "replace")

    @property
    def properties_text(self) -> bytes:
        """The properties as stored."""
        return bytes(self._buffer[self._topic_end + 2 : self._end])

    @property
    def properties(self) -> dict[str, str]:
        """The properties as a dictionary, decoded on first use and then reused."""
        try:
            return self._properties
        except AttributeError:
            self._properties = properties.decode(self.properties_text)
            return self._properties

    @property
    def tags(self) -> str | None:
        """The tag, None without one. RocketMQ's property is TAGS, but a message has one tag."""
        return property_text(self, _TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys under which the broker indexes the message."""
        keys = property_text(self, _KEYS)
        return properties.keys_of(keys) if keys else []

    @property
    def unique_id(self) -> str | None:
        """The id assigned by the producer (UNIQ_KEY), None without one."""
        return property_text(self, _UNIQ_KEY)

    @property
    def offset_id(self) -> str:
        """The id made of the broker's address and the physical offset."""
        return ids.offset_id_of(self.store_host_bytes, self.physical_offset)

    @property
    def message_id(self) -> str:
        """The unique id, or the offset id if there is none (cf. MessageDecoder.clientDecode)."""
        return self.unique_id or self.offset_id

    def check_crc(self) -> bool:
        """Return whether the stored CRC matches the stored body."""
        return body_crc(self.stored_body) == self.body_crc


def property_text(record: RecordView, name: bytes) -> str | None:
    """Return the value of one property, without decoding the others; None without it."""
    value = properties.find(record.properties_text, name)
    return None if value is None else value.decode("utf-8", "replace")


def iter_records(buffer: Buffer) -> Iterator[RecordView]:
    """Yield the records of a pull answer.

    Raises:
        RecordError: at the first damaged record, after those before it were yielded; the following
            ones can't be found without its size.
    """
    position, limit = 0, len(buffer)
    while position < limit:
        view = RecordView(buffer, position, limit=limit)
        position += view.size
        yield view
