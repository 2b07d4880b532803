"""A message as a consumer gets it: a view of the answer's bytes, decoded where it is looked at."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Generic, TypeVar

from client.errors import UnreadableMessage
from client.places import instant
from client.serde import Serde
from remoting.protocol.errors import BodyError
from remoting.protocol.message.record import Buffer
from remoting.protocol.message.view import RecordView
from remoting.protocol.queue import MessageQueue, QueueOffset

T = TypeVar("T")

_OWN_ID: Final = b"UNIQ_KEY\x01"


class ReceivedMessage(RecordView, Generic[T]):
    """One message. It keeps the bytes of the whole answer it came in alive.

    Attributes:
        queue: the queue it was read from.
    """

    __slots__ = ("_serde", "queue")

    def __init__(
        self,
        buffer: Buffer,
        position: int,
        queue: MessageQueue,
        serde: Serde[T],
        *,
        limit: int | None = None,
    ) -> None:
        super().__init__(buffer, position, limit=limit)
        self.queue = queue
        self._serde = serde

    def __repr__(self) -> str:
        return f"<ReceivedMessage {self.queue} offset {self.offset} id {self.id}>"

    @property
    def body(self) -> bytes:
        """The body as it was sent, inflated if it was compressed.

        Raises:
            UnreadableMessage: it doesn't inflate, or to more than is allowed.
        """
        try:
            return super().body
        except BodyError as error:
            raise self._unreadable(error) from error

    @property
    def value(self) -> T:
        """The body as the consumer's serde reads it; read anew at each access.

        Raises:
            UnreadableMessage: the serde can't read it.
        """
        body = self.body
        try:
            return self._serde.loads(body)
        except Exception as error:
            raise self._unreadable(error) from error

    @property
    def tag(self) -> str | None:
        """What consumers choose by."""
        return self.tags

    @property
    def offset(self) -> QueueOffset:
        """Its number in its queue."""
        return self.queue_offset

    @property
    def id(self) -> str:
        """The id its producer gave it, else the broker's offset id."""
        text = self.properties_text
        if text.startswith(_OWN_ID):
            # Where our producer writes it. A 5.x broker appends one id to all messages of a
            # batch, which would hide their own ones.
            return text[len(_OWN_ID) :].partition(b"\x02")[0].decode("utf-8", "replace")
        return self.message_id

    @property
    def retries(self) -> int:
        """How often a consumer has sent it back."""
        return self.reconsume_times

    @property
    def born_at(self) -> datetime:
        """When it was made, by the producer's clock; UTC."""
        return instant(self.born_timestamp_ms)

    @property
    def stored_at(self) -> datetime:
        """When it was stored, by the broker's clock; UTC."""
        return instant(self.store_timestamp_ms)

    def _unreadable(self, error: Exception) -> UnreadableMessage:
        return UnreadableMessage(
            f"the message at offset {self.offset} can't be read: {error}",
            queue=self.queue,
            hint="look at stored_body, or use the producer's serde",
        )
