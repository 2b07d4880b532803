"""A connection turns bytes into commands, and commands into as few writes as can be."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.connection import Connection
from remoting.errors import ConnectionLost, RequestTimeout, TooManyRequests
from remoting.limits import ConnectionLimits
from remoting.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import BodyError, FrameError, HeaderError
from remoting.protocol.frame import Frame, cut, encode
from tests.unit.remoting.transcripts import Peer, read_all, request, turns


def echo(command: Command, _connection: Connection) -> Command:
    return command.reply(body=bytes(command.body))


async def test_every_request_of_one_read_is_answered_in_one_write() -> None:
    peer = Peer(handler=echo)
    peer.says(*(request(opaque=n, body=b"%d" % n) for n in range(5)))
    assert len(peer.transport.writes) == 1
    assert [(answer.opaque, bytes(answer.body)) for answer in peer.hears()] == [
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
        answers = peer.hears()
        assert [bytes(answer.body) for answer in answers] == bodies
        assert peer.counters.bytes_in == len(data)
        peer.endpoint.alarms.close()

    asyncio.run(scenario())


async def test_what_is_sent_in_one_turn_is_one_write() -> None:
    peer = Peer()
    for n in range(3):
        peer.connection.send(request(opaque=n))
    peer.connection.send_bytes(encode(request(opaque=3)))
    peer.connection.send_with_body(request(opaque=4), [b"ab", memoryview(b"cd")])
    assert peer.transport.writes == []
    await turns()
    assert len(peer.transport.writes) == 1
    heard = peer.hears()
    assert [command.opaque for command in heard] == [0, 1, 2, 3, 4]
    assert bytes(heard[-1].body) == b"abcd"


async def test_answers_find_those_who_wait_whatever_their_order() -> None:
    peer = Peer(serving=False)
    futures = [peer.connection.request_nowait(request(), timeout=3) for _ in range(3)]
    await turns()
    asked = peer.hears()
    assert len({command.opaque for command in asked}) == 3
    for command in reversed(asked):
        peer.says(command.reply(body=b"%d" % command.opaque))
    for command, future in zip(asked, futures, strict=True):
        assert bytes((await future).body) == b"%d" % command.opaque
    assert peer.counters.responses_unknown == 0


async def test_an_answer_nobody_asked_for_is_dropped_and_counted() -> None:
    peer = Peer(serving=False)
    peer.says(Command(0, 77, FLAG_RESPONSE))
    assert peer.counters.responses_unknown == 1
    assert not peer.connection.closed


async def test_an_answer_after_the_timeout_is_dropped_and_counted() -> None:
    peer = Peer(serving=False)
    asking = asyncio.ensure_future(peer.connection.request(request(105), timeout=3))
    await turns()
    peer.wait(2.9)
    assert not asking.done()
    peer.wait(0.2)
    with pytest.raises(RequestTimeout, match=r"10\.0\.0\.9:4711 .* request 105 within 3 s"):
        await asking
    assert peer.counters.requests_timed_out == 1
    peer.says(peer.hears()[0].reply())
    assert peer.counters.responses_unknown == 1


async def test_each_request_has_its_own_timeout() -> None:
    peer = Peer(serving=False)
    slow = peer.connection.request_nowait(request(), timeout=30)
    quick = peer.connection.request_nowait(request(), timeout=1)
    peer.wait(1.1)
    assert isinstance(quick.exception(), RequestTimeout)
    assert not slow.done()
    peer.wait(29)
    assert isinstance(slow.exception(), RequestTimeout)


async def test_a_cancelled_request_is_forgotten_and_its_answer_dropped() -> None:
    peer = Peer(serving=False)
    asking = asyncio.ensure_future(peer.connection.request(request(), timeout=3))
    await turns()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    peer.says(peer.hears()[0].reply())
    assert peer.counters.responses_unknown == 1
    peer.wait(5)
    assert peer.counters.requests_timed_out == 0


async def test_a_cancelled_future_is_forgotten_when_its_time_is_up() -> None:
    peer = Peer(serving=False, limits=ConnectionLimits(max_pending_requests=1))
    peer.connection.request_nowait(request(), timeout=3).cancel()
    with pytest.raises(TooManyRequests, match="1 requests wait"):
        peer.connection.request_nowait(request(), timeout=3)
    peer.wait(3.1)
    peer.connection.request_nowait(request(), timeout=3).cancel()


async def test_the_end_of_the_connection_fails_all_who_wait() -> None:
    peer = Peer(serving=False)
    futures = [peer.connection.request_nowait(request(), timeout=3) for _ in range(2)]
    futures.append(peer.connection.request_nowait(request(), timeout=3))
    futures[2].cancel()
    peer.vanish(ConnectionResetError("reset"))
    for future in futures[:2]:
        with pytest.raises(ConnectionLost, match="reset"):
            await future
    with pytest.raises(ConnectionLost):
        peer.connection.request_nowait(request(), timeout=3)
    with pytest.raises(ConnectionLost):
        peer.connection.send_oneway(request())
    with pytest.raises(ConnectionLost):
        await peer.connection.drain()
    peer.connection.send(request())
    peer.connection.send_bytes(b"x")
    peer.connection.send_with_body(request(), [b"x"])
    assert peer.connection.unsent_bytes == 0
    assert peer.counters.connections_closed == 1


async def test_a_oneway_request_is_done_and_never_answered() -> None:
    done: list[int] = []

    def handler(command: Command, _connection: Connection) -> Command | Awaitable[Command]:
        done.append(command.code)
        if command.code == 11:
            return later(command)
        if command.code == 12:
            raise ValueError("no")
        return command.reply()

    async def later(command: Command) -> Command:
        return command.reply()

    peer = Peer(handler=handler)
    peer.says(*(request(code, oneway=True) for code in (10, 11, 12)))
    await turns(6)
    assert done == [10, 11, 12]
    assert peer.hears() == []


async def test_a_oneway_request_waits_for_nothing() -> None:
    peer = Peer(serving=False)
    peer.connection.send_oneway(Command.request(35, oneway=True))
    await turns()
    assert [command.is_oneway for command in peer.hears()] == [True]
    assert not peer.connection._is_busy()


async def test_a_server_asks_its_client_the_same_way() -> None:
    server = Peer(serving=True)
    client = Peer(serving=False, handler=echo)
    asking = server.connection.request_nowait(Command.request(40, body=b"who?"), timeout=3)
    await turns()
    client.says(*server.hears())
    server.says(*client.hears())
    assert bytes((await asking).body) == b"who?"


async def test_a_request_without_a_handler_is_not_supported() -> None:
    peer = Peer(serving=False)
    peer.says(request(40), request(41, oneway=True))
    (answer,) = peer.hears()
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 40 not supported"


@pytest.mark.parametrize(
    ("failure", "remark"),
    [
        (ValueError("a reason"), "ValueError: a reason"),
        (HeaderError("field topic is missing"), "field topic is missing"),
        (BodyError("the body is no JSON"), "the body is no JSON"),
        (RuntimeError("x" * 5000), "RuntimeError: " + "x" * 1010),
    ],
)
@pytest.mark.parametrize("waits", [False, True])
async def test_a_handler_that_fails_is_answered_code_1(
    failure: Exception, remark: str, *, waits: bool
) -> None:
    async def later() -> Command:
        raise failure

    def handler(_command: Command, _connection: Connection) -> Awaitable[Command]:
        if waits:
            return later()
        raise failure

    peer = Peer(handler=handler)
    peer.says(request(opaque=9))
    await turns(6)
    (answer,) = peer.hears()
    assert (answer.code, answer.opaque, answer.remark) == (1, 9, remark)
    assert peer.counters.requests_failed == 1
    assert not peer.connection.closed


async def test_an_answer_that_fits_into_no_frame_is_answered_code_1() -> None:
    async def later(command: Command) -> Command:
        return command.reply(body=bytes(2000))

    def handler(command: Command, _connection: Connection) -> Command | Awaitable[Command]:
        return later(command) if command.code == 11 else command.reply(body=bytes(2000))

    peer = Peer(handler=handler, limits=ConnectionLimits(max_frame_bytes=1000))
    peer.says(request(10), request(11))
    await turns(6)
    for answer in peer.hears():
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith("a command of ")
        assert "frame limit of 1000" in (answer.remark or "")


async def test_a_request_above_the_frame_limit_is_not_sent() -> None:
    peer = Peer(serving=False, limits=ConnectionLimits(max_frame_bytes=1000))
    with pytest.raises(ValueError, match="frame limit of 1000"):
        await peer.connection.request(Command.request(10, body=bytes(2000)), timeout=1)
    assert not peer.connection._is_busy()


async def test_none_from_a_handler_leaves_the_answer_for_later() -> None:
    parked: list[tuple[Command, Connection]] = []
    peer = Peer(handler=lambda command, connection: parked.append((command, connection)))
    peer.says(request(11, opaque=5))
    assert peer.hears() == []
    command, connection = parked[0]
    connection.send(command.reply())
    await turns()
    assert [answer.opaque for answer in peer.hears()] == [5]


async def test_any_awaitable_is_an_answer() -> None:
    promised: asyncio.Future[Command | None] = asyncio.get_running_loop().create_future()
    nothing: asyncio.Future[Command | None] = asyncio.get_running_loop().create_future()
    peer = Peer(handler=lambda command, _: promised if command.code == 10 else nothing)
    command = request(10, opaque=3)
    peer.says(command, request(11))
    assert peer.counters.requests_in_progress == 2
    promised.set_result(command.reply())
    nothing.set_result(None)
    await turns(6)
    assert [answer.opaque for answer in peer.hears()] == [3]
    assert peer.counters.requests_in_progress == 0
    assert peer.counters.bytes_in_flight == 0


async def test_a_body_is_a_view_of_the_read_and_a_small_one_that_waits_is_not() -> None:
    bodies: list[object] = []

    async def later(command: Command) -> Command:
        bodies.append(command.body)
        return command.reply()

    def handler(command: Command, _connection: Connection) -> Command | Awaitable[Command]:
        if command.code == 11:
            return later(command)
        bodies.append(command.body)
        return command.reply()

    peer = Peer(handler=handler)
    peer.says(request(10, body=bytes(10)), request(11, body=bytes(20)), request(12))
    await turns(6)
    peer.says(request(11, body=bytes(10_000)))
    await turns(6)
    assert [type(body) for body in bodies] == [memoryview, bytes, bytes, memoryview]


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
    assert [answer.opaque for answer in peer.hears()] == [1], "what came before it was done"
    assert peer.connection.closed
    assert "can't be understood" in peer.connection.close_reason
    assert peer.counters.dropped_bad_frame == 1
    peer.connection.data_received(encode(request(opaque=2)))
    assert peer.hears() == []


async def test_garbage_behind_an_incomplete_frame_ends_the_connection_too() -> None:
    peer = Peer(handler=echo)
    whole = encode(request(opaque=1))
    peer.connection.data_received(whole[:6])
    peer.connection.data_received(whole[6:] + b"\x7f\xff\xff\xff")
    assert peer.connection.closed
    assert peer.counters.dropped_bad_frame == 1


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
    peer.says(request(body=b"x"))
    assert peer.transport.writes == [b"hot"]
    peer.transport.writes.clear()
    peer.says(request(opaque=4))
    assert [answer.opaque for answer in peer.hears()] == [4]


@pytest.mark.parametrize("fault", ["raises", "stands still", "overruns"])
async def test_a_faulty_feed_ends_its_connection_only(fault: str) -> None:
    def feed(buffer: bytes, position: int) -> int:
        if fault == "raises":
            raise KeyError("a fault")
        return position if fault == "stands still" else len(buffer) + 1

    peer = Peer(feed_factory=lambda _connection: feed)
    peer.says(request())
    assert peer.connection.closed
    assert peer.connection.close_reason == "its feed failed"


async def test_a_feed_may_refuse_a_frame() -> None:
    def feed(_buffer: bytes, _position: int) -> int:
        raise FrameError("not here")

    peer = Peer(feed_factory=lambda _connection: feed)
    peer.says(request())
    assert peer.counters.dropped_bad_frame == 1


async def test_requests_stop_while_answers_go_on_when_the_endpoint_drains() -> None:
    done: list[int] = []
    peer = Peer(
        handler=lambda command, _: done.append(command.code),
        feed_factory=lambda _connection: lambda buffer, _position: len(buffer),
    )
    asking = peer.connection.request_nowait(Command.request(40), timeout=3)
    peer.endpoint.draining = True
    peer.connection.stop_requests()
    await turns()
    peer.says(request(10), peer.hears()[0].reply())
    assert done == []
    assert (await asking).code == 0


async def test_callbacks_of_the_owner_can_break_nothing() -> None:
    def fail(connection: Connection) -> None:
        connection.context = "seen"
        raise ValueError("a fault of the owner")

    peer = Peer(handler=echo, on_connect=fail, on_close=fail)
    assert peer.connection.context == "seen"
    peer.says(request())
    assert len(peer.hears()) == 1
    peer.vanish()
    assert peer.endpoint.connections == set()


async def test_one_too_many_is_refused_and_its_owner_not_told() -> None:
    told: list[Connection] = []
    peer = Peer(max_connections=0, on_connect=told.append, on_close=told.append)
    assert peer.transport.aborted
    assert peer.counters.connections_refused == 1
    peer.connection.data_received(encode(request()))
    peer.vanish()
    assert told == []
    assert peer.counters.connections_closed == 0


async def test_what_came_before_the_end_of_the_stream_is_worked() -> None:
    peer = Peer(handler=echo)
    peer.says(request())
    assert not peer.connection.eof_received()
    assert len(peer.hears()) == 1


async def test_a_close_sends_what_is_left() -> None:
    peer = Peer()
    peer.connection.send(request(opaque=1))
    peer.connection.close("enough")
    peer.connection.close("again")
    assert [command.opaque for command in peer.hears()] == [1]
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
    assert peer.hears() == []
    assert peer.transport.aborted
    assert "cut off" in peer.connection.close_reason


async def test_a_handler_may_close_its_connection() -> None:
    def handler(command: Command, connection: Connection) -> Command:
        connection.send(command.reply())
        connection.close("done with you")
        return command.reply()

    peer = Peer(handler=handler)
    peer.says(request(opaque=1), request(opaque=2))
    assert [answer.opaque for answer in peer.hears()] == [1]
    assert peer.connection.closed


async def test_opaques_wrap_within_int32_and_avoid_those_in_use() -> None:
    peer = Peer(serving=False)
    peer.connection.request_nowait(first := request(), timeout=3).cancel()
    peer.connection._pending._opaque = 0x7FFF_FFFF
    peer.connection.request_nowait(last := request(), timeout=3).cancel()
    peer.connection.request_nowait(wrapped := request(), timeout=3).cancel()
    assert (first.opaque, last.opaque, wrapped.opaque) == (0, 0x7FFF_FFFF, 1)


async def test_a_connection_says_who_it_is() -> None:
    peer = Peer()
    assert peer.connection.remote == ("10.0.0.9", 4711)
    assert peer.connection.remote_text == "10.0.0.9:4711"
    assert peer.connection.local == ("10.0.0.1", 10911)
    assert repr(peer.connection) == "<Connection 10.0.0.9:4711>"
    peer.vanish()
    assert repr(peer.connection) == "<Connection 10.0.0.9:4711 closed>"
    assert peer.connection.close_reason == "closed by the peer"


def test_request_codes_and_transcripts_speak_the_same_protocol() -> None:
    assert read_all(encode(request(RequestCode.HEART_BEAT)))[0].code == 34
