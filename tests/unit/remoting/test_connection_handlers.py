"""The answer to a request for everything a handler returns, raises or leaves for later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from remoting.connection import Connection
from remoting.limits import ConnectionLimits
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import BodyError, HeaderError
from tests.unit.remoting.transcripts import Peer, request, turns


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
    peer.arrive(*(request(code, oneway=True) for code in (10, 11, 12)))
    await turns(6)
    assert done == [10, 11, 12]
    assert peer.written() == []


async def test_a_request_without_a_handler_is_not_supported() -> None:
    peer = Peer(serving=False)
    peer.arrive(request(40), request(41, oneway=True))
    (answer,) = peer.written()
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
    peer.arrive(request(opaque=9))
    await turns(6)
    (answer,) = peer.written()
    assert (answer.code, answer.opaque, answer.remark) == (1, 9, remark)
    assert peer.counters.requests_failed == 1
    assert not peer.connection.closed


async def test_an_answer_that_fits_into_no_frame_is_answered_code_1() -> None:
    async def later(command: Command) -> Command:
        return command.reply(body=bytes(2000))

    def handler(command: Command, _connection: Connection) -> Command | Awaitable[Command]:
        return later(command) if command.code == 11 else command.reply(body=bytes(2000))

    peer = Peer(handler=handler, limits=ConnectionLimits(max_frame_bytes=1000))
    peer.arrive(request(10), request(11))
    await turns(6)
    for answer in peer.written():
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith("a command of ")
        assert "frame limit of 1000" in (answer.remark or "")


async def test_none_from_a_handler_leaves_the_answer_for_later() -> None:
    parked: list[tuple[Command, Connection]] = []
    peer = Peer(handler=lambda command, connection: parked.append((command, connection)))
    peer.arrive(request(11, opaque=5))
    assert peer.written() == []
    command, connection = parked[0]
    connection.send(command.reply())
    await turns()
    assert [answer.opaque for answer in peer.written()] == [5]


async def test_any_awaitable_is_an_answer() -> None:
    promised: asyncio.Future[Command | None] = asyncio.get_running_loop().create_future()
    nothing: asyncio.Future[Command | None] = asyncio.get_running_loop().create_future()
    peer = Peer(handler=lambda command, _: promised if command.code == 10 else nothing)
    command = request(10, opaque=3)
    peer.arrive(command, request(11))
    assert peer.counters.requests_in_progress == 2
    promised.set_result(command.reply())
    nothing.set_result(None)
    await turns(6)
    assert [answer.opaque for answer in peer.written()] == [3]
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
    peer.arrive(request(10, body=bytes(10)), request(11, body=bytes(20)), request(12))
    await turns(6)
    peer.arrive(request(11, body=bytes(10_000)))
    await turns(6)
    assert [type(body) for body in bodies] == [memoryview, bytes, bytes, memoryview]


async def test_a_handler_may_close_its_connection() -> None:
    def handler(command: Command, connection: Connection) -> Command:
        connection.send(command.reply())
        connection.close("done with you")
        return command.reply()

    peer = Peer(handler=handler)
    peer.arrive(request(opaque=1), request(opaque=2))
    assert [answer.opaque for answer in peer.written()] == [1]
    assert peer.connection.closed
