"""A test's broker, whose parent process may set its clock forward and make requests fail.

``pocketmq.testing`` starts it as ``python -m pocketmq.server.door AHEAD_MS standalone ...``.
The parent writes one JSON object per line to its standard input, and gets one line back: ``{}``, or
an error. There is no other way in, and no other broker loads this module.

Only the wall clock is set forward: by it messages are due, transactions are late and files are old.
The monotonic clock goes on as before, so peers stay alive and requests in progress keep their time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.store.os_files import DiskUse, Files
from pocketmq.cli import main as command_line
from pocketmq.server.process import codes_of
from pocketmq.server.serving import BrokerPart, ServerPart, standalone_parts
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.runtime import durable_file
from remoting.runtime.clock import SystemClock

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from nameserver.config import NameServerConfig
    from remoting.connection import Connection
    from remoting.endpoint import Handler

PRESSED_SECONDS: Final = 0.01
"""How soon the store notices that the disk is full, or that files are old, instead of 1 s."""

POLL_SECONDS: Final = 0.001

Answer = Command | Awaitable[Command | None] | None


class SteppedClock(SystemClock):
    """The system's clock, and a wall clock that may be set forward."""

    __slots__ = ("_ahead_ms",)

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since the epoch."""
        return super().now_ms() + self._ahead_ms

    def advance(self, milliseconds: int) -> None:
        """Set the wall clock forward."""
        self._ahead_ms += milliseconds


class FillableFiles(Files):
    """The system's files, on a disk that may be said to be full.

    Tables are not synced, which takes most of the time of creating and deleting a topic: they
    outlast the process, but not a power cut.
    """

    __slots__ = ("full",)

    def __init__(self) -> None:
        self.full = False

    def disk_use(self, path: Path) -> DiskUse:
        """Return how full the disk of ``path`` is."""
        use = super().disk_use(path)
        return DiskUse(use.used + use.free, 0) if self.full else use

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        """Write a small file atomically."""
        durable_file.replace(path, data, backup=backup, sync=False)

    def sync_directory(self, path: Path) -> None:
        """Do nothing."""


@dataclass
class Fault:
    """What happens to some requests instead of the usual.

    Attributes:
        codes: their codes.
        times: how many are left; None: all.
        seconds: they are served so much later.
        refusal: they are answered with this code and text, and not served.
        silent: they are served, and their connection ends without the answer.
    """

    codes: frozenset[int]
    times: int | None
    seconds: float = 0.0
    refusal: tuple[int, str] | None = None
    silent: bool = False

    def meet(self, serve: Handler, command: Command, connection: Connection) -> Answer:
        """Serve a request that has this fault."""
        if self.refusal is not None:
            return None if command.is_oneway else command.reply(*self.refusal)
        return self._serve(serve, command, connection)

    async def _serve(
        self, serve: Handler, command: Command, connection: Connection
    ) -> Command | None:
        if self.seconds:
            # The connection's buffer is used again meanwhile.
            command.body = bytes(command.body)
            await asyncio.sleep(self.seconds)
        answer = serve(command, connection)
        if isinstance(answer, Awaitable):
            answer = await answer
        if not self.silent:
            return answer
        connection.abort("the test loses this answer")
        return None


class TestDoor:
    """Reads what the parent asks from standard input, does it, and answers on standard output."""

    def __init__(self, ahead_ms: int) -> None:
        self._clock = SteppedClock(ahead_ms)
        self._files = FillableFiles()
        self._faults: list[Fault] = []
        self._end_faults: list[Callable[[], None]] = []
        self._broker: BrokerPart
        self._unread = b""
        self._work: asyncio.Future[None] | None = None

    def make_parts(self, nameserver: NameServerConfig, broker: BrokerConfig) -> list[ServerPart]:
        """Return the parts of ``standalone`` with the clock and files of this door, and itself."""
        limits = replace(broker.store_limits, pressed_seconds=PRESSED_SECONDS)
        broker = replace(broker, store_limits=limits)
        first, second = standalone_parts(nameserver, broker, clock=self._clock, files=self._files)
        assert isinstance(second, BrokerPart)
        self._broker = second
        return [first, second, self]

    async def start(self) -> None:
        """Start to listen to the parent."""
        # In place of the runner's, which only waits for the end.
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read)

    async def stop(self) -> None:
        """Listen no more."""
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        if self._work is not None:
            self._work.cancel()

    def ready(self) -> Mapping[str, str]:
        """Return nothing: it has no address."""
        return {}

    def failures(self) -> list[asyncio.Future[None]]:
        """Return nothing: errors are answers."""
        return []

    def _read(self) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        if not data:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            os.kill(os.getpid(), signal.SIGTERM)
        self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        # The parent waits for each answer, so there is one line at most.
        for line in lines:
            self._work = asyncio.ensure_future(self._answer(json.loads(line)))

    async def _answer(self, request: dict[str, Any]) -> None:
        known: dict[str, Callable[..., Awaitable[None]]] = {
            "advance": self._advance,
            "fail": self._fail,
            "drop_connections": self._drop_connections,
            "fill_disk": self._fill_disk,
            "clear": self._clear,
        }
        answer = {}
        try:
            await known[request.pop("do")](**request)
        except Exception as error:  # noqa: BLE001 - raised in the parent
            answer["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)  # noqa: T201 - the answer

    async def _advance(self, milliseconds: int) -> None:
        self._clock.advance(milliseconds)
        await self._broker.server.catch_up(milliseconds)

    async def _fail(
        self,
        requests: list[str],
        times: int | None,
        refusal: tuple[str, str] | None = None,
        **what: Any,
    ) -> None:
        codes = frozenset().union(*map(codes_of, requests))
        fault = Fault(codes, times, **what)
        if refusal is not None:
            fault.refusal = ResponseCode[refusal[0]], refusal[1]
        self._faults.append(fault)
        if not self._end_faults:
            around = partial(partial, self._serve)
            self._end_faults = [each.intercept(around) for each in self._broker.server.endpoints]

    def _serve(self, serve: Handler, command: Command, connection: Connection) -> Answer:
        for fault in self._faults:
            if command.code in fault.codes and fault.times != 0:
                if fault.times is not None:
                    fault.times -= 1
                return fault.meet(serve, command, connection)
        return serve(command, connection)

    async def _drop_connections(self) -> None:
        for endpoint in self._broker.server.endpoints:
            for connection in tuple(endpoint.connections):
                connection.abort("the test drops all connections")

    async def _fill_disk(self, *, full: bool) -> None:
        self._files.full = full
        disk, retention = self._broker.server.store.disk, self._broker.server.store.retention
        settings = self._broker.server.state.config.retention
        # A test's broker works on a nearly full disk; and nothing is deleted to make room.
        bound = replace(settings, full_free_bytes=1, forcibly=False)
        retention.configure(bound if full else settings)
        while (disk.too_full is not None) is not full:
            disk.no_space.set()
            await asyncio.sleep(POLL_SECONDS)

    async def _clear(self) -> None:
        self._faults.clear()
        for end in self._end_faults:
            end()
        self._end_faults = []
        await self._fill_disk(full=False)


if __name__ == "__main__":
    command_line(TestDoor(int(sys.argv.pop(1))).make_parts)
