"""Slow, greedy or hostile peers: each is dropped and counted, the others are served."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from remoting.counters import CloseReason
from remoting.limits import UNSENT_HIGH_WATER_BYTES, ServerLimits
from remoting.pool import ConnectionPool
from remoting.protocol.codes import SerializeType
from remoting.protocol.command import Command
from remoting.protocol.frame import encode
from remoting.server import Server
from tests.integration.remoting.peers import (
    ECHO,
    LARGE,
    LARGE_BYTES,
    Services,
    ended,
    raw,
    read_command,
)
from tests.support.waiting import until


@asynccontextmanager
async def a_server(**limits: float) -> AsyncIterator[Server]:
    """A server that still serves other peers at the end."""
    settings = ServerLimits(**limits)  # type: ignore[arg-type] # sizes are whole numbers
    async with Server(Services(), limits=settings) as server:
        yield server
        async with ConnectionPool() as pool:
            await pool.request(server.address, Command.request(ECHO), timeout=10)


async def test_a_client_that_never_reads_is_not_read_from_and_dropped_in_time() -> None:
    async with (
        a_server(unsent_timeout=0.3) as server,
        raw(server.address, receive_buffer_bytes=8192) as (_, writer),
    ):
        for _ in range(1000):
            writer.write(encode(Command.request(LARGE)))
        await until(lambda: len(server.connections) == 1)
        (connection,) = server.connections
        most = 0
        while not connection.closed:
            most = max(most, connection.unsent_bytes)
            await asyncio.sleep(0.01)
        await until(lambda: server.counters.dropped[CloseReason.SLOW_READER] == 1)
        # What was written before, what is written at once, and the answer that was one too many.
        assert most <= 2 * UNSENT_HIGH_WATER_BYTES + 2 * LARGE_BYTES, "of 250 MiB asked for"
        assert server.counters.frames_in < 100


async def test_a_client_that_reads_late_gets_everything() -> None:
    async with (
        a_server() as server,
        raw(server.address, receive_buffer_bytes=8192) as (
            reader,
            writer,
        ),
    ):
        count = 80
        for _ in range(count):
            writer.write(encode(Command.request(LARGE)))
        await until(
            lambda: any(peer.unsent_bytes > UNSENT_HIGH_WATER_BYTES for peer in server.connections)
        )
        assert server.counters.frames_in < count
        received = 0
        while received < count * LARGE_BYTES:
            received += len(await reader.read(1 << 20))
        assert server.counters.frames_in == count
        assert server.counters.dropped == {}


async def test_a_client_is_dropped_when_too_much_is_sent_to_it() -> None:
    async with (
        a_server(max_unsent_bytes=4 << 20) as server,
        raw(server.address, receive_buffer_bytes=8192),
    ):
        await until(lambda: len(server.connections) == 1)
        (connection,) = server.connections
        for _ in range(100):
            connection.send_bytes(bytes(LARGE_BYTES))
        await until(lambda: connection.closed)
        assert server.counters.dropped[CloseReason.SLOW_READER] == 1
        assert server.counters.bytes_out < 100 * LARGE_BYTES


async def test_a_frame_that_never_ends_is_dropped() -> None:
    async with (
        a_server(frame_timeout=0.2) as server,
        raw(server.address) as (reader, writer),
        raw(server.address) as (trickled, trickling),
    ):
        writer.write(encode(Command.request(ECHO))[:-1])
        dropped = asyncio.ensure_future(ended(trickled))
        for byte in encode(Command.request(ECHO, body=bytes(1000))):
            if dropped.done():
                break
            trickling.write(bytes((byte,)))
            await asyncio.sleep(0.02)
        assert await dropped
        assert await ended(reader)
        assert server.counters.dropped[CloseReason.SLOW_FRAME] == 2


async def test_many_large_frames_that_never_end_do_not_fill_the_memory() -> None:
    async with a_server(max_total_held_bytes=1 << 20) as server, AsyncExitStack() as stack:
        greedy = [await stack.enter_async_context(raw(server.address)) for _ in range(4)]
        modest_reader, modest = await stack.enter_async_context(raw(server.address))
        modest.write(encode(Command.request(ECHO))[:-1])
        unfinished = encode(Command.request(ECHO, body=bytes(1 << 20)))[: 1 << 19]
        for _, writer in greedy:
            writer.write(unfinished)
        await until(lambda: server.counters.dropped[CloseReason.HOARDING] >= 2)
        await until(lambda: 0 < server.counters.bytes_held <= 1 << 20)
        modest.write(encode(Command.request(ECHO))[-1:])
        assert (await read_command(modest_reader)).code == 0


async def test_an_idle_connection_is_closed() -> None:
    async with a_server(idle_timeout=0.5) as server, raw(server.address) as (reader, _):
        assert await ended(reader)
        assert server.counters.dropped[CloseReason.IDLE] == 1


@pytest.mark.parametrize("length", [1001, 1 << 24, 0x7FFF_FFFF, 0xFFFF_FFFF, 3, 0])
async def test_an_oversize_or_impossible_frame_is_dropped_by_its_length(length: int) -> None:
    async with a_server(max_frame_bytes=1000) as server, raw(server.address) as (reader, writer):
        writer.write(struct.pack(">I", length))
        assert await ended(reader)
        assert server.counters.dropped[CloseReason.BAD_FRAME] == 1


async def test_garbage_is_dropped() -> None:
    async with a_server() as server:
        for number in range(20):
            async with raw(server.address) as (reader, writer):
                writer.write(b"\0\0\1\0" + bytes((number % 4,)) + os.urandom(300))
                assert await ended(reader)
        assert server.counters.dropped[CloseReason.BAD_FRAME] == 20
        assert not server.connections


async def test_a_msgpack_frame_without_agreement_is_dropped() -> None:
    async with a_server() as server, raw(server.address) as (reader, writer):
        command = Command.request(ECHO)
        command.serialize = SerializeType.MSGPACK
        writer.write(encode(command))
        assert await ended(reader)
        assert server.counters.dropped[CloseReason.BAD_FRAME] == 1


async def test_a_flood_on_one_connection_does_not_starve_another() -> None:
    async with a_server() as server, raw(server.address) as (reader, writer):
        flood = encode(Command.request(ECHO, body=bytes(100), oneway=True)) * 20_000
        writer.write(flood)
        async with ConnectionPool() as pool:
            await pool.request(server.address, Command.request(ECHO), timeout=10)
            others_turn = server.counters.frames_in
        assert others_turn < 20_001, "the answer came before the flood was over"
        await until(lambda: server.counters.frames_in == 20_001)
        assert not reader.at_eof()


async def test_short_connections_leave_nothing_behind() -> None:
    async with a_server() as server:
        for _ in range(50):
            async with raw(server.address) as (_, writer):
                writer.write(encode(Command.request(ECHO))[:20])
        await until(lambda: server.counters.connections_closed == 50)
        assert not server.connections
