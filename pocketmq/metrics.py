"""``--metrics-port``: Prometheus metrics, liveness and readiness of a server process.

``/metrics`` is in Prometheus' text format. ``/livez`` checks that the event loop runs, ``/readyz``
that clients can use the server: its store accepts messages, and it is registered with a name
server. The port answers from before the first part starts until the last one has stopped, so a
probe can distinguish a broker that recovers its store from one that is down.

The servers only keep plain counters. Each HTTP request runs in its own thread, which reads them and
renders the page (``metrics_page``). Between scrapes the event loop only pays for two additions per
request, for the latency histograms, and a timer that fires twenty times per second.
"""

from __future__ import annotations

import asyncio
import io
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, MetricsHandler, ProcessCollector

from pocketmq.metrics_page import MetricsPage
from pocketmq.process import LoopMonitor, RequestTimes
from pocketmq.serving import servers_of
from remoting.addresses import address_text

if TYPE_CHECKING:
    from broker.app import Broker
    from pocketmq.serving import ServerPart


STOP_POLL_SECONDS: Final = 0.05
"""Seconds between checks of the listening thread for a stop."""

LIVE_SECONDS: Final = 5.0
"""Seconds that ``/livez`` waits for the event loop; no callback blocks it for a tenth of that."""


class _HttpServer(socketserver.ThreadingTCPServer):
    """An HTTP server that, unlike ``http.server``'s, doesn't look up the host's name."""

    daemon_threads = True
    allow_reuse_address = True


class _HttpServer6(_HttpServer):
    address_family = socket.AF_INET6


class _Handler(MetricsHandler):
    checks: Mapping[str, Callable[[], str | None]]
    """Path -> a function that returns the current problem, or None."""

    def do_GET(self) -> None:  # noqa: N802 - http.server names it
        path = urlsplit(self.path).path
        if path == "/metrics":
            super().do_GET()
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
        live_seconds: how long ``/livez`` waits for the event loop.
    """

    def __init__(
        self,
        parts: Sequence[ServerPart],
        *,
        host: str,
        port: int,
        live_seconds: float = LIVE_SECONDS,
    ) -> None:
        self._parts = parts
        self._host = host
        self._port = port
        self._live_seconds = live_seconds
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
        page = MetricsPage(name_servers, brokers, self._times, self._monitor.stalls)
        self._registry.register(page)
        # Unregister before the parts stop: the counters of a stopped part can't be read.
        self._stack.callback(self._registry.unregister, page)
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
        kind = _HttpServer6 if ":" in self._host else _HttpServer
        checks = {"/livez": self._why_not_live, "/readyz": self._why_not_ready}
        handler = type("Handler", (_Handler,), {"registry": self._registry, "checks": checks})
        try:
            return kind((self._host, self._port), handler)
        except OSError as error:
            raise MetricsPort(
                f"metrics can't be served at {self.address}: "
                f"{error.strerror or error}; choose another --metrics-port (0 picks a free one)"
            ) from error

    def _close(self, server: _HttpServer) -> None:
        server.shutdown()
        server.server_close()
        if self._thread is not None:
            self._thread.join()

    # in the thread of a request

    def _why_not_live(self) -> str | None:
        assert self._loop is not None
        turned = threading.Event()
        self._loop.call_soon_threadsafe(turned.set)
        if turned.wait(self._live_seconds):
            return None
        return f"the event loop has not run for {self._live_seconds:g} seconds"

    def _why_not_ready(self) -> str | None:
        if self._not_serving is not None:
            return self._not_serving
        _, brokers = servers_of(self._parts)
        return next(filter(None, map(_why_not_ready, brokers)), None)


def _why_not_ready(broker: Broker) -> str | None:
    """Return why clients can't send to a broker now, or None.

    Without name servers it needs no registration.
    """
    if (trouble := broker.store.why_not_writable) is not None:
        return trouble
    states = () if broker.registration is None else broker.registration.states
    if not states or any(state.registered for state in states):
        return None
    reasons = "; ".join(f"{state.address}: {state.last_error}" for state in states)
    return f"the broker is registered with no name server ({reasons})"
