"""A connection without a socket: bytes in, bytes out, at a fixed time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from remoting.connection import Connection
from remoting.endpoint import Endpoint
from remoting.protocol.command import Command
from remoting.protocol.frame import cut, decode, encode
from tests.support.clock import ManualClock


class FakeTransport(asyncio.Transport):
    """Accepts writes as a kernel would: at once, or not while ``stuck``."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Connection | None = None
        self.reader: asyncio.BaseProtocol | None = None
        self.writes: list[bytes] = []
        self.gathered: list[list[bytes | bytearray | memoryview]] = []
        self.unsent = 0
        self.stuck = False
        self.reading = True
        self.blocked = False
        self.closing = False
        self.aborted = False
        self.high = self.low = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        names = {"peername": ("10.0.0.9", 4711), "sockname": ("10.0.0.1", 10911)}
        return names.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high, self.low = high or 0, low or 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.aborted
        self.writes.append(bytes(data))
        if self.stuck:
            self.unsent += len(data)
        if self.unsent > self.high and not self.blocked:
            self.blocked = True
            assert self.protocol is not None
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        parts = list(list_of_data)
        self.gathered.append(parts)
        super().writelines(parts)

    def take(self, count: int) -> None:
        """Let the peer read ``count`` bytes."""
        self.unsent -= min(count, self.unsent)
        if self.blocked and self.unsent <= self.low:
            self.blocked = False
            assert self.protocol is not None
            self.protocol.resume_writing()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.reader = protocol

    def reads(self, data: bytes) -> None:
        """Deliver bytes from the peer, in reads as large as the protocol's buffer."""
        while data:
            if not isinstance(self.reader, asyncio.BufferedProtocol):
                assert isinstance(self.reader, asyncio.Protocol)
                self.reader.data_received(data)
                return
            buffer = memoryview(self.reader.get_buffer(-1))  # type: ignore[arg-type] # a Buffer
            part, data = data[: len(buffer)], data[len(buffer) :]
            buffer[: len(part)] = part
            self.reader.buffer_updated(len(part))

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True


class Peer:
    """The other end of a connection under test, with a manual clock."""

    def __init__(
        self, *, serving: bool = True, endpoint: Endpoint | None = None, **settings: Any
    ) -> None:
        self.clock = ManualClock()
        self.endpoint = endpoint or Endpoint(
            name="test", serving=serving, clock=self.clock, **settings
        )
        self.transport = FakeTransport()
        self.connection = Connection(self.endpoint)
        self.transport.protocol = self.transport.reader = self.connection
        self.connection.connection_made(self.transport)

    def arrive(self, *commands: Command) -> None:
        """Let all these commands arrive in one read."""
        self.connection.data_received(b"".join(encode(command) for command in commands))

    def written(self) -> list[Command]:
        """Return the commands written since the last call."""
        commands = read_all(b"".join(self.transport.writes))
        self.transport.writes.clear()
        return commands

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(seconds)
        self.endpoint.alarms.ring_due()

    def vanish(self, failure: Exception | None = None) -> None:
        """End the transport."""
        self.connection.connection_lost(failure)

    @property
    def counters(self) -> Any:
        return self.endpoint.counters


def read_all(data: bytes) -> list[Command]:
    """The commands in ``data``, which has to end with a frame."""
    commands, position = [], 0
    while frame := cut(data, position):
        commands.append(decode(frame))
        position = frame.end
    assert position == len(data), "a frame was cut off"
    return commands


def request(code: int = 10, opaque: int = 1, **settings: Any) -> Command:
    """Return a request with a given opaque."""
    command = Command.request(code, **settings)
    command.opaque = opaque
    return command


def echo(command: Command, _connection: Connection) -> Command:
    """A handler that answers a request with its own body."""
    return command.reply(body=bytes(command.body))


async def turns(count: int = 3) -> None:
    """Run a few iterations of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)
