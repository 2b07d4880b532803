"""Producers and readers of all kinds, for stores that delete messages continuously."""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from broker.store.engine import MessageStore
from remoting.pool import ConnectionPool
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.frame import cut, decode, encode
from remoting.protocol.headers.pull import (
    OffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueueRequestHeader,
)
from remoting.protocol.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from remoting.protocol.message.view import RecordView, iter_records

QUEUES: Final = 4
TOPIC: Final = "Forgotten"
SENDERS: Final = 32
PER_SECOND: Final = 1500
"""Messages per second of all senders: about 8 MB, on a machine that is fast enough."""

CRAWLED_AT_ONCE: Final = 8
"""Answers that a slow reader has asked for: more than the buffers of its connection take."""

CRAWL_BYTES: Final = 8 << 10
CRAWL_SECONDS: Final = 0.005
"""A slow reader rests so long after each few kilobytes: slow, but no reason to drop it."""

ANSWERS: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
"""The maximum number of messages of an answer."""

MAX_REMEMBERED: Final = 100_000
_HEAD = Struct(">IQ")


def body_of(number: int) -> bytes:
    """A body from which its correct contents can be computed."""
    text = b"%d " % number * (500 + number % 1500)
    return _HEAD.pack(zlib.crc32(text), number) + text


@dataclass
class Load:
    """Counters of sent and read messages.

    Attributes:
        places: of each queue, queue offset -> number of the message.
        refused: sends that the broker refused.
        read: messages that readers checked.
        moved: pulls below the beginning.
        undercut: answers all of whose messages were deleted before the reader had them.
    """

    address: str
    pool: ConnectionPool
    store: MessageStore
    places: list[dict[int, int]] = field(default_factory=lambda: [{} for _ in range(QUEUES)])
    numbers: int = 1
    refused: int = 0
    acknowledged: int = 0
    read: int = 0
    moved: int = 0
    undercut: int = 0

    async def send(self, queue_id: int) -> None:
        """Send to one queue until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            # What a full disk has held up is not caught up on.
            due = max(due + SENDERS / PER_SECOND, loop.time())
            await asyncio.sleep(due - loop.time())
            number, self.numbers = self.numbers, self.numbers + 1
            answer = await self.pool.request(self.address, send(queue_id, number), timeout=10)
            if answer.code != ResponseCode.SUCCESS:
                self.refused += 1
                await asyncio.sleep(0.05)
                continue
            self.acknowledged += 1
            places = self.places[queue_id]
            places[answer.read(SendMessageResponseHeader).queue_offset] = number
            while len(places) > MAX_REMEMBERED:
                del places[next(iter(places))]

    async def follow(self, queue_id: int) -> None:
        """Read a queue from end to end."""
        offset = 0
        while True:
            answer = await self.pool.request(self.address, pull(queue_id, offset, 64), timeout=30)
            offset = self.check(queue_id, offset, answer)
            await asyncio.sleep(0)

    async def begin(self, queue_id: int) -> None:
        """Read at the beginning, which is being deleted."""
        while True:
            header = QueueRequestHeader(topic=TOPIC, queue_id=queue_id)
            command = Command.request(RequestCode.GET_MIN_OFFSET, header)
            answer = await self.pool.request(self.address, command, timeout=10)
            offset = answer.read(OffsetResponseHeader).offset
            answer = await self.pool.request(self.address, pull(queue_id, offset, 8), timeout=30)
            self.check(queue_id, offset, answer)
            await asyncio.sleep(0)

    async def crawl(self, queue_id: int) -> None:
        """Ask for more than can be taken, take it very slowly, and fall behind by that.

        So files go that the broker still has to send.
        """
        offset = 0
        while True:
            # If the machine stalls, the broker drops this slow reader, which reconnects.
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                async with slow_connection(self.address) as (reader, writer):
                    while True:
                        writer.write(encode(pull(queue_id, offset, 1024)) * CRAWLED_AT_ONCE)
                        offset = await self._take_slowly(queue_id, offset, reader)

    async def _take_slowly(self, queue_id: int, offset: int, reader: asyncio.StreamReader) -> int:
        following = offset
        for _ in range(CRAWLED_AT_ONCE):
            whole = cut(await crawled(reader))
            assert whole is not None
            low = self.store.queries.min_offset(TOPIC, queue_id)
            following = self.check(queue_id, offset, decode(whole))
            self.undercut += offset < following <= low
        return following

    async def hold(self, queue_id: int) -> None:
        """Keep slices of the first messages until their files are deleted."""
        while True:
            low = self.store.queries.min_offset(TOPIC, queue_id)
            found = self.store.get(TOPIC, queue_id, low, 16)
            await asyncio.sleep(0.7)
            for records in found.records:
                self.check_records(queue_id, list(iter_records(records)))
            del found

    def check(self, queue_id: int, offset: int, answer: Command) -> int:
        """Check each message of an answer; return the next offset."""
        assert answer.code in ANSWERS, (answer.code, answer.remark)
        bounds = answer.read(PullMessageResponseHeader)
        following = bounds.next_begin_offset
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            assert following == bounds.min_offset > offset
            self.moved += 1
            return following
        if answer.code != ResponseCode.SUCCESS:
            assert following >= offset
            return following
        records = list(iter_records(answer.body))
        # All of them, but for those at the very beginning that went while they were read.
        offsets = [record.queue_offset for record in records]
        assert offsets == list(range(following - len(offsets), following))
        assert offsets[0] >= offset
        self.check_records(queue_id, records)
        self.read += len(records)
        return following

    def check_records(self, queue_id: int, records: list[RecordView]) -> None:
        """Check that each record is what was sent."""
        for record in records:
            assert (record.topic, record.queue_id) == (TOPIC, queue_id)
            crc, number = _HEAD.unpack_from(record.body)
            assert record.body == body_of(number)
            assert crc == zlib.crc32(record.body[_HEAD.size :])
            assert record.check_crc()
            assert self.places[queue_id].get(record.queue_offset, number) == number


def send(queue_id: int, number: int) -> Command:
    header = SendMessageRequestHeaderV2(
        producer_group="load",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=number,
        flag=0,
        properties=f"KEYS\x01key-{number}\x02",
    )
    return Command.request(RequestCode.SEND_MESSAGE_V2, header, body=body_of(number))


def pull(queue_id: int, offset: int, count: int) -> Command:
    header = PullMessageRequestHeader(
        consumer_group="readers",
        topic=TOPIC,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
    )
    return Command.request(RequestCode.PULL_MESSAGE, header)


async def crawled(reader: asyncio.StreamReader) -> bytearray:
    """Read a frame very slowly."""
    frame = bytearray(await reader.readexactly(4))
    left = int.from_bytes(frame, "big")
    while left:
        piece = await reader.read(min(left, CRAWL_BYTES))
        if not piece:
            raise ConnectionResetError("the broker has closed the connection")
        frame += piece
        left -= len(piece)
        await asyncio.sleep(CRAWL_SECONDS)
    return frame


@asynccontextmanager
async def slow_connection(
    address: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection whose buffers hold next to nothing, so that the broker has to hold it."""
    host, _, port = address.partition(":")
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=raw, limit=4096)
        try:
            yield reader, writer
        finally:
            writer.close()
