"""A connection that is idle, or sends only parts of frames, is closed."""

from __future__ import annotations

import asyncio

import pytest

from remoting.counters import CloseReason
from remoting.deadlines import ConnectionDeadlines
from remoting.limits import ConnectionLimits
from remoting.protocol.command import Command
from remoting.protocol.frame import encode
from tests.unit.remoting.test_back_pressure import Slow
from tests.unit.remoting.transcripts import Peer, request, turns


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    peer = Peer(handler=lambda command, _: command.reply())
    peer.wait(119)
    peer.arrive(request())
    peer.wait(119)
    assert not peer.connection.closed
    peer.wait(2)
    assert peer.connection.closed
    assert peer.counters.dropped[CloseReason.IDLE] == 1
    assert peer.connection.close_reason == "idle for too long"


async def test_writing_keeps_a_connection_alive_too() -> None:
    peer = Peer()
    peer.wait(119)
    peer.connection.send(request())
    await turns()
    peer.wait(119)
    assert not peer.connection.closed


async def test_a_connection_with_a_pending_request_is_not_idle() -> None:
    peer = Peer(serving=False)
    future = peer.connection.request_nowait(Command.request(11), timeout=400)
    await turns()
    for _ in range(3):
        peer.wait(121)
    assert not peer.connection.closed
    peer.arrive(peer.written()[0].reply())
    await future
    for _ in range(3):
        peer.wait(121)
    assert peer.counters.dropped[CloseReason.IDLE] == 1


async def test_a_connection_with_a_running_handler_is_not_idle() -> None:
    slow = Slow()
    peer = Peer(handler=slow)
    peer.arrive(request())
    for _ in range(3):
        peer.wait(121)
    assert not peer.connection.closed
    slow.gate.set()
    await turns(6)


async def test_a_frame_that_trickles_in_ends_the_connection() -> None:
    peer = Peer(handler=lambda command, _: command.reply())
    frame = encode(request(body=bytes(100)))
    for position in range(29):
        peer.connection.data_received(frame[position : position + 1])
        peer.wait(1)
    assert not peer.connection.closed
    peer.wait(1.1)
    assert peer.connection.closed
    assert peer.counters.dropped[CloseReason.SLOW_FRAME] == 1


async def test_every_frame_has_the_whole_time() -> None:
    peer = Peer(handler=lambda command, _: command.reply())
    frame = encode(request())
    peer.connection.data_received(frame[:10])
    for _ in range(5):
        peer.wait(20)
        peer.connection.data_received(frame[10:] + frame[:10])
    peer.connection.data_received(frame[10:])
    peer.wait(100)
    assert not peer.connection.closed
    assert peer.counters.frames_in == 6


async def test_a_frame_is_not_late_while_reading_is_paused() -> None:
    limits = ConnectionLimits(
        unsent_high_water_bytes=100, unsent_low_water_bytes=10, unsent_timeout=500
    )
    peer = Peer(handler=lambda command, _: command.reply(body=bytes(200)), limits=limits)
    peer.transport.stuck = True
    peer.connection.data_received(encode(request()) + encode(request())[:10])
    assert not peer.transport.reading
    for _ in range(3):
        peer.wait(29)
    assert not peer.connection.closed
    peer.transport.take(1000)
    peer.wait(31)
    assert peer.counters.dropped[CloseReason.SLOW_FRAME] == 1


@pytest.mark.parametrize("since", [0.0, 10.0])
def test_the_next_check_is_never_in_the_past(since: float) -> None:
    watch = ConnectionDeadlines(ConnectionLimits(), since)
    assert watch.verdict(since, busy=False) is None
    assert watch.next_at(since) == since + 120
    assert watch.next_at(since + 500) == since + 620


async def test_a_request_creates_no_timer() -> None:
    peer = Peer(serving=False)
    loop = asyncio.get_running_loop()
    made = 0
    ordinary = loop.call_later

    def counting(*args: object, **settings: object) -> object:
        nonlocal made
        made += 1
        return ordinary(*args, **settings)  # type: ignore[arg-type] # passed on as it came

    loop.call_later = counting  # type: ignore[assignment, method-assign] # counts the calls
    try:
        futures = [peer.connection.request_nowait(request(), timeout=3) for _ in range(100)]
    finally:
        del loop.call_later  # type: ignore[attr-defined] # the class has it still
    for future in futures:
        future.cancel()
    assert made <= 1
