"""A connection decodes bytes to commands, and encodes commands in few writes."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.connection import Connection
from remoting.counters import CloseReason
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.errors import FrameError
from remoting.protocol.frame import GATHER_BYTES, Frame, cut, encode
from remoting.runtime.log import MAX_PER_SECOND
from tests.unit.remoting.transcripts import Peer, echo, read_all, request, turns


async def test_every_request_of_one_read_is_answered_in_one_write() -> None:
    peer = Peer(handler=echo)
    peer.arrive(*(request(opaque=n, body=b"%d" % n) for n in range(5)))
    assert len(peer.transport.writes) == 1
    assert [(answer.opaque, bytes(answer.body)) for answer in peer.written()] == [
        (n, b"%d" % n) for n in range(5)
    ]
    assert peer.counters.frames_in == 5


@given(
    st.lists(st.binary(max_size=30), min_size=1, max_size=6),
    st.lists(st.integers(min_value=0), max_size=30),
)
def test_the_cut_of_the_reads_does_not_matter(bodies: list[bytes], cuts: list[int]) -> None:
    async def scenario() -> None:
        peer = Peer(handler=echo)
        data = b"".join(encode(request(opaque=n, body=body)) for n, body in enumerate(bodies))
        bounds = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
        for start, end in itertools.pairwise(bounds):
            peer.connection.data_received(data[start:end])
        await turns()
        answers = peer.written()
        assert [bytes(answer.body) for answer in answers] == bodies
        assert peer.counters.bytes_in == len(data)
        peer.endpoint.alarms.close()

    asyncio.run(scenario())


async def test_frames_sent_in_one_loop_iteration_are_one_write() -> None:
    peer = Peer()
    for n in range(3):
        peer.connection.send(request(opaque=n))
    peer.connection.send_bytes(encode(request(opaque=3)))
    peer.connection.send_with_body(request(opaque=4), [b"ab", memoryview(b"cd")])
    assert peer.transport.writes == []
    await turns()
    assert len(peer.transport.writes) == 1
    heard = peer.written()
    assert [command.opaque for command in heard] == [0, 1, 2, 3, 4]
    assert bytes(heard[-1].body) == b"abcd"


@pytest.mark.parametrize(
    ("size", "is_copied"), [(GATHER_BYTES, True), (GATHER_BYTES * 2, False)], ids=["small", "large"]
)
async def test_large_parts_are_not_copied_before_they_are_written(
    size: int, is_copied: bool
) -> None:
    peer = Peer()
    body = memoryview(bytes(size))
    peer.connection.send_with_body(Command(0, 7), [body])
    peer.connection.flush()
    parts = [part for gathered in peer.transport.gathered for part in gathered]
    assert any(part is body for part in parts) != is_copied
    [answer] = peer.written()
    assert (answer.opaque, answer.body) == (7, body)
    assert peer.counters.bytes_out > size


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"\0\0\0\0\0\0\0\0",
        b"\xff\xff\xff\xff\0\0\0\0",
        b"\0\0\0\x08\x07\0\0\x04{}  ",
        b"\0\0\0\x08\0\0\0\x04{[[[",
        b"\0\0\0\x08\x01\0\0\x04\0\0\0\0",
    ],
)
async def test_garbage_ends_the_connection_and_is_counted(garbage: bytes) -> None:
    peer = Peer(handler=echo)
    peer.connection.data_received(encode(request(opaque=1)) + garbage)
    assert [answer.opaque for answer in peer.written()] == [1], "what came before it was done"
    assert peer.connection.closed
    assert "invalid frame" in peer.connection.close_reason
    assert peer.counters.dropped[CloseReason.BAD_FRAME] == 1
    peer.connection.data_received(encode(request(opaque=2)))
    assert peer.written() == []


async def test_garbage_behind_an_incomplete_frame_ends_the_connection_too() -> None:
    peer = Peer(handler=echo)
    whole = encode(request(opaque=1))
    peer.connection.data_received(whole[:6])
    peer.connection.data_received(whole[6:] + b"\x7f\xff\xff\xff")
    assert peer.connection.closed
    assert peer.counters.dropped[CloseReason.BAD_FRAME] == 1


async def test_an_owner_may_bring_its_own_feed() -> None:
    def factory(connection: Connection) -> object:
        def feed(buffer: bytes, position: int) -> int:
            while frame := cut(buffer, position):
                hot(connection, frame)
                position = frame.end
            return position

        return feed

    def hot(connection: Connection, frame: Frame) -> None:
        if frame.body:
            connection.send_bytes(b"hot")
        else:
            connection.receive(frame)

    peer = Peer(handler=echo, feed_factory=factory)
    peer.arrive(request(body=b"x"))
    assert peer.transport.writes == [b"hot"]
    peer.transport.writes.clear()
    peer.arrive(request(opaque=4))
    assert [answer.opaque for answer in peer.written()] == [4]


@pytest.mark.parametrize("fault", ["raises", "stands still", "overruns"])
async def test_a_faulty_feed_ends_its_connection_only(fault: str) -> None:
    def feed(buffer: bytes, position: int) -> int:
        if fault == "raises":
            raise KeyError("a fault")
        return position if fault == "stands still" else len(buffer) + 1

    peer = Peer(feed_factory=lambda _connection: feed)
    peer.arrive(request())
    assert peer.connection.closed
    assert peer.connection.close_reason == "its feed failed"


async def test_feeds_that_fail_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    def feed(_buffer: bytes, _position: int) -> int:
        raise KeyError("a fault")

    endpoint = Peer(feed_factory=lambda _connection: feed).endpoint
    for _ in range(2 * MAX_PER_SECOND):
        Peer(endpoint=endpoint).arrive(request())
    failures = [record for record in caplog.records if "feed failed" in record.message]
    assert len(failures) == MAX_PER_SECOND
    assert all(record.exc_info for record in failures)


async def test_a_feed_may_refuse_a_frame() -> None:
    def feed(_buffer: bytes, _position: int) -> int:
        raise FrameError("not here")

    peer = Peer(feed_factory=lambda _connection: feed)
    peer.arrive(request())
    assert peer.counters.dropped[CloseReason.BAD_FRAME] == 1


async def test_a_draining_endpoint_sends_answers_and_accepts_no_requests() -> None:
    done: list[int] = []
    peer = Peer(
        handler=lambda command, _: done.append(command.code),
        feed_factory=lambda _connection: lambda buffer, _position: len(buffer),
    )
    asking = peer.connection.request_nowait(Command.request(40), timeout=3)
    peer.endpoint.draining = True
    peer.connection.stop_requests()
    await turns()
    peer.arrive(request(10), peer.written()[0].reply())
    assert done == []
    assert (await asking).code == 0


async def test_failing_callbacks_of_the_owner_do_no_harm() -> None:
    def fail(_connection: Connection) -> None:
        raise ValueError("a fault of the owner")

    peer = Peer(handler=echo, on_close=fail)
    peer.arrive(request())
    assert len(peer.written()) == 1
    peer.vanish()
    assert peer.endpoint.connections == set()


async def test_a_connection_above_the_limit_is_refused_without_notifying_the_owner() -> None:
    closed_connections: list[Connection] = []
    peer = Peer(max_connections=0, on_close=closed_connections.append)
    assert peer.transport.aborted
    assert peer.counters.connections_refused == 1
    peer.connection.data_received(encode(request()))
    peer.vanish()
    assert closed_connections == []
    assert peer.counters.connections_closed == 0


async def test_requests_before_the_end_of_the_stream_are_processed() -> None:
    peer = Peer(handler=echo)
    peer.arrive(request())
    assert not peer.connection.eof_received()
    assert len(peer.written()) == 1


async def test_a_close_sends_pending_output() -> None:
    peer = Peer()
    peer.connection.send(request(opaque=1))
    peer.connection.close("enough")
    peer.connection.close("again")
    assert [command.opaque for command in peer.written()] == [1]
    assert peer.transport.closing
    assert peer.connection.close_reason == "enough"
    waiting = asyncio.ensure_future(peer.connection.wait_closed())
    await turns()
    assert not waiting.done()
    peer.vanish()
    await waiting


async def test_an_abort_sends_nothing() -> None:
    peer = Peer()
    peer.connection.send(request(opaque=1))
    peer.connection.abort()
    peer.connection.abort()
    await turns()
    assert peer.written() == []
    assert peer.transport.aborted
    assert "aborted" in peer.connection.close_reason


async def test_a_connection_has_its_addresses_and_a_readable_repr() -> None:
    peer = Peer()
    assert peer.connection.remote == ("10.0.0.9", 4711)
    assert peer.connection.remote_text == "10.0.0.9:4711"
    assert peer.connection.local == ("10.0.0.1", 10911)
    assert repr(peer.connection) == "<Connection 10.0.0.9:4711>"
    peer.vanish()
    assert repr(peer.connection) == "<Connection 10.0.0.9:4711 closed>"
    assert peer.connection.close_reason == "closed by the peer"


def test_request_codes_and_transcripts_use_the_same_protocol() -> None:
    assert read_all(encode(request(RequestCode.HEART_BEAT)))[0].code == 34
