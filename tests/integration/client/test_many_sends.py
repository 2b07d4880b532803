"""More concurrent sends than the event loop or the producer can accept at once."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

import client
from client.limits import WAITING_PER_IN_FLIGHT
from client.producer.room import RoomQueue
from pocketmq import testing
from remoting.runtime.tasks import run
from tests.support.waiting import until


async def test_sends_beyond_the_number_that_may_wait_fail_at_once(fake: Any) -> None:
    allowed = 5 + 5 * WAITING_PER_IN_FLIGHT
    async with client.Producer(fake.address, max_in_flight=5) as producer:
        sends = [producer.send("T", b"%d" % n) for n in range(allowed + 20)]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert all(isinstance(outcome, client.Receipt) for outcome in outcomes[:allowed])
    assert all(isinstance(outcome, client.BufferFull) for outcome in outcomes[allowed:])
    assert "50 sends wait for room already" in str(outcomes[-1])
    assert fake.bodies() == [b"%d" % n for n in range(allowed)]


async def test_sends_wait_for_room_as_long_as_others_are_acknowledged(fake: Any) -> None:
    async def slow(command: Any, connection: Any) -> Any:
        await asyncio.sleep(0.1)
        return fake.store(command, connection)

    fake.on_send(slow)
    async with client.Producer(fake.address, max_in_flight=1, timeout=0.5) as producer:
        await asyncio.gather(*(producer.send("T", b"%d" % n) for n in range(10)))
    assert fake.bodies() == [b"%d" % n for n in range(10)]


async def test_waiting_sends_fail_when_acknowledgements_stop(fake: Any) -> None:
    fake.on_send(lambda command, connection: None)
    async with client.Producer(fake.address, max_in_flight=1, timeout=0.2) as producer:
        sends = [producer.send("T", b"x") for _ in range(4)]
        first, *others = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(first, client.SendError)
    assert first.outcome is client.Outcome.UNKNOWN
    assert all("left no room" in str(other) for other in others[1:])


def test_waiting_sends_fail_on_uvloop_too_if_their_time_is_less_than_a_millisecond() -> None:
    pytest.importorskip("uvloop")

    async def wait() -> None:
        now = asyncio.get_running_loop().time
        room = RoomQueue(0.0004, now, lambda _: False, lambda _: None)
        columns: Any = SimpleNamespace(timeout=None, deadline=now(), topic="T")
        waiting = asyncio.create_task(room.wait(columns))
        await asyncio.wait([waiting], timeout=5)
        assert isinstance(waiting.exception(), TimeoutError)

    run(wait())


async def test_closing_ends_the_wait_for_room(fake: Any) -> None:
    fake.on_send(lambda command, connection: None)
    async with client.Producer(fake.address, max_in_flight=1, timeout=60.0) as producer:
        sends = [asyncio.create_task(producer.send("T", b"x")) for _ in range(3)]
        await until(fake.arrived.is_set)
        await producer.close(timeout=0.05)
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert all(isinstance(outcome, client.SendError) for outcome in outcomes)


@pytest.mark.parametrize("first", [True, False], ids=["without a route", "with a connection"])
async def test_a_loop_iteration_longer_than_the_timeout_fails_no_send(
    fake: Any, first: bool
) -> None:
    async with client.Producer(fake.address, timeout=1.0) as producer:
        if not first:
            await producer.send("T", b"warm")
        sends = [asyncio.create_task(producer.send("T", b"%d" % n)) for n in range(100)]
        await asyncio.sleep(0)
        # What the application's own tasks do in the turn in which the sends were accepted.
        time.sleep(1.3)  # noqa: ASYNC251 - the loop stands still: that is the point
        await asyncio.gather(*sends)
    assert len(fake.bodies()) == 100 + (not first)


async def test_a_loop_blocked_while_connecting_fails_no_send(fakes: Any) -> None:
    one, two = await fakes(2)
    async with client.Producer(one.address, timeout=1.0) as producer:
        await producer.send("T", b"warm", queue=client.MessageQueue("T", one.name, 0))
        sending = producer.send_nowait("T", b"x", queue=client.MessageQueue("T", two.name, 0))
        await asyncio.sleep(0)
        time.sleep(1.3)  # noqa: ASYNC251 - as above
        await sending
    assert two.bodies() == [b"x"]


async def test_an_answer_waiting_in_the_socket_is_not_a_timeout() -> None:
    """A broker in a separate process, which answers while this loop is blocked."""
    loop = asyncio.get_running_loop()
    with testing.broker() as server:
        async with client.Producer(server.nameserver, timeout=1.0) as producer:
            await producer.send("orders", b"warm")
            sends = [producer.send_nowait("orders", b"x" * 100) for _ in range(20_000)]
            await asyncio.sleep(0)
            loop.call_soon(time.sleep, 1.3)
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
    failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert failed == []
