"""Single messages: by key, by id.

A broker knows a message by two ids. The producer's, which stays when a send is repeated, is found
in the index of its topic; the broker's own (``offset id``) says where the message lies.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Final

from client.admin.base import AdminBase
from client.consumer.received import ReceivedMessage
from client.errors import NotFound, UsageError, remote_error
from client.positions import check_topic_name, milliseconds
from client.serde import raw
from remoting.addresses import parse_address
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import RecordError
from remoting.protocol.headers.query import QueryMessageRequestHeader, ViewMessageRequestHeader
from remoting.protocol.message.ids import OffsetId, parse_offset_id
from remoting.protocol.message.view import RecordView, iter_records
from remoting.protocol.queue import MessageQueue

MAX_FOUND: Final = 64
"""Messages that a broker finds at most (cf. maxMsgsNumBatch)."""

_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_ALWAYS: Final = (0, 2**63 - 1)
_FOUND_OR_NOT: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})
_SEEN_OR_NOT: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR})

FoundMessage = ReceivedMessage[bytes]


class MessageAdmin(AdminBase):
    """The part of ``Admin`` about single messages."""

    async def find_messages(
        self,
        topic: str,
        key: str,
        *,
        limit: int = MAX_FOUND,
        begin: datetime | None = None,
        end: datetime | None = None,
    ) -> list[ReceivedMessage[bytes]]:
        """The messages of a topic that have a key, the oldest first.

        Args:
            topic: where they are stored.
            key: one of their keys, or their producer's id.
            limit: of more, the newest; a broker finds 64 at most.
            begin: stored at this time or later.
            end: stored at this time or earlier.
        """
        if limit < 1:
            raise UsageError(f"limit has to be 1 or more, not {limit}")
        span = (
            _ALWAYS[0] if begin is None else milliseconds(begin),
            _ALWAYS[1] if end is None else milliseconds(end),
        )
        return (await self._find(topic, key, min(limit, MAX_FOUND), span))[-limit:]

    async def message(self, message_id: str, *, topic: str | None = None) -> ReceivedMessage[bytes]:
        """The message with an id.

        Args:
            message_id: the broker's id, which says where the message lies; with ``topic`` also the
                producer's. Of copies with one id it is the newest.
            topic: where it is stored.

        Raises:
            NotFound: no broker has it.
            UsageError: without ``topic``, the id says of no registered broker where it lies.
        """
        if topic is not None and (
            found := await self._find(topic, message_id, MAX_FOUND, _ALWAYS, unique=True)
        ):
            return found[-1]
        try:
            place = parse_offset_id(message_id)
        except ValueError as error:
            if topic is not None:
                raise _not_found(message_id, topic) from None
            raise UsageError(str(error), hint="give its topic to find it by another id") from None
        broker = await self._broker_at(place)
        if broker is None:
            if topic is not None:
                raise _not_found(message_id, topic)
            raise UsageError(
                f"{message_id} says that it lies at {place.ip}:{place.port}, but no broker is "
                "registered with that address",
                hint="if it is a producer's id, give the topic too",
            )
        message = await self._view(*broker, place.physical_offset)
        if message is None or topic not in {None, message.topic}:
            raise _not_found(message_id, topic)
        return message

    async def _find(
        self, topic: str, key: str, limit: int, span: tuple[int, int], *, unique: bool = False
    ) -> list[FoundMessage]:
        check_topic_name(topic)
        if not key:
            raise UsageError("a key can't be empty", topic=topic)
        header = QueryMessageRequestHeader(
            topic=topic, key=key, max_num=limit, begin_timestamp=span[0], end_timestamp=span[1]
        )
        masters = await self._masters_of(topic)
        answers = await asyncio.gather(
            *(self._query(address, header, unique=unique) for address in masters.values())
        )
        found = [
            _received(record, name)
            for name, answer in zip(masters, answers, strict=True)
            for record in _records(answer, name)
            # Apache's brokers look at hashes alone.
            if record.topic == topic and key in {record.unique_id, *record.keys}
        ]
        return sorted(found, key=lambda one: (one.store_timestamp_ms, one.physical_offset))

    async def _query(
        self, address: str, header: QueryMessageRequestHeader, *, unique: bool
    ) -> Command:
        code = RequestCode.QUERY_MESSAGE
        return await self._remote.call(
            address,
            code,
            header,
            extra=((_UNIQUE_KEY_QUERY, "true" if unique else "false"),),
            accept=_FOUND_OR_NOT,
            topic=header.topic,
        )

    async def _broker_at(self, place: OffsetId) -> tuple[str, str] | None:
        """Name and address of the broker that an offset id names."""
        named = []
        for broker in await self.brokers():
            host, port = parse_address(broker.address)
            if (host, port) == (place.ip, place.port):
                return broker.name, broker.address
            if port == place.port and not host.replace(".", "").isdecimal():
                # Registered by a name; the id has a number.
                named.append((broker.name, broker.address))
        return named[0] if len(named) == 1 else None

    async def _view(self, name: str, address: str, offset: int) -> FoundMessage | None:
        answer = await self._remote.call(
            address,
            RequestCode.VIEW_MESSAGE_BY_ID,
            ViewMessageRequestHeader(offset=offset),
            accept=_SEEN_OR_NOT,
        )
        if answer.code != ResponseCode.SUCCESS:
            return None
        records = _records(answer, name)
        return _received(records[0], name) if records else None


def _records(answer: Command, broker: str) -> list[RecordView]:
    try:
        return list(iter_records(bytes(answer.body)))
    except RecordError as error:
        raise remote_error(
            ResponseCode.SYSTEM_ERROR, str(error), "the answer", broker=broker
        ) from error


def _received(record: RecordView, broker: str) -> FoundMessage:
    queue = MessageQueue(record.topic, broker, record.queue_id)
    return ReceivedMessage(bytes(record.raw), 0, queue, raw)


def _not_found(message_id: str, topic: str | None) -> NotFound:
    where = "" if topic is None else f" in topic {topic}"
    return NotFound(
        f"there is no message {message_id}{where}",
        code=ResponseCode.QUERY_NOT_FOUND,
        hint="it may have been deleted by age",
    )
