"""Finding messages by key and id, reading dead letters and sending them back.

A message has two ids. The producer's id, which stays the same when a send is repeated, is found in
the index of the topic; the broker's offset id contains the message's position.

The dead letters of a group are in the topic ``%DLQ%<group>``. The offset committed there under the
group's own name records how far they have been sent back. Letters that were chosen are beyond it,
and the caller may be killed between a send and its commit. So the copy of a letter has a property
that names it, and a letter whose copy is found in the index of its topic is not sent again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple

from client.admin.base import AdminBase, asked_queues
from client.consumer.received import ReceivedMessage
from client.errors import (
    NoPermission,
    NoRoute,
    NotFound,
    TopicNotFound,
    UsageError,
    remote_error,
)
from client.network.remote import FOUND_OR_NOT, read_header
from client.network.routes import Route, by_sharding_key
from client.positions import check_group, check_topic_name, instant, milliseconds
from client.serde import raw
from client.wire.offsets import WALK_MESSAGES
from client.wire.send_verdict import STORED_CODES
from remoting.addresses import parse_address
from remoting.errors import ConnectFailed
from remoting.protocol.bodies.clients import ConsumeMessageDirectlyResult
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import BodyError, RecordError
from remoting.protocol.headers.group import ConsumeMessageDirectlyResultRequestHeader
from remoting.protocol.headers.query import (
    UNIQUE_KEY_QUERY,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from remoting.protocol.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from remoting.protocol.message import properties
from remoting.protocol.message.ids import OffsetId, parse_offset_id
from remoting.protocol.message.record import COMPRESSED, COMPRESSION_MASK
from remoting.protocol.message.trace import TraceRecord
from remoting.protocol.message.trace import decode as decode_trace
from remoting.protocol.message.view import RecordView, iter_records
from remoting.protocol.names import AUTO_CREATE_TOPIC, TOOLS_CONSUMER_GROUP, TRACE_TOPIC, dlq_topic
from remoting.protocol.queue import MessageQueue
from remoting.runtime.tasks import gather_limited

DIRECT_TIMEOUT: Final = 15.0
"""Seconds; a broker waits 10 for the member's answer."""
LOOKUPS_AT_ONCE: Final = 8
"""Queries of the index; a broker refuses more than 64 of all its clients together."""
MAX_FOUND: Final = 64
"""Most messages that one query of a broker returns (cf. maxMsgsNumBatch)."""

_ALWAYS: Final = (0, 2**63 - 1)
_SEEN_OR_NOT: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR})

FoundMessage = ReceivedMessage[bytes]

_DELIVERY_PROPERTIES: Final = frozenset(
    {
        *(properties.DELAY, properties.REAL_TOPIC, properties.REAL_QID, properties.RETRY_TOPIC),
        *(properties.TIMER_DELAY_SEC, properties.TIMER_DELAY_MS, properties.TIMER_DELIVER_MS),
        *(properties.TIMER_OUT_MS, properties.REDRIVEN),
        *(properties.RECONSUME_TIME, properties.MAX_RECONSUME_TIMES, properties.CONSUME_START_TIME),
        *(properties.MIN_OFFSET, properties.MAX_OFFSET, properties.WAIT, properties.CLUSTER),
        *(properties.TRAN_MSG, properties.PGROUP, properties.MSG_REGION, properties.TRACE_ON),
        *(properties.TRANSFER_FLAG, properties.CORRECTION_FLAG),
    }
)
"""Properties set by redelivery and dead-lettering, which must not be sent back with the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadMessage:
    """A dead letter: a message whose retries a group has used up or that its handler rejected.

    Attributes:
        queue, offset: its position in the dead-letter topic.
        topic: the original topic; None if the message doesn't contain it.
        id: the id its producer assigned.
        origin_id: the offset id of its first copy; a Java consumer that could not reach the broker
            writes the producer's id.
        retries: the retries counted by the broker, including the last.
        born_at: when its producer created it; None: the producer sent a number that is no time.
        died_at: when it was stored as a dead letter, by the broker's clock.
        redriven: whether it has been sent back already.
        reason, exception: why its consumer gave up, and the type of the handler's exception.
        consumer, failed_at: client id of the consumer that gave up, and when, by its clock.

    The last four are None if the consumer is not PocketMQ's, or an older version.
    """

    queue: MessageQueue
    offset: int
    topic: str | None
    id: str
    origin_id: str | None
    retries: int
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    body: bytes
    born_at: datetime | None
    died_at: datetime | None
    redriven: bool
    reason: str | None = None
    exception: str | None = None
    consumer: str | None = None
    failed_at: datetime | None = None


class Redriven(NamedTuple):
    """A dead letter that was sent back, and its new position; None with ``dry_run``."""

    message: DeadMessage
    queue: MessageQueue | None
    offset: int | None


@dataclass(frozen=True, slots=True)
class Redrive:
    """The result of sending dead letters back, or of the dry run.

    Attributes:
        sent: the messages in the order in which they were sent.
        left: number of dead letters not sent back.
    """

    group: str
    sent: tuple[Redriven, ...]
    left: int


class MessageAdmin(AdminBase):
    """The part of ``Admin`` about individual messages and dead letters."""

    async def find_messages(
        self,
        topic: str,
        key: str,
        *,
        limit: int = MAX_FOUND,
        begin: datetime | None = None,
        end: datetime | None = None,
    ) -> list[ReceivedMessage[bytes]]:
        """Return the messages of a topic that have a key, the oldest first.

        Args:
            topic: the topic they are stored in.
            key: one of their keys, or the id their producer assigned.
            limit: if there are more, the newest are returned; a broker finds at most 64.
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
        """Return the message with an id.

        Args:
            message_id: the broker's offset id; if ``topic`` is given, also the producer's id. Of
                several messages with the producer's id, the newest is returned.
            topic: the topic it is stored in.

        Raises:
            NotFound: no broker has it.
            UsageError: ``topic`` isn't given, and the id doesn't contain the address of a
                registered broker.
        """
        if topic is not None and (
            messages := await self._find(topic, message_id, MAX_FOUND, _ALWAYS, unique=True)
        ):
            return messages[-1]
        try:
            place = parse_offset_id(message_id)
        except ValueError as error:
            if topic is not None:
                raise _not_found(message_id, topic) from None
            raise UsageError(str(error), hint="give its topic to find it by another id") from None
        broker = await self._broker_at(place)
        if broker is None:
            # A slave has the same messages at the same offsets.
            for reader in (await self._readers()).items():
                message = await self._view(*reader, place.physical_offset)
                if message is not None and message.offset_id == message_id.upper():
                    return message
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

    async def consume_directly(
        self, group: str, client_id: str, message_id: str, *, topic: str | None = None
    ) -> ConsumeMessageDirectlyResult:
        """Have a member of a group handle a message now, and return what became of it.

        Nothing is committed, and the message isn't retried, whatever the outcome.

        Args:
            client_id: the member's; see ``members``.
            message_id: as in ``message``.
            topic: the topic that the message is stored in.

        Raises:
            NotFound: no broker has the message.
            RemoteError: the member isn't connected to the message's broker, or doesn't answer it.
        """
        check_group(group)
        message = await self.message(message_id, topic=topic)
        broker = message.queue.broker_name
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=group,
            client_id=client_id,
            msg_id=message.offset_id,
            broker_name=broker,
            topic=message.topic,
        )
        return await self._ask(
            ConsumeMessageDirectlyResult,
            (await self._readers())[broker],
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            header,
            timeout=DIRECT_TIMEOUT,
            group=group,
        )

    async def trace(self, message_id: str, *, topic: str = TRACE_TOPIC) -> list[TraceRecord]:
        """Return what clients with message trace did with a message, by the time of their clocks.

        Args:
            message_id: the id its producer assigned.
            topic: the brokers' trace topic, of which each broker finds its 64 newest messages.

        Raises:
            NotFound: there is no trace of it.
        """
        try:
            messages = await self._find(topic, message_id, MAX_FOUND, _ALWAYS)
        except TopicNotFound:
            messages = []
        records = [
            replace(record, client_host=record.client_host or message.born_host[0])
            for message in messages
            for record in decode_trace(message.body)
            if record.message_id == message_id
        ]
        if not records:
            raise NotFound(
                f"there is no trace of {message_id} in topic {topic}",
                code=ResponseCode.QUERY_NOT_FOUND,
                hint="give its producer and consumers interceptors=[client.MessageTrace()]",
            )
        return sorted(records, key=lambda record: record.time_ms)

    async def _find(
        self,
        topic: str,
        key: str,
        limit: int,
        span: tuple[int, int],
        brokers: Mapping[str, str] | None = None,
        *,
        unique: bool = False,
    ) -> list[FoundMessage]:
        check_topic_name(topic)
        if not key:
            raise UsageError("a key can't be empty", topic=topic)
        header = QueryMessageRequestHeader(
            topic=topic, key=key, max_num=limit, begin_timestamp=span[0], end_timestamp=span[1]
        )
        if brokers is None:
            brokers = await self._readers(topic)
        answers = await asyncio.gather(
            *(self._query(address, header, unique=unique) for address in brokers.values())
        )
        messages = [
            received(record, name)
            for name, answer in zip(brokers, answers, strict=True)
            for record in _records(answer, name)
            # Apache's brokers compare only hashes, which may collide.
            if record.topic == topic and key in {record.unique_id, *record.keys}
        ]
        return sorted(
            messages, key=lambda message: (message.store_timestamp_ms, message.physical_offset)
        )

    async def _query(
        self, address: str, header: QueryMessageRequestHeader, *, unique: bool
    ) -> Command:
        code = RequestCode.QUERY_MESSAGE
        return await self._remote.call(
            address,
            code,
            header,
            extra=((UNIQUE_KEY_QUERY, "true" if unique else "false"),),
            accept=FOUND_OR_NOT,
            topic=header.topic,
        )

    async def _broker_at(self, place: OffsetId) -> tuple[str, str] | None:
        """Return name and address of the broker in an offset id, or None."""
        named = []
        for broker in await self.brokers():
            try:
                host, port = parse_address(broker.address)
            except ConnectFailed:
                continue  # anybody may register an address that is none
            if (host, port) == (place.ip, place.port):
                return broker.name, broker.address
            if port == place.port and not host.replace(".", "").isdecimal():
                # Registered by host name; the id contains a numeric address.
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
        return received(records[0], name) if records else None

    # Dead letters

    async def dead_letters(
        self, group: str, *, limit: int = 1000, redriven: bool = False
    ) -> list[DeadMessage]:
        """Return the dead letters of a group, the oldest of each queue first.

        Args:
            limit: the maximum number.
            redriven: include those that have been sent back already.

        Returns:
            An empty list for a group without a dead-letter topic.
        """
        check_group(group)
        letters: list[DeadMessage] = []
        for queue in await self._dead_queues(group):
            committed = await self._offsets.committed(queue, group) or 0
            begin = 0 if redriven else committed
            async with aclosing(self._dead(group, queue, begin, committed)) as found:
                async for dead, _ in found:
                    if len(letters) >= limit:
                        return letters
                    if redriven or not dead.redriven:
                        letters.append(dead)
        return letters

    async def redrive(
        self,
        group: str,
        *,
        limit: int | None = None,
        topic: str | None = None,
        ids: Collection[str] | None = None,
        dry_run: bool = False,
    ) -> Redrive:
        """Send dead letters to the topics they came from, with the same body, tag, keys and id.

        Every group that subscribes to such a topic gets them, not only this one. None is sent
        twice, also if the caller is killed, as long as the broker's index has the copies that were
        sent: Apache's has them a moment later, and none does with ``messageIndexEnable=false``.

        Args:
            limit: the maximum number.
            topic: send all of them to this topic instead.
            ids: only the letters with these ids.
            dry_run: send nothing and return what would be sent.

        Raises:
            UsageError: a message doesn't contain its original topic, and ``topic`` isn't given; or
                ``ids`` are to go to another topic, where a later call wouldn't look for them.
            PocketMQError: a message could not be sent; those before it were sent.
        """
        check_group(group)
        if topic is not None:
            check_topic_name(topic)
            if ids is not None:
                raise UsageError(
                    "chosen letters go to the topics they came from",
                    group=group,
                    hint="leave out topic or ids",
                )
        sent: list[Redriven] = []
        left = 0
        for queue in await self._dead_queues(group):
            committed = await self._offsets.committed(queue, group) or 0
            done = reached = max(committed, await self._offsets.minimum(queue))
            letters = self._dead(group, queue, committed, committed, topic=topic, ids=ids)
            async with aclosing(letters) as found:
                async for dead, record in found:
                    if limit is not None and len(sent) >= limit:
                        break
                    reached = dead.offset + 1
                    if not dead.redriven:
                        if ids is not None and dead.id not in ids:
                            left += 1
                            continue
                        place: tuple[MessageQueue | None, int | None] = (None, None)
                        if not dry_run:
                            place = await self._send_back(group, dead, record, topic, len(sent))
                        sent.append(Redriven(dead, *place))
                    if dead.offset == done and not dry_run:
                        done = reached
                        await self._offsets.commit(queue, group, done)
            left += max(0, await self._offsets.maximum(queue) - reached)
        return Redrive(group, tuple(sent), left)

    async def _dead_queues(self, group: str) -> Sequence[MessageQueue]:
        try:
            return asked_queues(await self._routes.fresh(dlq_topic(group)))
        except TopicNotFound:
            return []

    async def _dead(
        self,
        group: str,
        queue: MessageQueue,
        begin: int,
        committed: int,
        *,
        topic: str | None = None,
        ids: Collection[str] | None = None,
    ) -> AsyncGenerator[tuple[DeadMessage, RecordView], None]:
        """Yield the dead letters of a queue from an offset up to the queue's end.

        Args:
            committed: the offset below which they were sent back.
            topic: where to look for the copies of others; by default in their own topics.
            ids: look for the copies of these only, and of those up to which all were sent back.
        """
        offset = all_sent_to = max(begin, await self._offsets.minimum(queue))
        homes: dict[str, dict[str, str]] = {}
        while True:
            page = await self._offsets.page(queue, TOOLS_CONSUMER_GROUP, offset, WALK_MESSAGES)
            if not page.records:
                return
            letters = [_dead_message(record, queue, committed) for record in page.records]
            unsure = [
                (letter, target)
                for letter in letters
                if not letter.redriven
                and (target := topic or letter.topic)
                and (ids is None or letter.id in ids or offset == all_sent_to)
            ]
            for name in {target for _, target in unsure}.difference(homes):
                try:
                    homes[name] = await self._readers(name)
                except (TopicNotFound, UsageError):
                    homes[name] = {}  # the name is a client's text
            unsure = [(letter, name) for letter, name in unsure if homes[name]]
            copied = await gather_limited(
                unsure,
                lambda pair: self._has_copy(group, *pair, homes[pair[1]]),
                limit=LOOKUPS_AT_ONCE,
            )
            sent = {unsure[place][0].offset for place, found in enumerate(copied) if found}
            letters = [
                replace(letter, redriven=letter.redriven or letter.offset in sent)
                for letter in letters
            ]
            if offset == all_sent_to and all(
                letter.redriven or (ids is not None and letter.id in ids) for letter in letters
            ):
                all_sent_to = page.next_offset
            for letter, record in zip(letters, page.records, strict=True):
                yield letter, record
            offset = page.next_offset

    async def _has_copy(
        self, group: str, letter: DeadMessage, topic: str, brokers: Mapping[str, str]
    ) -> bool:
        """Return whether a topic has a copy of a letter that was sent back."""
        try:
            found = await self._find(topic, letter.id, MAX_FOUND, _ALWAYS, brokers, unique=True)
        except NoPermission:
            return False
        mark = _mark_of(group, letter)
        return any(copy.properties.get(properties.REDRIVEN) == mark for copy in found)

    async def _send_back(
        self, group: str, dead: DeadMessage, record: RecordView, topic: str | None, turn: int
    ) -> tuple[MessageQueue, int]:
        target = topic or dead.topic
        if target is None:
            raise UsageError(
                f"the dead letter at offset {dead.offset} doesn't say which topic it came from",
                queue=dead.queue,
                group=group,
                hint="say where to send it",
            )
        route = await self._routes.to_read(target)
        queue = _queue_for(route, dead, turn)
        address = route.master(queue.broker_name)
        if address is None:
            raise NoRoute("the queue's broker is not in the route", queue=queue)
        header = _send_header(group, dead, record, queue)
        code = RequestCode.SEND_MESSAGE_V2
        answer = await self._remote.call(
            address,
            code,
            header,
            body=bytes(record.stored_body),
            accept=STORED_CODES,
            queue=queue,
            group=group,
        )
        stored = read_header(answer, SendMessageResponseHeader, queue, queue.broker_name)
        return MessageQueue(target, queue.broker_name, stored.queue_id), stored.queue_offset


def _records(answer: Command, broker: str) -> list[RecordView]:
    try:
        return list(iter_records(bytes(answer.body)))
    except RecordError as error:
        raise remote_error(
            ResponseCode.SYSTEM_ERROR, str(error), "the answer", broker=broker
        ) from error


def received(record: RecordView, broker: str) -> FoundMessage:
    """Return a record of a broker as a message."""
    queue = MessageQueue(record.topic, broker, record.queue_id)
    return ReceivedMessage(bytes(record.raw), 0, queue, raw)


def _not_found(message_id: str, topic: str | None) -> NotFound:
    where = "" if topic is None else f" in topic {topic}"
    return NotFound(
        f"there is no message {message_id}{where}",
        code=ResponseCode.QUERY_NOT_FOUND,
        hint="it may have been deleted by age",
    )


def _queue_for(route: Route, dead: DeadMessage, turn: int) -> MessageQueue:
    """Return the queue of its sharding key, as for the first send; else number ``turn``."""
    if not route.writable:
        raise NoRoute(
            "the topic has no queue to write to",
            topic=route.topic,
            hint="look at its permission: `pocketmq topic route`",
        )
    key = dead.properties.get(properties.SHARDING_KEY)
    if key is not None:
        return by_sharding_key(route.writable, key)
    return route.writable[turn % len(route.writable)]


def _send_header(
    group: str, dead: DeadMessage, record: RecordView, queue: MessageQueue
) -> SendMessageRequestHeaderV2:
    kept = {
        name: value for name, value in dead.properties.items() if name not in _DELIVERY_PROPERTIES
    }
    kept.setdefault(properties.UNIQ_KEY, dead.id)
    kept[properties.REDRIVEN] = _mark_of(group, dead)
    return SendMessageRequestHeaderV2(
        producer_group=group,
        topic=queue.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=0,
        queue_id=queue.queue_id,
        sys_flag=record.sys_flag & (COMPRESSED | COMPRESSION_MASK),
        born_timestamp=record.born_timestamp_ms,
        flag=record.flag,
        properties=properties.encode(kept).decode(),
        reconsume_times=0,
        bname=queue.broker_name,
    )


def _mark_of(group: str, dead: DeadMessage) -> str:
    """Return the name of a dead letter, which its copy has."""
    return f"{group}~{dead.queue.broker_name}~{dead.queue.queue_id}~{dead.offset}"


def _dead_message(record: RecordView, queue: MessageQueue, committed: int) -> DeadMessage:
    own = record.properties
    try:
        body = record.body
    except BodyError:
        body = bytes(record.stored_body)
    failed = own.get(properties.DEAD_TIME, "")
    return DeadMessage(
        queue=queue,
        offset=record.queue_offset,
        topic=own.get(properties.RETRY_TOPIC),
        id=record.message_id,
        origin_id=own.get(properties.ORIGIN_MESSAGE_ID),
        retries=record.reconsume_times,
        tag=record.tags,
        keys=tuple(record.keys),
        properties=own,
        body=body,
        born_at=instant(record.born_timestamp_ms),
        died_at=instant(record.store_timestamp_ms),
        redriven=record.queue_offset < committed,
        reason=own.get(properties.DEAD_REASON),
        exception=own.get(properties.DEAD_EXCEPTION),
        consumer=own.get(properties.DEAD_CONSUMER),
        failed_at=instant(int(failed)) if re.fullmatch("[0-9]{1,13}", failed) else None,
    )
