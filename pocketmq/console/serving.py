"""The console as a part of a server process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import uvicorn
from h11 import IDLE, SEND_BODY
from uvicorn.protocols.http.h11_impl import H11Protocol

from pocketmq.console.actions import ROUTES
from pocketmq.console.app import FORM_SECONDS, ConsoleSettings, create_app
from pocketmq.console.pages import PAGES
from remoting.addresses import address_text
from remoting.runtime.tasks import Supervisor

MAX_REQUESTS: Final = 1_000
"""Most connections that are served at a time; one more gets 503."""

STOP_SECONDS: Final = 1
"""For answers that are being written."""


class _QuietServer(uvicorn.Server):
    """Leaves signals to the process."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield


class _HttpConnection(H11Protocol):
    """Ends itself if for FORM_SECONDS no request has come whole, for which uvicorn has no limit."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        self._look(None)

    def _look(self, before: object) -> None:
        now = self.cycle, self.conn.their_state
        if now == before and self.conn.their_state in {IDLE, SEND_BODY}:
            self.transport.abort()
        else:
            self._next = self.loop.call_later(FORM_SECONDS, self._look, now)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._next.cancel()
        super().connection_lost(exc)


class ConsolePart:
    """The console; see ``pocketmq.server.serving.ServerPart``.

    Args:
        host, port: where to listen; port 0 is any free one.
    """

    def __init__(self, settings: ConsoleSettings, host: str, port: int) -> None:
        self._app = create_app(settings, [*PAGES, *ROUTES])
        self._address = (host, port)
        self._listener: socket.socket | None = None
        self._server: _QuietServer | None = None
        self._tasks = Supervisor("console")
        self._ended: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen, and serve. Raises OSError if the address can't be used."""
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        self._listener = socket.create_server(self._address, family=family, backlog=128)
        config = uvicorn.Config(
            self._app,
            http=_HttpConnection,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            # Whoever lies about the scheme only makes the own cookie less useful.
            forwarded_allow_ips="*",
            limit_concurrency=MAX_REQUESTS,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        self._server = _QuietServer(config)
        self._ended = self._tasks.spawn(self._server.serve([self._listener]), "http")

    async def stop(self) -> None:
        """Stop, after STOP_SECONDS also in the midst of answers."""
        if self._server is not None and self._ended is not None:
            self._server.should_exit = True
            self._app.end_streams()
            await asyncio.wait([self._ended])
        await self._tasks.close()
        if self._listener is not None:
            self._listener.close()

    def ready(self) -> Mapping[str, str]:
        """Return its address."""
        assert self._listener is not None
        return {"console": f"http://{address_text(self._listener.getsockname()[:2])}/"}

    def failures(self) -> Sequence[asyncio.Future[None]]:
        """Return a future that gets an exception when it fails."""
        return [self._tasks.failed]
