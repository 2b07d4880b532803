"""No peer can make us hold more than the limits, by sending fast or reading slowly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from remoting.connection import Connection
from remoting.counters import CloseReason, Counters
from remoting.endpoint import BUSY
from remoting.errors import ConnectionLost, TooManyRequests
from remoting.limits import ConnectionLimits
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.frame import encode
from tests.unit.remoting.transcripts import Peer, request, turns

SMALL = ConnectionLimits(
    unsent_high_water_bytes=1000, unsent_low_water_bytes=300, max_unsent_bytes=5000
)


def large_answer(command: Command, _connection: Connection) -> Command:
    return command.reply(body=bytes(600))


async def test_a_peer_that_takes_no_answers_is_not_read_from() -> None:
    peer = Peer(handler=large_answer, limits=SMALL)
    peer.transport.stuck = True
    peer.arrive(*(request(opaque=n) for n in range(10)))
    await turns(20)
    assert not peer.transport.reading
    assert peer.connection.unsent_bytes < 3 * 1000
    answered = len(peer.written())
    assert 0 < answered < 10

    peer.transport.stuck = False
    peer.transport.take(100)
    await turns()
    assert not peer.transport.reading, "the low-water mark is not reached"
    peer.transport.take(10_000)
    await turns(20)
    assert peer.transport.reading
    assert [answer.opaque for answer in peer.written()] == list(range(answered, 10))


async def test_a_client_continues_reading_while_its_requests_are_stuck() -> None:
    peer = Peer(serving=False, limits=SMALL)
    peer.transport.stuck = True
    future = peer.connection.request_nowait(Command.request(10, body=bytes(2000)), timeout=3)
    await turns()
    assert peer.transport.reading
    peer.arrive(peer.written()[0].reply())
    assert (await future).code == 0


async def test_a_client_gets_an_error_when_too_much_is_unsent() -> None:
    peer = Peer(serving=False, limits=SMALL)
    peer.transport.stuck = True
    peer.connection.send_oneway(Command.request(10, body=bytes(2000)))
    peer.connection.send_oneway(Command.request(10, body=bytes(2000)))
    with pytest.raises(TooManyRequests, match="5000 unsent bytes"):
        peer.connection.send_oneway(Command.request(10, body=bytes(2000)))
    assert not peer.connection.closed


async def test_above_the_hard_limit_the_peer_is_dropped() -> None:
    peer = Peer(limits=SMALL)
    peer.transport.stuck = True
    for _ in range(10):
        peer.connection.send_bytes(bytes(999))
    await turns()
    assert peer.transport.aborted
    assert peer.counters.dropped[CloseReason.SLOW_READER] == 1
    peer.vanish()


async def test_a_peer_that_stays_above_the_mark_is_dropped_in_time() -> None:
    peer = Peer(limits=SMALL)
    peer.transport.stuck = True
    peer.connection.send_bytes(bytes(2000))
    peer.wait(29.9)
    assert not peer.connection.closed
    peer.wait(0.2)
    assert peer.transport.aborted
    assert peer.counters.dropped[CloseReason.SLOW_READER] == 1


async def test_a_peer_that_catches_up_is_kept() -> None:
    peer = Peer(limits=SMALL)
    peer.transport.stuck = True
    peer.connection.send_bytes(bytes(2000))
    peer.wait(29)
    peer.transport.take(2000)
    peer.wait(29)
    assert not peer.connection.closed


async def test_held_memory_is_counted_and_released() -> None:
    peer = Peer(handler=large_answer, limits=SMALL)
    peer.transport.stuck = True
    frame = encode(request(body=bytes(500)))
    peer.connection.data_received(frame[:400])
    assert peer.counters.bytes_held == 400
    peer.connection.data_received(frame[400:])
    assert peer.counters.bytes_held == peer.connection.unsent_bytes
    peer.connection.send_bytes(bytes(2000))
    assert peer.counters.bytes_held == peer.connection.unsent_bytes > 2000
    peer.transport.take(10_000)
    assert peer.counters.bytes_held == 0
    peer.connection.send_bytes(bytes(2000))
    peer.vanish()
    assert peer.counters.bytes_held == 0


async def test_the_peer_that_uses_most_memory_is_dropped() -> None:
    limits = ConnectionLimits(
        unsent_high_water_bytes=1000, unsent_low_water_bytes=300, max_total_held_bytes=4000
    )
    greedy = Peer(limits=limits)
    modest = Peer(endpoint=greedy.endpoint)
    for peer in (greedy, modest):
        peer.transport.stuck = True
    greedy.connection.send_bytes(bytes(3000))
    modest.connection.send_bytes(bytes(1500))
    assert not modest.connection.closed
    greedy.connection.send_bytes(bytes(1000))
    assert greedy.transport.aborted
    assert greedy.counters.dropped[CloseReason.HOARDING] == 1
    greedy.vanish()
    assert greedy.counters.bytes_held == 1500


async def test_drain_waits_for_the_low_water_mark() -> None:
    peer = Peer(limits=SMALL)
    await peer.connection.drain()
    peer.transport.stuck = True
    peer.connection.send_bytes(bytes(2000))
    draining = [asyncio.ensure_future(peer.connection.drain()) for _ in range(3)]
    await turns()
    draining[0].cancel()
    await turns()
    peer.transport.take(2000)
    await turns()
    assert [waiter.cancelled() for waiter in draining] == [True, False, False]
    assert all(waiter.done() for waiter in draining)


async def test_drain_ends_with_the_connection() -> None:
    peer = Peer(limits=SMALL)
    peer.transport.stuck = True
    peer.connection.send_bytes(bytes(2000))
    draining = asyncio.ensure_future(peer.connection.drain())
    cancelled = asyncio.ensure_future(peer.connection.drain())
    await turns()
    cancelled.cancel()
    peer.vanish()
    with pytest.raises(ConnectionLost):
        await draining
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_a_close_with_unread_output_is_aborted() -> None:
    peer = Peer(limits=SMALL)
    peer.transport.stuck = True
    peer.connection.send_bytes(bytes(2000))
    peer.connection.close()
    peer.wait(4)
    assert not peer.transport.aborted
    peer.wait(2)
    assert peer.transport.aborted
    assert peer.counters.dropped[CloseReason.SLOW_CLOSE] == 1


class Slow:
    """A handler whose answers come when the test releases them."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    def __call__(self, command: Command, _connection: Connection) -> Awaitable[Command]:
        return self.later(command)

    async def later(self, command: Command) -> Command:
        await self.gate.wait()
        return command.reply()


@pytest.mark.parametrize(
    "limits",
    [
        ConnectionLimits(max_in_progress_requests=3),
        ConnectionLimits(max_in_progress_bytes=3 * len(encode(request()))),
    ],
)
async def test_a_peer_with_too_many_running_requests_is_not_read_from(
    limits: ConnectionLimits,
) -> None:
    slow = Slow()
    peer = Peer(handler=slow, limits=limits)
    peer.arrive(*(request(opaque=n) for n in range(8)))
    await turns()
    assert not peer.transport.reading
    assert peer.counters.requests_in_progress == 3
    assert peer.counters.requests_paused == 1
    assert peer.counters.bytes_in_flight == 3 * len(encode(request()))
    slow.gate.set()
    await turns(20)
    assert peer.transport.reading
    assert sorted(answer.opaque for answer in peer.written()) == list(range(8))
    assert peer.counters.bytes_in_flight == 0


@pytest.mark.parametrize(
    ("serving", "limits"),
    [
        (True, ConnectionLimits(max_total_in_progress_requests=2)),
        (True, ConnectionLimits(max_total_in_progress_bytes=2 * len(encode(request())))),
        (False, ConnectionLimits(max_in_progress_requests=2)),
    ],
)
async def test_requests_above_the_total_limit_are_refused(
    limits: ConnectionLimits, *, serving: bool
) -> None:
    slow = Slow()
    peer = Peer(handler=slow, limits=limits, serving=serving)
    peer.arrive(*(request(opaque=n) for n in range(4)))
    answers = peer.written()
    assert [(answer.opaque, answer.code, answer.remark) for answer in answers] == [
        (2, ResponseCode.SYSTEM_BUSY, BUSY),
        (3, ResponseCode.SYSTEM_BUSY, BUSY),
    ]
    assert peer.counters.requests_refused_busy == 2
    assert peer.transport.reading
    slow.gate.set()
    await turns(6)
    assert [answer.opaque for answer in peer.written()] == [0, 1]


async def test_the_future_of_a_refused_request_is_cancelled() -> None:
    promised: asyncio.Future[Command | None] = asyncio.get_running_loop().create_future()

    class Other:
        def __await__(self) -> object:
            return iter(())

    answers = iter([promised, Other()])
    peer = Peer(
        handler=lambda _command, _connection: next(answers),
        limits=ConnectionLimits(max_total_in_progress_requests=0),
    )
    peer.arrive(request(), request())
    assert promised.cancelled()
    assert [answer.code for answer in peer.written()] == [ResponseCode.SYSTEM_BUSY] * 2


async def test_handlers_that_are_cancelled_answer_nothing() -> None:
    peer = Peer(handler=Slow())
    peer.arrive(request(), request())
    await peer.endpoint.tasks.close()
    await turns()
    assert peer.written() == []
    assert peer.counters.requests_in_progress == 0


async def test_a_request_that_ends_after_its_connection_harms_nothing() -> None:
    slow = Slow()
    peer = Peer(handler=slow, limits=ConnectionLimits(max_in_progress_requests=1))
    peer.arrive(request())
    peer.vanish()
    slow.gate.set()
    await turns(6)
    assert peer.counters.requests_in_progress == 0


TINY_SLICES = ConnectionLimits(slice_bytes=1, read_ahead_bytes=200)


async def test_a_long_read_is_processed_in_slices_between_other_work() -> None:
    busy = Peer(handler=lambda command, _: command.reply(), limits=TINY_SLICES)
    other = Peer(handler=lambda command, _: command.reply(), limits=TINY_SLICES)
    busy.arrive(*(request(opaque=n) for n in range(10)))
    assert len(busy.transport.writes) == 1
    assert not busy.transport.reading
    busy.arrive(*(request(opaque=n) for n in range(10, 12)))
    other.arrive(request())
    assert len(other.written()) == 1
    await turns(20)
    assert len(busy.transport.writes) == 12, "one write per slice"
    assert [answer.opaque for answer in busy.written()] == list(range(12))
    assert busy.transport.reading


async def test_simultaneous_input_is_read_as_fast_as_it_is_processed() -> None:
    counters = Counters()
    frames = b"".join(encode(request(opaque=n)) for n in range(10))
    limits = ConnectionLimits(slice_bytes=1, max_total_held_bytes=5 * len(frames))

    def peer() -> Peer:
        return Peer(handler=lambda command, _: command.reply(), limits=limits, counters=counters)

    peers = [peer() for _ in range(8)]
    for one in peers:
        one.connection.data_received(frames)
    assert [one.transport.reading for one in peers] == [True] * 2 + [False] * 6
    assert not any(one.connection.closed for one in peers)
    await turns(20)
    assert all(one.transport.reading for one in peers)
    assert [len(one.written()) for one in peers] == [10] * 8
    assert counters.bytes_held == counters.dropped[CloseReason.HOARDING] == 0


async def test_a_slice_ends_when_its_time_is_up() -> None:
    peer = Peer()

    def handler(command: Command, _connection: Connection) -> Command:
        peer.clock.advance(0.0006)
        return command.reply()

    peer.endpoint.handler = handler
    peer.arrive(*(request(opaque=n) for n in range(5)))
    await turns(10)
    assert len(peer.transport.writes) == 3, "two requests of 0.6 ms are above 1 ms"


async def test_the_end_of_the_stream_waits_for_what_was_read() -> None:
    peer = Peer(handler=lambda command, _: command.reply(), limits=TINY_SLICES)
    peer.arrive(*(request(opaque=n) for n in range(5)))
    assert peer.connection.eof_received()
    await turns(10)
    assert len(peer.written()) == 5
    assert peer.connection.close_reason == "closed by the peer"
    assert peer.transport.closing


async def test_slices_end_with_the_connection() -> None:
    peer = Peer(handler=lambda command, _: command.reply(), limits=TINY_SLICES)
    peer.arrive(*(request(opaque=n) for n in range(5)))
    peer.vanish()
    await turns(10)
    assert len(peer.written()) == 1
