"""A server and its clients over real sockets."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import AsyncExitStack

import pytest

from remoting.connection import Connection
from remoting.errors import AnswerTimeout, BindFailed, ConnectionLost
from remoting.limits import ServerLimits
from remoting.pool import ConnectionPool
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.frame import encode
from remoting.runtime.process_limits import MIN_CONNECTIONS, ConnectionRoom, limit
from remoting.server import Server
from tests.integration.remoting.peers import (
    CALL_BACK,
    ECHO,
    FAIL,
    LARGE,
    SLOW,
    Services,
    ended,
    raw,
    read_command,
)
from tests.support.waiting import until


async def connect_for_ever(address: str) -> None:
    async with asyncio.timeout(10):
        while True:
            async with raw(address):
                await asyncio.sleep(0.01)


async def test_many_requests_of_many_clients_are_in_flight_at_once() -> None:
    services = Services()
    async with Server(services) as server:
        pools = [ConnectionPool() for _ in range(4)]
        calls = [
            pool.request(
                server.address,
                Command.request(SLOW if n % 5 == 0 else ECHO, body=b"%d" % n),
                timeout=30,
            )
            for pool in pools
            for n in range(300)
        ]
        answering = asyncio.gather(*calls)
        await until(lambda: server.counters.requests_in_progress == 4 * 60)
        services.gate.set()
        answers = await answering
        assert [bytes(answer.body) for answer in answers] == [b"%d" % n for n in range(300)] * 4
        assert len(server.connections) == 4
        for pool in pools:
            await pool.close()
        await until(lambda: not server.connections)
        assert server.counters.bytes_in_flight == 0


async def test_large_bodies_go_both_ways() -> None:
    body = bytes(range(256)) * 4096 * 8
    async with Server(Services()) as server, ConnectionPool() as pool:
        answers = await asyncio.gather(
            *(
                pool.request(server.address, Command.request(ECHO, body=body), timeout=30)
                for _ in range(3)
            )
        )
        assert all(answer.body == body for answer in answers)


async def test_a_timeout_ends_one_request_and_not_the_connection() -> None:
    services = Services()
    async with Server(services) as server, ConnectionPool() as pool:
        await pool.get(server.address)
        with pytest.raises(AnswerTimeout, match=f"{server.address} did not answer request 11"):
            await pool.request(server.address, Command.request(SLOW), timeout=0.05)
        connection = pool.connected(server.address)
        assert connection is not None
        services.gate.set()
        await until(lambda: pool.counters.responses_unknown == 1)
        await pool.request(server.address, Command.request(ECHO), timeout=10)
        assert pool.connected(server.address) is connection


async def test_a_server_sends_a_request_to_its_client() -> None:
    def client_handler(command: Command, _connection: Connection) -> Command:
        return command.reply(body=b"you asked " + bytes(command.body))

    async with Server(Services()) as server, ConnectionPool(client_handler) as pool:
        answer = await pool.request(
            server.address, Command.request(CALL_BACK, body=b"me"), timeout=10
        )
        assert bytes(answer.body) == b"you asked me"


async def test_a_server_sends_unasked_to_a_client_without_a_handler() -> None:
    async with Server(Services()) as server, ConnectionPool() as pool:
        await pool.get(server.address)
        await until(lambda: len(server.connections) == 1)
        (connection,) = server.connections
        answer = await connection.request(Command.request(40), timeout=10)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_failing_handler_is_answered_and_the_connection_stays_open() -> None:
    async with Server(Services()) as server, ConnectionPool() as pool:
        answer = await pool.request(server.address, Command.request(FAIL), timeout=10)
        assert (answer.code, answer.remark) == (1, "RuntimeError: as you wished")
        await pool.request(server.address, Command.request(ECHO), timeout=10)


async def test_the_owner_is_notified_of_connections_and_keeps_state_in_them() -> None:
    events: list[str] = []

    def greet(command: Command, connection: Connection) -> Command:
        connection.context = "known"
        return command.reply()

    def on_close(connection: Connection) -> None:
        events.append(f"close {connection.remote_text} {connection.context}")
        raise ValueError("a fault of the owner")

    async with Server(greet, on_close=on_close) as server:
        async with ConnectionPool() as pool:
            connection = await pool.get(server.address)
            await connection.request(Command.request(ECHO), timeout=10)
        await until(lambda: len(events) == 1)
        assert events == [f"close 127.0.0.1:{connection.local[1]} known"]


async def test_one_connection_too_many_is_closed_at_once() -> None:
    async with Server(Services(), limits=ServerLimits(max_connections=2)) as server:
        async with raw(server.address), raw(server.address) as (reader, writer):
            await until(lambda: len(server.connections) == 2)
            async with raw(server.address) as (refused, _):
                assert await ended(refused)
            assert server.counters.connections_refused == 1
            writer.write(encode(Command.request(ECHO)))
            assert (await read_command(reader)).code == 0
        await until(lambda: not server.connections)
        async with raw(server.address):
            await until(lambda: len(server.connections) == 1)
    assert server.counters.connections_accepted == 3
    assert server.counters.connections_closed == 3


async def test_servers_of_one_process_share_the_room_for_connections() -> None:
    room = ConnectionRoom(limit)
    async with (
        Server(Services(), limits=ServerLimits(room=room)) as one,
        Server(Services(), limits=ServerLimits(room=room)) as other,
        AsyncExitStack() as stack,
    ):
        first = await stack.enter_async_context(raw(one.address))
        for _ in range(MIN_CONNECTIONS - 1):
            await stack.enter_async_context(raw(other.address))
        await until(lambda: room.taken == MIN_CONNECTIONS)
        async with raw(one.address) as (refused, _):
            assert await ended(refused)
        assert one.counters.connections_refused == 1
        first[1].close()
        await until(lambda: room.taken == MIN_CONNECTIONS - 1)
        async with raw(one.address) as (reader, writer):
            writer.write(encode(Command.request(ECHO)))
            assert (await read_command(reader)).code == 0


async def test_a_port_in_use_is_refused_with_what_to_do() -> None:
    async with Server(Services()) as first:
        second = Server(Services(), port=first.port)
        with pytest.raises(BindFailed) as failure:
            await second.start()
        assert failure.value.errno == errno.EADDRINUSE
        assert first.address in str(failure.value)
        assert "EADDRINUSE" in str(failure.value)
        assert "choose another port" in str(failure.value)
        await second.stop()


async def test_a_start_that_is_cancelled_leaves_the_port_free() -> None:
    async with Server(Services()) as first:
        port = first.port
    for steps in range(6):
        cancelled = Server(Services(), port=port)
        start = asyncio.create_task(cancelled.start())
        for _ in range(steps):
            await asyncio.sleep(0)
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        await cancelled.stop()
        async with Server(Services(), port=port):
            pass


@pytest.mark.parametrize(
    ("host", "hint"),
    [
        ("192.0.2.1", "this machine has no such address"),
        ("no-such-host.invalid", "the host name is not known"),
    ],
)
async def test_an_address_that_is_not_ours_is_refused_with_what_to_do(host: str, hint: str) -> None:
    with pytest.raises(BindFailed, match=hint):
        await Server(Services(), host=host).start()


async def test_a_server_reports_its_listening_address() -> None:
    server = Server(Services())
    assert server.address == "127.0.0.1:0"
    async with server:
        assert server.host == "127.0.0.1"
        assert server.port > 0
        assert server.address == f"127.0.0.1:{server.port}"


async def test_a_server_may_be_stopped_before_it_starts_and_twice() -> None:
    server = Server(Services())
    await server.stop()
    async with Server(Services()) as server:
        await server.stop()


async def test_its_sockets_are_set_up_for_short_messages() -> None:
    async with Server(Services()) as server, ConnectionPool() as pool:
        connection = await pool.get(server.address)
        await until(lambda: len(server.connections) == 1)
        for end in (connection, *server.connections):
            sock = end._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_requests_sent_before_a_client_closed_are_processed() -> None:
    done: list[int] = []
    async with Server(lambda command, _: done.append(command.code)) as server:
        async with raw(server.address) as (_, writer):
            for code in range(500):
                writer.write(encode(Command.request(code, body=bytes(1000), oneway=True)))
            writer.write_eof()
            await until(lambda: len(done) == 500)
        assert done == list(range(500))


# Stopping


async def test_a_stop_lets_handlers_finish_and_sends_their_answers() -> None:
    services = Services()
    server = Server(services)
    await server.start()
    async with ConnectionPool() as pool:
        asking = asyncio.ensure_future(
            pool.request(server.address, Command.request(SLOW, body=b"mine"), timeout=10)
        )
        await services.begun.wait()
        stopping = asyncio.ensure_future(server.stop(drain_timeout=10))
        await asyncio.sleep(0)
        late = asyncio.ensure_future(
            pool.request(server.address, Command.request(ECHO), timeout=10)
        )
        with pytest.raises(ConnectionRefusedError):
            await connect_for_ever(server.address)
        services.gate.set()
        await stopping
        assert bytes((await asking).body) == b"mine"
        with pytest.raises(ConnectionLost):
            await late
    assert services.finished == 1
    assert not server.connections


async def test_a_stop_waits_at_most_its_timeout() -> None:
    services = Services()
    server = Server(services)
    await server.start()
    async with ConnectionPool() as pool:
        asking = asyncio.ensure_future(
            pool.request(server.address, Command.request(SLOW), timeout=10)
        )
        await services.begun.wait()
        await server.stop(drain_timeout=0.01)
        with pytest.raises(ConnectionLost):
            await asking
    assert services.finished == 0
    assert server.counters.requests_in_progress == 0


async def test_a_stop_sends_what_a_slow_client_has_not_read_yet() -> None:
    server = Server(Services())
    await server.start()
    async with raw(server.address) as (reader, writer):
        for _ in range(8):
            writer.write(encode(Command.request(LARGE)))
        await until(lambda: server.counters.frames_in >= 4)
        stopping = asyncio.ensure_future(server.stop())
        answers = [await read_command(reader) for _ in range(server.counters.frames_in)]
        await stopping
        assert all(len(answer.body) == 256 * 1024 for answer in answers)


async def test_a_cancelled_stop_cuts_the_connections_off() -> None:
    services = Services()
    server = Server(services)
    await server.start()
    async with raw(server.address) as (reader, writer):
        writer.write(encode(Command.request(SLOW)))
        await services.begun.wait()
        stopping = asyncio.ensure_future(server.stop(drain_timeout=30))
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert await ended(reader)
    await server.stop(drain_timeout=0)
