"""``--metrics-port``: Prometheus metrics, liveness and readiness of a server process.

``/metrics`` is in Prometheus' text format. ``/livez`` checks that the event loop runs, ``/readyz``
that clients can use the server: its store accepts messages, and it is registered with a name
server. The port answers from before the first part starts until the last one has stopped, so a
probe can distinguish a broker that recovers its store from a dead one.

The servers only keep plain counters. Each HTTP request runs in its own thread, which has them read
in one call on the event loop, and renders the page (``metrics_page``). Between scrapes the event
loop only pays for two additions per request, for the latency histograms, and a timer that fires
twenty times per second.
"""

from __future__ import annotations

import asyncio
import io
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, MetricsHandler, ProcessCollector

from pocketmq.server.metrics_page import MetricsPage, Snapshot
from pocketmq.server.process import LoopMonitor, RequestTimes
from pocketmq.server.serving import servers_of
from remoting.addresses import address_text
from remoting.runtime.log import Log
from remoting.runtime.process_limits import HTTP_CONNECTIONS, SHORT_BACKLOG

if TYPE_CHECKING:
    from broker.app import Broker
    from pocketmq.server.serving import ServerPart


STOP_POLL_SECONDS: Final = 0.05
"""Seconds between checks of the listening thread for a stop."""

LIVE_SECONDS: Final = 5.0
"""Seconds that a request waits for the event loop; no callback blocks it for a tenth of that."""

HTTP_SECONDS: Final = 15.0
"""Seconds from the start of a connection to its end; Prometheus waits for 10."""

END_SECONDS: Final = 1.0
"""Seconds that a new connection waits for the end of the oldest, which takes a millisecond."""

_T = TypeVar("_T")
_log = Log("metrics")


class _HttpServer(socketserver.ThreadingTCPServer):
    """An HTTP server that, unlike ``http.server``'s, doesn't look up the host's name.

    It has ``HTTP_CONNECTIONS``: for one more it ends the oldest, so that no peer keeps others out.

    Attributes:
        seconds: how long a connection may last.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = SHORT_BACKLOG
    seconds = HTTP_SECONDS

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)
        # The open connections in the order of their starts, which are the values.
        self._open: dict[socket.socket, float] = {}
        self._free = threading.Semaphore(HTTP_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection."""
        if not self._free.acquire(blocking=False):
            self._end(list(self._open)[:1])
            if not self._free.acquire(timeout=END_SECONDS):
                super().shutdown_request(request)
                return
        self._open[request] = monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, in its thread."""
        super().shutdown_request(request)
        del self._open[request]
        self._free.release()

    def service_actions(self) -> None:
        """End the connections that last too long; called every ``STOP_POLL_SECONDS``."""
        latest = monotonic() - self.seconds
        self._end(
            [connection for connection, started in self._open.copy().items() if started < latest]
        )

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log why a request has failed, unless its peer has gone."""
        if not isinstance(sys.exc_info()[1], OSError):
            _log.error("metrics request failed", exc_info=True)

    def _end(self, connections: Sequence[socket.socket]) -> None:
        # Its thread, which then reads the end or can't write, closes it.
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(MetricsHandler):
    checks: Mapping[str, Callable[[], str | None]]
    """Path -> a function that returns the current problem, or None."""

    def do_GET(self) -> None:  # noqa: N802 - http.server names it
        path = urlsplit(self.path).path
        if path == "/metrics":
            try:
                super().do_GET()
            except TimeoutError as error:
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=str(error))
        elif path in self.checks:
            problem = self.checks[path]()
            self.send_response(HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(f"{problem or 'ok'}\n".encode())
        else:
            paths = ", ".join(["/metrics", *self.checks])
            self.send_error(HTTPStatus.NOT_FOUND, explain=f"This port serves {paths}.")

    def do_HEAD(self) -> None:  # noqa: N802 - as above
        self.do_GET()

    def end_headers(self) -> None:
        super().end_headers()
        if self.command == "HEAD":
            self.wfile = io.BytesIO()  # discards the body


class MetricsPort(OSError):
    """The metrics can't be served at the configured address."""


class MetricsPart:
    """Runs parts, and serves their metrics, liveness and readiness.

    Args:
        parts: started in this order, stopped in reverse order.
        host: address to listen at.
        port: port to listen at; 0 picks a free one.
        live_seconds: how long requests wait for the event loop.
        http_seconds: how long an HTTP connection may last.
    """

    def __init__(
        self,
        parts: Sequence[ServerPart],
        *,
        host: str,
        port: int,
        live_seconds: float = LIVE_SECONDS,
        http_seconds: float = HTTP_SECONDS,
    ) -> None:
        self._parts = parts
        self._host = host
        self._port = port
        self._live_seconds = live_seconds
        self._http_seconds = http_seconds
        self._monitor = LoopMonitor()
        self._times = RequestTimes()
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._not_serving: str | None = "the server is starting"
        self._stack = AsyncExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: _HttpServer | None = None
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        """Listen, start the parts and start to measure.

        Raises:
            MetricsPort: the address can't be used.
            Exception: raised by a part that can't start.
        """
        self._loop = asyncio.get_running_loop()
        self._server = self._listen()
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(STOP_POLL_SECONDS,),
            name="metrics",
            daemon=True,
        )
        self._thread.start()
        self._stack.push_async_callback(asyncio.to_thread, self._close, self._server)
        for part in self._parts:
            self._stack.push_async_callback(part.stop)
            await part.start()
        name_servers, brokers = servers_of(self._parts)
        for name_server in name_servers:
            name_server.measure(self._times.around)
        for broker in brokers:
            broker.measure(self._times.around, self._times.count)
        stalls = self._monitor.stalls
        page = MetricsPage(name_servers, brokers, self._times, stalls, self._read_on_loop)
        self._registry.register(page)
        self._monitor.start()
        self._not_serving = None

    async def stop(self) -> None:
        """Stop measuring, then the parts, then listening."""
        self._not_serving = "the server is stopping"
        self._monitor.stop()
        await self._stack.aclose()

    @property
    def address(self) -> str:
        """The address it listens at, once it does."""
        return address_text((self._host, self._port))

    def ready(self) -> Mapping[str, str]:
        """Return the facts of the parts, and the address of the metrics."""
        facts = {name: value for part in self._parts for name, value in part.ready().items()}
        return {**facts, "metrics": self.address}

    def failures(self) -> Sequence[asyncio.Future[None]]:
        """Return the failures of the parts; the metrics have no task that can fail."""
        return [failure for part in self._parts for failure in part.failures()]

    def _listen(self) -> _HttpServer:
        checks = {"/livez": self._why_not_live, "/readyz": self._why_not_ready}
        handler = type("Handler", (_Handler,), {"registry": self._registry, "checks": checks})
        try:
            server = _HttpServer((self._host, self._port), handler)
        except OSError as error:
            raise MetricsPort(
                f"metrics can't be served at {self.address}: "
                f"{error.strerror or error}; choose another --metrics-port (0 picks a free one)"
            ) from error
        server.seconds = self._http_seconds
        return server

    def _close(self, server: _HttpServer) -> None:
        server.shutdown()
        server.server_close()
        if self._thread is not None:
            self._thread.join()

    # in the thread of a request

    def _on_loop(self, call: Callable[[], _T]) -> _T:
        """Return what a function returns on the event loop, or raise ``TimeoutError``."""
        assert self._loop is not None

        async def called() -> _T:
            return call()

        future = asyncio.run_coroutine_threadsafe(called(), self._loop)
        try:
            return future.result(self._live_seconds)
        except TimeoutError:
            future.cancel()
            raise TimeoutError(
                f"the event loop has not run for {self._live_seconds:g} seconds"
            ) from None

    def _read_on_loop(self, read: Callable[[], Snapshot]) -> Snapshot:
        # The counters of a part that has stopped can't be read.
        return self._on_loop(lambda: [] if self._not_serving else read())

    def _why_not_live(self) -> str | None:
        try:
            return self._on_loop(lambda: None)
        except TimeoutError as error:
            return str(error)

    def _why_not_ready(self) -> str | None:
        if self._not_serving is not None:
            return self._not_serving
        _, brokers = servers_of(self._parts)
        return next(filter(None, map(_why_not_ready, brokers)), None)


def _why_not_ready(broker: Broker) -> str | None:
    """Return why clients can't send to a broker now, or None.

    Without name servers it needs no registration.
    """
    if not broker.serving:
        return "the broker begins anew in another role"
    if (trouble := broker.store.why_not_writable) is not None:
        return trouble
    states = () if broker.registration is None else broker.registration.states
    if not states or any(state.registered for state in states):
        return None
    reasons = "; ".join(f"{state.address}: {state.last_error}" for state in states)
    return f"the broker is registered with no name server ({reasons})"
