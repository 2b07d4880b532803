"""A request over a connection gets its answer, or an error in time."""

from __future__ import annotations

import asyncio

import pytest

from remoting.errors import AnswerTimeout, ConnectionLost, TooManyRequests
from remoting.limits import IDLE_TIMEOUT, MAX_EXPIRY_CHECKS, ConnectionLimits
from remoting.protocol.codes import FLAG_RESPONSE
from remoting.protocol.command import Command
from tests.unit.remoting.transcripts import Peer, echo, request, turns


async def test_answers_are_matched_to_requests_in_any_order() -> None:
    peer = Peer(serving=False)
    futures = [peer.connection.request_nowait(request(), timeout=3) for _ in range(3)]
    await turns()
    asked = peer.written()
    assert len({command.opaque for command in asked}) == 3
    for command in reversed(asked):
        peer.arrive(command.reply(body=b"%d" % command.opaque))
    for command, future in zip(asked, futures, strict=True):
        assert bytes((await future).body) == b"%d" % command.opaque
    assert peer.counters.responses_unknown == 0


async def test_an_unsolicited_answer_is_dropped_and_counted() -> None:
    peer = Peer(serving=False)
    peer.arrive(Command(0, 77, FLAG_RESPONSE))
    assert peer.counters.responses_unknown == 1
    assert not peer.connection.closed


async def test_an_answer_after_the_timeout_is_dropped_and_counted() -> None:
    peer = Peer(serving=False)
    asking = asyncio.ensure_future(peer.connection.request(request(105), timeout=3))
    await turns()
    peer.wait(2.9)
    assert not asking.done()
    peer.wait(0.2)
    with pytest.raises(AnswerTimeout, match=r"10\.0\.0\.9:4711 .* request 105 within 3 s"):
        await asking
    assert peer.counters.requests_timed_out == 1
    peer.arrive(peer.written()[0].reply())
    assert peer.counters.responses_unknown == 1


async def test_each_request_has_its_own_timeout() -> None:
    peer = Peer(serving=False)
    slow = peer.connection.request_nowait(request(), timeout=30)
    quick = peer.connection.request_nowait(request(), timeout=1)
    peer.wait(1.1)
    await turns()
    assert isinstance(quick.exception(), AnswerTimeout)
    assert not slow.done()
    peer.wait(29)
    await turns()
    assert isinstance(slow.exception(), AnswerTimeout)


async def test_an_answer_in_the_socket_at_the_deadline_is_read_first() -> None:
    peer = Peer(serving=False)
    futures = [peer.connection.request_nowait(request(), timeout=3) for _ in range(3)]
    await turns()
    answered, late, silent = (command.reply() for command in peer.written())
    peer.wait(3.1)
    peer.arrive(answered)
    await turns(1)
    peer.arrive(late)
    await turns(1)
    assert [future.done() for future in futures] == [True, True, False]
    await turns()
    assert isinstance(futures[2].exception(), AnswerTimeout)
    peer.arrive(silent)
    assert peer.counters.responses_unknown == 1


async def test_a_deadline_missed_by_a_blocked_loop_is_extended() -> None:
    peer = Peer(serving=False)
    first = peer.connection.request_nowait(request(), timeout=3)
    second = peer.connection.request_nowait(request(), timeout=3)
    await turns()
    answer, _ = (command.reply() for command in peer.written())
    peer.wait(9)
    await turns()
    assert not first.done()
    peer.wait(5.9)
    peer.arrive(answer)
    assert first.done()
    peer.wait(0.2)
    await turns()
    assert isinstance(second.exception(), AnswerTimeout)


async def test_an_endless_stream_of_answers_does_not_postpone_a_deadline_forever() -> None:
    peer = Peer(serving=False)
    waiting = peer.connection.request_nowait(request(), timeout=3)
    peer.wait(3.1)
    for _ in range(MAX_EXPIRY_CHECKS + 3):
        peer.clock.advance(0.001)
        peer.arrive(Command(0, 77, FLAG_RESPONSE))
        await turns(1)
    assert isinstance(waiting.exception(), AnswerTimeout)


async def test_a_connection_that_ends_during_a_deadline_check_raises() -> None:
    peer = Peer(serving=False)
    waiting = peer.connection.request_nowait(request(), timeout=3)
    peer.wait(3.1)
    peer.vanish()
    await turns()
    assert isinstance(waiting.exception(), ConnectionLost)


async def test_a_cancelled_request_is_forgotten_and_its_answer_dropped() -> None:
    peer = Peer(serving=False)
    asking = asyncio.ensure_future(peer.connection.request(request(), timeout=3))
    await turns()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    peer.arrive(peer.written()[0].reply())
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


async def test_the_end_of_the_connection_fails_all_pending_requests() -> None:
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


async def test_a_oneway_request_waits_for_nothing() -> None:
    peer = Peer(serving=False)
    peer.connection.send_oneway(Command.request(35, oneway=True))
    await turns()
    assert [command.is_oneway for command in peer.written()] == [True]
    peer.wait(IDLE_TIMEOUT)
    assert peer.connection.close_reason == "idle for too long"


async def test_a_server_sends_requests_to_its_client_in_the_same_way() -> None:
    server = Peer(serving=True)
    client = Peer(serving=False, handler=echo)
    asking = server.connection.request_nowait(Command.request(40, body=b"who?"), timeout=3)
    await turns()
    client.arrive(*server.written())
    server.arrive(*client.written())
    assert bytes((await asking).body) == b"who?"


async def test_a_request_above_the_frame_limit_is_not_sent() -> None:
    peer = Peer(serving=False, limits=ConnectionLimits(max_frame_bytes=1000))
    with pytest.raises(ValueError, match="frame limit of 1000"):
        await peer.connection.request(Command.request(10, body=bytes(2000)), timeout=1)
    peer.wait(IDLE_TIMEOUT)
    assert peer.connection.close_reason == "idle for too long"
