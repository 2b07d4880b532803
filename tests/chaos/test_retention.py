"""Messages are deleted all the time, under load and below slow readers: nobody gets a wrong one."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from broker.app import Broker
from broker.config import BrokerConfig
from broker.store.files import DiskUse, OsFiles, Region
from broker.store.message_store import MessageStore
from remoting.pool import ConnectionPool
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.frame import cut, decode, encode
from remoting.protocol.headers.offset import GetMinOffsetRequestHeader, GetMinOffsetResponseHeader
from remoting.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from remoting.protocol.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from remoting.protocol.message.view import RecordView, iter_records
from tests.sizes import size

SECONDS = size(ci=15.0, soak=3600.0)
CAPACITY = 32 << 20
LOG_FILE = 1 << 20
QUEUE_FILE = 20 * 500
INDEX_ENTRIES = 500
QUEUES = 4
TOPIC = "Forgotten"
SENT_AT_ONCE = 16
MAX_REMEMBERED = 100_000
HEAD = Struct(">IQ")

pytestmark = pytest.mark.timeout(SECONDS + 120)


class SmallRegion:
    """A region of a small disk, little of which is ever known to be in memory."""

    def __init__(self, region: Region, disk: SmallDisk) -> None:
        self._region = region
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._region, name)

    def write(self, position: int, data: bytes | memoryview) -> None:
        self._disk.take(len(data))
        self._region.write(position, data)

    def allocate(self, position: int, length: int) -> bool:
        self._disk.take(length)
        return self._region.allocate(position, length)

    def is_cached(self, position: int, length: int) -> bool | None:
        return random.random() < 0.5 and self._region.is_cached(position, length)


class SmallDisk(OsFiles):
    """A disk of 32 MiB; what was deleted takes its place as long as somebody holds it.

    Attributes:
        most: the most that was ever taken of it.
        most_held: the most of that by files that were deleted.
    """

    __slots__ = ("most", "most_held", "root")

    def __init__(self, root: Path) -> None:
        self.root = root
        self.most = 0
        self.most_held = 0

    def take(self, length: int) -> None:
        used = self.used()
        if used + length > CAPACITY:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.most = max(self.most, used + length)

    def used(self) -> int:
        held = deleted_bytes(self.root)
        self.most_held = max(self.most_held, held)
        return sum(_blocks(path) for path in self.root.rglob("*")) + held

    def disk_use(self, path: Path) -> DiskUse:
        used = self.used()
        return DiskUse(used, max(0, CAPACITY - used))

    def open_mapped(self, path: Path, size: int, *, create: bool) -> Region:
        return SmallRegion(super().open_mapped(path, size, create=create), self)


def _blocks(path: Path) -> int:
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0
    return status.st_blocks * 512 if path.is_file() else 0


def deleted_bytes(root: Path) -> int:
    """What files of the store take that are deleted and still mapped."""
    found: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        if str(root) in line and line.endswith("(deleted)"):
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            found[line.split(maxsplit=5)[5]] = end - begin
    return sum(found.values())


def body_of(number: int) -> bytes:
    """A body that tells what it has to be."""
    text = b"%d " % number * (500 + number % 1500)
    return HEAD.pack(zlib.crc32(text), number) + text


@dataclass
class Load:
    """What was sent, and what was found.

    Attributes:
        places: of each queue, queue offset -> number of the message.
        refused: sends that the broker refused.
        read: messages that readers checked.
        moved: pulls below the beginning.
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

    async def send(self, queue_id: int) -> None:
        """Send to one queue until cancelled."""
        while True:
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
        """Read at the very beginning, which is just being deleted."""
        while True:
            header = GetMinOffsetRequestHeader(topic=TOPIC, queue_id=queue_id)
            command = Command.request(RequestCode.GET_MIN_OFFSET, header)
            answer = await self.pool.request(self.address, command, timeout=10)
            offset = answer.read(GetMinOffsetResponseHeader).offset
            answer = await self.pool.request(self.address, pull(queue_id, offset, 8), timeout=30)
            self.check(queue_id, offset, answer)
            await asyncio.sleep(0)

    async def crawl(self, queue_id: int) -> None:
        """Read in large pieces and very slowly, so that files go below what is held."""
        offset = 0
        async with slow_connection(self.address) as (reader, writer):
            while True:
                writer.write(encode(pull(queue_id, offset, 1024)))
                frame = bytearray(await reader.readexactly(4))
                left = int.from_bytes(frame, "big")
                while left:
                    piece = await reader.read(min(left, 32 << 10))
                    assert piece, "the broker has closed the connection"
                    frame += piece
                    left -= len(piece)
                    await asyncio.sleep(0.02)
                whole = cut(frame)
                assert whole is not None
                offset = self.check(queue_id, offset, decode(whole))

    async def hold(self, queue_id: int) -> None:
        """Keep slices of the first messages until their files are gone."""
        while True:
            low = self.store.min_offset(TOPIC, queue_id)
            found = self.store.get(TOPIC, queue_id, low, 16)
            await asyncio.sleep(0.7)
            for records in found.records:
                self.check_records(queue_id, list(iter_records(records)))
            del found

    def check(self, queue_id: int, offset: int, answer: Command) -> int:
        """Look at each message of an answer; where to read on."""
        bounds = answer.read(PullMessageResponseHeader)
        following = bounds.next_begin_offset
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            assert following == bounds.min_offset > offset
            self.moved += 1
            return following
        if answer.code != ResponseCode.SUCCESS:
            assert answer.code in {
                ResponseCode.PULL_NOT_FOUND,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
            }, answer
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
        """Each is what was sent."""
        for record in records:
            assert (record.topic, record.queue_id) == (TOPIC, queue_id)
            crc, number = HEAD.unpack_from(record.body)
            assert record.body == body_of(number)
            assert crc == zlib.crc32(record.body[HEAD.size :])
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


def open_files(root: Path) -> list[str]:
    """Descriptors of this process to files of the store that are deleted."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            target = str(path.readlink())
            if target.startswith(str(root)) and target.endswith("(deleted)"):
                found.append(target)
    return found


async def test_readers_get_what_was_sent_while_files_go(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path)
    config = BrokerConfig(
        broker_name="broker-a",
        listen_port=0,
        store_path_root_dir=tmp_path,
        mapped_file_size_commit_log=LOG_FILE,
        mapped_file_size_consume_queue=QUEUE_FILE,
        clean_resource_interval_ms=200,
        max_hash_slots=500,
        max_index_entries=INDEX_ENTRIES,
    )
    pool = ConnectionPool()
    async with Broker(config, files=disk) as broker:
        await pool.request(broker.address, send(0, 0), timeout=10)
        load = Load(broker.address, pool, broker.store)
        await run(load, SECONDS)
        retention = broker.store.retention
        stats = retention.stats
        await settle(lambda: not open_files(tmp_path) and not retention.held_bytes)
        logs = list((tmp_path / "commitlog").iterdir())
        queues = list((tmp_path / "consumequeue" / TOPIC).glob("*/*"))
        begins = [broker.store.min_offset(TOPIC, queue) for queue in range(QUEUES)]
        ends = [broker.store.max_offset(TOPIC, queue) for queue in range(QUEUES)]
    await pool.close()
    indexes = list((tmp_path / "index").iterdir())
    left = sum(end - begin for begin, end in zip(begins, ends, strict=True))

    assert disk.most <= CAPACITY
    assert disk.most_held >= LOG_FILE
    assert stats.log_files > 10
    assert stats.queue_files > 0
    assert load.acknowledged > 1000
    assert load.read > 1000
    assert load.moved > 0
    # Nothing is left behind: no files of the log, of the index or of the queues.
    assert len(indexes) <= left // (INDEX_ENTRIES - 1) + 2
    assert len(logs) <= CAPACITY // LOG_FILE + 2
    wanted = [end // 500 - begin // 500 + 2 for begin, end in zip(begins, ends, strict=True)]
    assert len(queues) <= sum(wanted)
    assert deleted_bytes(tmp_path) == 0


async def run(load: Load, seconds: float) -> None:
    """Senders and readers of all kinds, for so long; the first that fails ends it."""
    some = (load.follow, load.begin, load.crawl, load.hold)
    tasks = [asyncio.create_task(read(queue)) for read in some for queue in range(QUEUES)]
    for queue in range(QUEUES):
        tasks += [asyncio.create_task(load.send(queue)) for _ in range(SENT_AT_ONCE)]
    ended, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended:
        await task


async def settle(is_done: Callable[[], bool]) -> None:
    """Wait until answers to those who have gone are gone too."""
    async with asyncio.timeout(60):
        while True:
            if is_done():
                return
            await asyncio.sleep(0.1)
