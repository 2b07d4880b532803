"""A relay between a client and a server that holds back what one of them says."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

from remoting.addresses import parse_address


class Relay:
    """Forwards bytes to an address and back.

    Args:
        target: the server's address.
        requests: how many reads of requests pass before the next ones wait; None: all.
        answers: the same for answers.
    """

    def __init__(
        self, target: str, *, requests: int | None = None, answers: int | None = None
    ) -> None:
        self._target = parse_address(target)
        self._left = {"requests": requests, "answers": answers}
        self._open = asyncio.Event()
        self._server: asyncio.Server
        self._tasks: set[asyncio.Task[None]] = set()
        self.held = asyncio.Event()
        self.address = ""

    def hold(self) -> None:
        """Let no more answers pass."""
        self._open.clear()
        self._left["answers"] = 0

    def release(self) -> None:
        """Let everything pass."""
        self._left = dict.fromkeys(self._left)
        self._open.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other: asyncio.StreamWriter | None = None
        try:
            back, other = await asyncio.open_connection(*self._target)
            ends = [
                asyncio.ensure_future(self._carry("requests", reader, other)),
                asyncio.ensure_future(self._carry("answers", back, writer)),
            ]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()
                await asyncio.gather(*ends, return_exceptions=True)
        except OSError:
            pass
        finally:
            for open_writer in filter(None, (writer, other)):
                open_writer.close()

    async def _carry(
        self, what: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                left = self._left[what]
                if left is not None:
                    if left <= 0:
                        self.held.set()
                        await self._open.wait()
                    else:
                        self._left[what] = left - 1
                writer.write(data)
                await writer.drain()
