"""Single messages: by key (code 12) and by their place in the log (code 33).

What the index finds is looked at before it is sent: a hash may be another key's, and the index of a
broker that was killed may be of messages that are gone. RocketMQ leaves both to the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.processors.errors import RequestRefused
from broker.state import BrokerState
from broker.store.index.keys import keys_in
from broker.store.limits import MAX_KEY_CANDIDATES, MAX_KEY_MESSAGES
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.query import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from remoting.protocol.message.view import RecordView

if TYPE_CHECKING:
    from remoting.connection import Connection

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""Ext field: the key is a unique id (cf. MixAll.UNIQUE_MSG_QUERY_FLAG)."""

FOUND_BY_UNIQUE_KEY: Final = 32
"""Messages that a query for a unique id finds at most (``defaultQueryMaxNum``)."""

MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
"""Of the messages of an answer, unless its only one is larger: half of what a frame may be."""

_WHOLE_SECOND_MS: Final = 999
_NOT_FOUND: Final = "can not find message, maybe time range not correct"


class QueryProcessor:
    """Serves messages that somebody looks for."""

    __slots__ = ("_state",)

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    async def by_key(self, command: Command, connection: Connection) -> Command:
        """QUERY_MESSAGE: the newest messages of a topic with a key, in the order of the log."""
        header = command.read(QueryMessageRequestHeader)
        most = min(header.max_num, MAX_KEY_MESSAGES)
        if command.fields.get(UNIQUE_KEY_QUERY) == "true":
            most = FOUND_BY_UNIQUE_KEY
        found = await self._state.store.index.find(
            header.topic,
            header.key,
            max_count=MAX_KEY_CANDIDATES,
            # An entry knows its second only; what is too old is left out below.
            begin_ms=header.begin_timestamp - _WHOLE_SECOND_MS,
            end_ms=header.end_timestamp,
        )
        records: list[RecordView] = []
        room = MAX_ANSWER_BYTES
        for offset in found.offsets:
            if len(records) >= most:
                break
            record = await self._record(connection, offset)
            if record is None or not _is_wanted(record, header):
                continue
            room -= record.size
            if room < 0 and records:
                break
            records.append(record)
        if not records:
            return command.reply(
                ResponseCode.QUERY_NOT_FOUND,
                _NOT_FOUND,
                header=QueryMessageResponseHeader(
                    index_last_update_timestamp=0, index_last_update_phyoffset=0
                ),
            )
        records.sort(key=lambda one: one.physical_offset)
        return command.reply(
            header=QueryMessageResponseHeader(
                index_last_update_timestamp=found.end_ms,
                index_last_update_phyoffset=found.end_offset,
            ),
            body=b"".join([record.raw for record in records]),
        )

    async def by_id(self, command: Command, connection: Connection) -> Command:
        """VIEW_MESSAGE_BY_ID: the message at a physical offset."""
        header = command.read(ViewMessageRequestHeader)
        record = await self._record(connection, header.offset)
        if record is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}"
            )
        return command.reply(body=bytes(record.raw))

    async def _record(self, connection: Connection, physical_offset: int) -> RecordView | None:
        """A sound message, in SYNC mode one that a crash can't take back any more."""
        store = self._state.store
        found = await store.record_async(connection, physical_offset)
        if found is None:
            return None
        record = RecordView(found)
        if store.sync_flush and physical_offset + record.size > store.durable_offset:
            return None
        return record


def _is_wanted(record: RecordView, header: QueryMessageRequestHeader) -> bool:
    if not header.begin_timestamp <= record.store_timestamp_ms <= header.end_timestamp:
        return False
    keys = (key.decode("utf-8", "replace") for key in keys_in(record.properties_text))
    return record.topic == header.topic and header.key in keys
