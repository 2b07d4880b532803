"""One connection per address, opened on demand and reopened after a loss."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from remoting.connection import Connection
from remoting.errors import AnswerTimeout, ConnectFailed, ConnectionLost
from remoting.pool import ConnectionPool
from remoting.protocol.command import Command
from remoting.server import Server
from tests.integration.remoting.peers import ECHO, SLOW, Services
from tests.support.clock import ManualClock
from tests.support.waiting import until


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    services = Services()
    async with Server(services) as server:
        yield server
        services.gate.set()


@pytest.fixture
def nobody() -> str:
    """An address without a listener."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


async def test_all_callers_share_one_connection_and_one_attempt(server: Server) -> None:
    async with ConnectionPool() as pool:
        assert pool.connected(server.address) is None
        connections = await asyncio.gather(*(pool.get(server.address) for _ in range(20)))
        assert len(set(connections)) == 1
        assert pool.connected(server.address) is connections[0]
        assert pool.counters.connections_opened == 1


async def test_after_a_restart_on_the_same_port_the_next_request_connects_again() -> None:
    closed: list[Connection] = []
    async with ConnectionPool(on_close=closed.append) as pool:
        first = Server(Services())
        await first.start()
        await pool.request(first.address, Command.request(ECHO), timeout=10)
        await first.stop()
        await until(lambda: len(closed) == 1)
        assert pool.connected(first.address) is None
        async with Server(Services(), port=first.port):
            await pool.request(first.address, Command.request(ECHO), timeout=10)
        assert pool.counters.connections_opened == 2


async def test_after_a_failure_callers_fail_at_once_until_the_pause_is_over(nobody: str) -> None:
    clock = ManualClock()
    async with ConnectionPool(clock=clock, jitter=lambda: 1.0) as pool:
        with pytest.raises(ConnectFailed, match="refused; check that it runs"):
            await pool.get(nobody)
        with pytest.raises(ConnectFailed, match=r"refused; the next attempt is made in 0\.1 s"):
            await pool.get(nobody)
        assert pool.counters.connects_failed == 1
        for attempt, pause in enumerate((0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0), start=2):
            clock.advance(pause - 0.01)
            with pytest.raises(ConnectFailed, match="next attempt"):
                await pool.get(nobody)
            clock.advance(0.02)
            with pytest.raises(ConnectFailed, match="check that it runs, and"):
                await pool.get(nobody)
            assert pool.counters.connects_failed == attempt


async def test_pauses_stay_bounded_after_any_number_of_failures(nobody: str) -> None:
    clock = ManualClock()
    async with ConnectionPool(clock=clock, jitter=lambda: 1.0, max_backoff=0.5) as pool:
        for attempt in range(1, 1_100):
            with pytest.raises(ConnectFailed, match="check that it runs, and"):
                await pool.get(nobody)
            assert pool.counters.connects_failed == attempt
            clock.advance(0.51)


async def test_a_success_ends_the_pauses(nobody: str) -> None:
    clock = ManualClock()
    async with ConnectionPool(clock=clock) as pool:
        for _ in range(3):
            with pytest.raises(ConnectFailed):
                await pool.get(nobody)
            clock.advance(3)
        async with Server(Services(), port=int(nobody.rpartition(":")[2])):
            await pool.get(nobody)
        await until(lambda: pool.connected(nobody) is None)
        with pytest.raises(ConnectFailed):
            await pool.get(nobody)
        clock.advance(0.11)
        with pytest.raises(ConnectFailed, match="check that it runs, and"):
            await pool.get(nobody)


async def test_all_who_share_a_failing_attempt_get_its_error(nobody: str) -> None:
    async with ConnectionPool() as pool:
        outcomes = await asyncio.gather(
            *(pool.get(nobody) for _ in range(5)), return_exceptions=True
        )
        assert all(isinstance(outcome, ConnectFailed) for outcome in outcomes)
        assert pool.counters.connects_failed == 1


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("no address", "this is not host:port"),
        ("no-such-host.invalid:1", "the host name is not known"),
    ],
)
async def test_an_impossible_address_is_refused_with_a_message(address: str, reason: str) -> None:
    async with ConnectionPool() as pool:
        with pytest.raises(ConnectFailed, match=reason):
            await pool.get(address)


@pytest.fixture
def silent() -> Iterator[str]:
    """A listener with a full backlog."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for sock in (first, second):
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_connecting_times_out(silent: str) -> None:
    async with ConnectionPool(connect_timeout=0.1) as pool:
        with pytest.raises(ConnectFailed, match=r"no answer within 0\.1 s"):
            await pool.get(silent)


async def test_the_timeout_of_a_request_covers_the_connect(silent: str) -> None:
    async with ConnectionPool(connect_timeout=60) as pool:
        with pytest.raises(AnswerTimeout, match=r"within 0\.1 s"):
            await pool.request(silent, Command.request(ECHO), timeout=0.1)


async def test_closing_ends_attempts_and_requests(server: Server, silent: str) -> None:
    pool = ConnectionPool(connect_timeout=60)
    connecting = asyncio.ensure_future(pool.get(silent))
    asking = asyncio.ensure_future(pool.request(server.address, Command.request(SLOW), timeout=60))
    await until(lambda: server.counters.requests_in_progress == 1)
    await pool.close()
    await pool.close()
    with pytest.raises(ConnectFailed, match="closed meanwhile"):
        await connecting
    with pytest.raises(ConnectionLost, match="the client is closed"):
        await asking
    with pytest.raises(ConnectFailed, match="the client is closed"):
        await pool.get(server.address)


async def test_the_table_of_addresses_is_bounded(server: Server, nobody: str) -> None:
    async with ConnectionPool(max_addresses=2) as pool:
        connection = await pool.get(server.address)
        for host in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
            with pytest.raises(ConnectFailed):
                await pool.get(nobody.replace("127.0.0.1", host))
        assert len(pool) <= 2
        assert await pool.get(server.address) is connection


# Cancelling at every await


async def cancelled_at_every_turn(make: Callable[[], Coroutine[Any, Any, object]]) -> int:
    """Cancel what ``make()`` returns after 0, 1, 2 ... turns of the loop, until it gets through."""
    for turns in range(200):
        task = asyncio.ensure_future(make())
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.done():
            await task
            return turns
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    raise AssertionError("it never got through")


async def test_cancelling_a_connect_anywhere_leaves_it_to_the_others(server: Server) -> None:
    async with ConnectionPool() as pool:
        other = asyncio.ensure_future(pool.get(server.address))
        await cancelled_at_every_turn(lambda: pool.get(server.address))
        assert await pool.get(server.address) is await other
        assert pool.counters.connections_opened == 1


async def test_cancelling_the_only_connect_loses_nothing(server: Server) -> None:
    pool = ConnectionPool()
    connecting = asyncio.ensure_future(pool.get(server.address))
    await asyncio.sleep(0)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    await pool.get(server.address)
    assert pool.counters.connections_opened == 1
    await pool.close()
    await until(lambda: not server.connections)


async def test_cancelling_a_request_anywhere_leaves_the_connection_usable(server: Server) -> None:
    async with ConnectionPool() as pool:
        connection = await pool.get(server.address)

        async def ask() -> None:
            answer = await pool.request(
                server.address, Command.request(ECHO, body=b"x"), timeout=10
            )
            assert bytes(answer.body) == b"x"

        await cancelled_at_every_turn(ask)
        await ask()
        assert pool.connected(server.address) is connection


async def test_cancelling_a_close_anywhere_lets_it_be_repeated(server: Server) -> None:
    for turns in range(20):
        pool = ConnectionPool()
        await pool.get(server.address)
        closing = asyncio.ensure_future(pool.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await pool.close()
    await until(lambda: not server.connections)


async def test_cancelling_a_drain_leaves_the_connection_usable(server: Server) -> None:
    async with ConnectionPool() as pool:
        connection = await pool.get(server.address)

        async def send_and_drain() -> None:
            connection.send_oneway(Command.request(ECHO, body=bytes(100_000), oneway=True))
            await connection.drain()

        await cancelled_at_every_turn(send_and_drain)
        await pool.request(server.address, Command.request(ECHO), timeout=10)
