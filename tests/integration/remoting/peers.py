"""Helpers of the tests over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress

from remoting.connection import Connection
from remoting.protocol.command import Command
from remoting.protocol.frame import cut, decode, needed

ECHO, SLOW, LARGE, CALL_BACK, FAIL = 10, 11, 12, 13, 14
LARGE_BYTES = 256 * 1024


class Services:
    """Handlers that answer at once, when ``gate`` opens, with much, or after a request back."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.finished = 0

    def __call__(
        self, command: Command, connection: Connection
    ) -> Command | Awaitable[Command | None] | None:
        match command.code:
            case 11:
                return self._later(command)
            case 12:
                return command.reply(body=bytes(LARGE_BYTES))
            case 13:
                return self._call_back(command, connection)
            case 14:
                raise RuntimeError("as you wished")
        return command.reply(body=bytes(command.body))

    async def _later(self, command: Command) -> Command:
        self.begun.set()
        await self.gate.wait()
        self.finished += 1
        return command.reply(body=bytes(command.body))

    async def _call_back(self, command: Command, connection: Connection) -> Command:
        answer = await connection.request(Command.request(40, body=command.body), timeout=30)
        return command.reply(body=answer.body)


@asynccontextmanager
async def raw(
    address: str, *, receive_buffer_bytes: int | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a raw stream, for a client that may misbehave."""
    host, _, port = address.rpartition(":")
    sock = socket.socket()
    if receive_buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    except OSError:
        sock.close()
        raise
    reader, writer = await asyncio.open_connection(sock=sock, limit=2**16)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Read and drop input; return whether the server closes the connection."""
    try:
        async with asyncio.timeout(10):
            while await reader.read(65536):
                pass
    except ConnectionError:
        pass
    return True


async def read_command(reader: asyncio.StreamReader) -> Command:
    """Read the next command of a raw stream."""
    head = await reader.readexactly(4)
    data = head + await reader.readexactly(needed(head) - 4)
    frame = cut(data)
    assert frame is not None
    return decode(frame)
