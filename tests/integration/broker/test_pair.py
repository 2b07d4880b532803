"""A slave's store becomes, and stays, a copy of its master's: over real sockets, in one loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from broker.replication.master import MAX_SLAVES, ReplicationServer
from broker.replication.slave import LogReplica, Master
from broker.replication.stream import HEADER, REPORT
from broker.store.engine import MessageStore
from remoting.errors import RemotingError
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.query import ViewMessageRequestHeader
from remoting.protocol.message.record import MAGIC_V1, MAGIC_V2, encode_record
from remoting.protocol.own_codes import OwnRequestCode
from remoting.runtime.clock import SystemClock
from tests.unit.broker.store.stores import (
    BORN_HOST,
    LOG_FILE,
    NOTHING_HOT,
    FailingFiles,
    bodies,
    message,
    opened,
)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the stores have no events
            await asyncio.sleep(0.005)


class Requests:
    """Answers the requests of slaves as a master's broker does."""

    def __init__(self, master: MessageStore) -> None:
        self.master = master
        self.new_token: Callable[[], bytes] | None = None
        self.down = False

    async def __call__(self, address: str, command: Command, *, timeout: float) -> Command:
        if self.down:
            raise RemotingError(f"{address} is down")
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            log = self.master.log
            table = {"commitLogMinOffset": str(log.start), "commitLogMaxOffset": str(log.end)}
            return command.reply(body=encode(KVTable(table)))
        if command.code == OwnRequestCode.GET_REPLICATION_TOKEN:
            if self.new_token is None:
                return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
            return command.reply(body=self.new_token())
        header = command.read(ViewMessageRequestHeader)
        record = self.master.queries.record_at(header.offset)
        if record is None:
            return command.reply(ResponseCode.SYSTEM_ERROR, "can not find message by the offset")
        return command.reply(body=bytes(record))


class Pair:
    """A master's store with its replication port, and a slave's store."""

    def __init__(self, root: Path, master: dict[str, Any], slave: dict[str, Any]) -> None:
        self.root = root
        self.clock = SystemClock()
        self.master = opened(root / "master", **master)
        self.slave = opened(root / "slave", **slave)
        self.requests = Requests(self.master)
        self.rate: int | None = None
        self.needs_token = False
        self.server = ReplicationServer(
            self.master,
            self.clock,
            host="127.0.0.1",
            port=0,
            is_allowed=lambda _: not self.needs_token,
            rate=lambda: self.rate,
        )
        self.replica: LogReplica
        self.peers: list[Peer] = []
        self.liar: asyncio.Server | None = None
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.master.start(loop)
        self.slave.start(loop)
        await self.server.start()
        self.follow()

    def follow(self, *, port: int | None = None) -> None:
        where = Master("127.0.0.1:1", f"127.0.0.1:{port or self.server.port}")

        async def find_master() -> Master:
            return where

        self.replica = LogReplica(self.slave, self.clock, self.requests, find_master)
        self._following = asyncio.create_task(self.replica.run())

    async def leave(self) -> None:
        """Stop the slave's replication."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def same(self) -> None:
        """Wait until the slave has all of the master's log, and compare the two."""
        await until(lambda: self.slave.log.end == self.master.log.end)
        logs = [b"".join(bytes(f.view) for f in s.log.files) for s in (self.master, self.slave)]
        assert logs[0] == logs[1]

    async def stop(self) -> None:
        await self.leave()
        if self.liar is not None:
            self.liar.close()
        await self.server.stop()
        for peer in self.peers:
            await peer.close()
        self.slave.close()
        self.master.close()


Start = Callable[..., Awaitable[Pair]]


@pytest_asyncio.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    pairs: list[Pair] = []

    async def begin(
        *,
        fill: int = 0,
        master: dict[str, Any] | None = None,
        slave: dict[str, Any] | None = None,
        prepare: Callable[[Pair], None] = lambda _: None,
    ) -> Pair:
        pair = Pair(tmp_path / str(len(pairs)), master or {}, slave or {})
        pairs.append(pair)
        for number in range(fill):
            pair.master.put(message(b"%d" % number * 100))
        prepare(pair)
        await pair.start()
        return pair

    yield begin
    for pair in pairs:
        await pair.stop()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_slave_gets_what_is_there_and_what_comes(start: Start, flush: str) -> None:
    kind = {"flush_disk_type": flush}
    pair = await start(fill=300, master=kind, slave=kind)
    await pair.same()
    for number in range(50):
        pair.master.put(message(b"more %d" % number))
        await asyncio.sleep(0)
    await pair.same()
    await until(lambda: len(bodies(pair.slave)) == 350)
    assert bodies(pair.slave) == bodies(pair.master)
    await until(lambda: pair.server.replicated == pair.master.log.end)
    assert pair.replica.state.connected
    assert pair.replica.state.master_end == pair.master.log.end


async def test_an_empty_slave_of_an_empty_master_waits(start: Start) -> None:
    pair = await start()
    await until(lambda: len(pair.server.links) == 1)
    pair.master.put(message(b"first"))
    await pair.same()
    assert bodies(pair.slave) == [b"first"]


async def test_a_slave_gets_all_files_that_the_master_still_has(start: Start) -> None:
    def delete_first(pair: Pair) -> None:
        pair.master.log.drop_before(2 * LOG_FILE)

    pair = await start(fill=400, prepare=delete_first)
    assert pair.master.log.start == 2 * LOG_FILE
    await pair.same()
    assert pair.slave.log.start == 2 * LOG_FILE


async def test_what_is_not_in_memory_is_read_by_threads(start: Start) -> None:
    pair = await start(fill=400, master={"limits": NOTHING_HOT})
    await pair.same()


async def test_a_slave_goes_on_after_its_connection_was_cut(start: Start) -> None:
    pair = await start(fill=20)
    await pair.same()
    await pair.leave()
    await until(lambda: not pair.server.links)
    for number in range(100):
        pair.master.put(message(b"%d" % number * 90))
    pair.follow()
    await pair.same()


async def test_a_slave_that_is_stopped_while_its_connection_ends_follows_no_more(
    start: Start,
) -> None:
    pair = await start()
    await pair.leave()
    pair.follow()
    await pair.leave()  # before it begins

    def both_at_once() -> None:
        following.cancel()
        raise OSError("the connection is lost")

    following = asyncio.create_task(pair.replica.run(both_at_once))
    async with asyncio.timeout(10):
        await asyncio.gather(following, return_exceptions=True)
    assert following.cancelled()


async def test_a_slave_that_has_other_messages_appends_nothing_and_says_where(
    start: Start,
) -> None:
    def diverge(pair: Pair) -> None:
        pair.slave.put(message(b"another one"))

    pair = await start(fill=3, prepare=diverge)
    await until(lambda: pair.replica.state.problem is not None)
    assert pair.replica.state.differs
    assert "the record at offset 0" in (pair.replica.state.problem or "")
    assert bodies(pair.slave) == [b"another one"]
    assert not pair.server.links


async def test_a_slave_with_more_than_its_master_appends_nothing(start: Start) -> None:
    def diverge(pair: Pair) -> None:
        for _ in range(5):
            pair.slave.put(message(b"0" * 100))

    pair = await start(fill=3, prepare=diverge)
    await until(lambda: pair.replica.state.differs)
    assert "has messages that the master lacks" in (pair.replica.state.problem or "")
    assert len(bodies(pair.slave)) == 5


async def test_a_master_that_does_not_answer_is_asked_again(start: Start) -> None:
    def go_down(pair: Pair) -> None:
        pair.requests.down = True

    pair = await start(fill=3, prepare=go_down)
    await until(lambda: pair.replica.state.problem is not None)
    assert pair.replica.state.problem == "127.0.0.1:1 is down"
    assert not pair.replica.state.differs
    pair.requests.down = False
    await pair.same()
    await until(lambda: pair.replica.state.problem is None)


async def test_a_slave_whose_disk_is_full_says_so_serves_reads_and_goes_on(start: Start) -> None:
    disk = FailingFiles()
    pair = await start(fill=5, slave={"files": disk})
    await pair.same()
    disk.full = True
    for number in range(200):
        pair.master.put(message(b"%d" % number * 100))
    await until(lambda: pair.replica.state.problem is not None)
    assert "no space left" in (pair.replica.state.problem or "")
    assert not pair.replica.state.connected
    # The master goes on, and what is there can be read.
    assert bodies(pair.slave) == bodies(pair.master)[: len(bodies(pair.slave))]
    assert len(bodies(pair.slave)) >= 5
    disk.full = False
    await pair.same()
    await until(lambda: bodies(pair.slave) == bodies(pair.master))
    assert pair.replica.state.problem is None


async def test_a_slave_with_files_of_another_size_appends_nothing_that_crosses_them(
    start: Start,
) -> None:
    pair = await start(fill=300, slave={"mapped_file_size_commit_log": LOG_FILE // 2})
    await until(lambda: pair.replica.state.differs)
    assert "use the master's mappedFileSizeCommitLog" in (pair.replica.state.problem or "")
    assert bodies(pair.slave) == bodies(pair.master)[: len(bodies(pair.slave))]


# --- what a master may send


async def follow(pair: Pair, *frames: bytes | bytearray, then_close: bool = True) -> None:
    """Let the slave follow a master that sends these bytes to each connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for frame in frames:
            writer.write(frame)
        if not then_close:
            await reader.read()
        writer.close()

    pair.liar = await asyncio.start_server(serve, "127.0.0.1", 0)
    pair.follow(port=pair.liar.sockets[0].getsockname()[1])


def whole(pair: Pair, *, magic: bytes | None = None) -> bytes:
    """Return a frame with the master's log behind the slave's, perhaps of another version."""
    (file,) = pair.master.log.files
    record = bytearray(file.view[pair.slave.log.end : pair.master.log.end])
    if magic is not None:
        record[4:8] = magic
    return HEADER.pack(pair.slave.log.end, len(record)) + record


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (lambda pair: HEADER.pack(0, 5) + b"12345", "sends its log from offset 0"),
        (lambda pair: HEADER.pack(1 << 60, 0), "from offset 1152921504606846976"),
        (lambda pair: HEADER.pack(pair.slave.log.end, -1), "a frame of -1 bytes"),
        (lambda pair: HEADER.pack(pair.slave.log.end, 1 << 30), "a frame of 1073741824 bytes"),
        (lambda pair: whole(pair, magic=b"\xda\xa3\x20\xaf"), "has no record at offset"),
        (lambda pair: HEADER.pack(pair.slave.log.end, 200) + bytes(200), "has no record at offset"),
        (lambda pair: HEADER.pack(pair.slave.log.end, 200)[:7], "closed the connection"),
        (lambda pair: whole(pair)[:-1], "closed the connection"),
        (lambda pair: b"HTTP/1.1 400 Bad Request\r\n\r\n", "sends its log from offset"),
    ],
)
async def test_a_master_that_lies_changes_nothing_and_the_reason_is_told(
    start: Start, lie: Callable[[Pair], bytes], reason: str
) -> None:
    pair = await start(fill=3)
    await pair.same()
    await pair.leave()
    pair.master.put(message(b"next"))
    before = pair.slave.log.end
    await follow(pair, lie(pair))
    await until(lambda: pair.replica.state.problem is not None)
    assert reason in (pair.replica.state.problem or "")
    assert pair.slave.log.end == before
    # The real master is followed again.
    await pair.leave()
    pair.follow()
    await pair.same()


@pytest.mark.parametrize("magic", [MAGIC_V1, MAGIC_V2])
async def test_both_versions_of_records_are_copied(start: Start, magic: int) -> None:
    pair = await start()
    await until(lambda: len(pair.server.links) == 1)
    await pair.leave()
    record = encode_record(
        topic="TopicTest",
        body=b"1",
        born_host=BORN_HOST,
        store_host=BORN_HOST,
        magic=magic,
    )
    await follow(pair, HEADER.pack(0, len(record)) + record, then_close=False)
    await until(lambda: bodies(pair.slave) == [b"1"])


@pytest.mark.parametrize("first", [0, 0x7F], ids=["sound", "damaged"])
async def test_half_a_frame_is_no_message_until_the_rest_comes(start: Start, first: int) -> None:
    pair = await start(fill=3)
    await pair.same()
    await pair.leave()
    pair.master.put(message(b"next"))
    frame = bytearray(whole(pair)[:-1])
    frame[HEADER.size] = first  # of the record's size
    await follow(pair, frame, then_close=False)
    await until(lambda: pair.replica.state.connected)
    await asyncio.sleep(0.05)
    assert len(bodies(pair.slave)) == 3
    assert pair.replica.state.problem is None


# --- peers of the master's port


class Peer:
    """A stranger, or an odd slave."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, pair: Pair) -> Peer:
        peer = cls(*await asyncio.open_connection("127.0.0.1", pair.server.port))
        pair.peers.append(peer)
        return peer

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    async def read(self) -> bytes:
        """Read until the master closes the connection."""
        async with asyncio.timeout(20):
            with suppress(ConnectionError):
                return await self.reader.read()
        return b""

    def report(self, offset: int) -> None:
        self.writer.write(REPORT.pack(offset))

    async def frame(self) -> tuple[int, bytes]:
        async with asyncio.timeout(10):
            offset, size = HEADER.unpack(await self.reader.readexactly(HEADER.size))
            return offset, await self.reader.readexactly(size)


async def test_a_silent_peer_and_half_a_report_hold_up_no_slave(start: Start) -> None:
    pair = await start(fill=5)
    _, half = await Peer.connect(pair), await Peer.connect(pair)
    half.writer.write(REPORT.pack(0)[:3])
    pair.master.put(message(b"later"))
    await pair.same()
    await until(lambda: pair.server.replicated == pair.master.log.end)


@pytest.mark.parametrize("lie", [1 << 40, (1 << 63) - 1])
async def test_a_peer_that_lies_about_its_end_acknowledges_nothing(start: Start, lie: int) -> None:
    pair = await start(fill=5)
    await pair.leave()
    await until(lambda: not pair.server.links)
    stranger = await Peer.connect(pair)
    stranger.report(lie)
    await until(lambda: len(pair.server.links) == 1)
    stranger.report(lie)
    await asyncio.sleep(0.05)
    assert pair.server.replicated == 0

    liar = await Peer.connect(pair)
    liar.report(0)
    offset, data = await liar.frame()
    assert (offset, len(data)) == (0, pair.master.log.end)
    liar.report(lie)
    assert await liar.reader.read() == b""
    assert pair.server.replicated == 0


async def test_a_slave_that_does_not_read_holds_up_no_other(start: Start) -> None:
    # More than the buffers of a connection, in few files.
    files = {"mapped_file_size_commit_log": 1024 * 1024}
    pair = await start(master=files, slave=files)
    lazy = await Peer.connect(pair)
    lazy.report(0)
    await until(lambda: len(pair.server.links) == 2)
    for number in range(200):
        pair.master.put(message(b"%03d" % number * 20_000))
        await asyncio.sleep(0)
    await pair.same()


async def test_acknowledgements_of_a_slave_that_has_gone_do_not_count(start: Start) -> None:
    pair = await start(fill=5)
    await until(lambda: pair.server.replicated == pair.master.log.end)
    await pair.leave()
    await until(lambda: not pair.server.links)
    assert pair.server.replicated == 0


async def needs_token(start: Start) -> Pair:
    """Start a pair whose master lets no address in without a token, and end the replication."""

    def close(pair: Pair) -> None:
        pair.needs_token = True

    pair = await start(fill=5, prepare=close)
    await pair.leave()
    await until(lambda: not pair.server.links)
    return pair


async def test_from_another_address_a_slave_gets_in_with_a_token(start: Start) -> None:
    pair = await needs_token(start)
    pair.requests.new_token = pair.server.new_token
    pair.follow()
    await pair.same()
    await until(lambda: pair.server.replicated == pair.master.log.end)
    # With each connection another one.
    await pair.leave()
    pair.master.put(message(b"later"))
    pair.follow()
    await pair.same()


@pytest.mark.parametrize("begin", [b"", REPORT.pack(-1), REPORT.pack(-1 << 63), b"GET / HTTP/1.1"])
async def test_a_stranger_from_another_address_gets_nothing(start: Start, begin: bytes) -> None:
    pair = await needs_token(start)
    stranger = await Peer.connect(pair)
    stranger.writer.write(begin + REPORT.pack(0))
    assert await stranger.read() == b""
    assert not pair.server.links


async def test_strangers_keep_no_slave_out_whose_address_is_listed(start: Start) -> None:
    pair = await needs_token(start)
    strangers = [await Peer.connect(pair) for _ in range(MAX_SLAVES + 1)]
    assert await strangers[0].read() == b"", "no more may wait for their tokens"
    pair.needs_token = False
    listed = await Peer.connect(pair)
    listed.writer.write(REPORT.pack(0))
    assert (await listed.frame())[0] == 0


async def test_silent_strangers_keep_no_slave_out_that_has_a_token(start: Start) -> None:
    pair = await needs_token(start)
    for _ in range(MAX_SLAVES):
        await Peer.connect(pair)
    slave = await Peer.connect(pair)
    slave.writer.write(pair.server.new_token() + REPORT.pack(0))
    assert (await slave.frame())[0] == 0


async def test_a_token_lets_one_connection_in_and_an_old_one_none(start: Start) -> None:
    pair = await needs_token(start)
    token = pair.server.new_token()
    first, second = await Peer.connect(pair), await Peer.connect(pair)
    first.writer.write(token + REPORT.pack(0))
    assert (await first.frame())[0] == 0
    second.writer.write(token + REPORT.pack(0))
    assert await second.read() == b""

    old = pair.server.new_token()
    for _ in range(MAX_SLAVES):
        pair.server.new_token()
    third = await Peer.connect(pair)
    third.writer.write(old + REPORT.pack(0))
    assert await third.read() == b""


async def test_a_limited_master_sends_a_slave_so_many_bytes_per_second(start: Start) -> None:
    def limit(pair: Pair) -> None:
        pair.rate = 5_000

    began = SystemClock().monotonic()
    pair = await start(fill=300, prepare=limit)
    await until(lambda: pair.slave.log.end > 5_000)
    assert pair.clock.monotonic() - began >= 1
    pair.rate = None
    await pair.same()
