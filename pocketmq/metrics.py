"""``--metrics-port``: what a server process counts, for Prometheus.

The servers only keep plain numbers. A scrape, in a thread of its own, reads them and makes the page
(``metrics_page``); between scrapes this costs the loop two additions a request, for the latency
histograms, and twenty looks a second at its own punctuality.
"""

from __future__ import annotations

import asyncio
import socket
import socketserver
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, MetricsHandler

from pocketmq.loop_monitor import LoopMonitor
from pocketmq.metrics_page import Page
from pocketmq.parts import servers_of
from pocketmq.request_times import RequestTimes
from remoting.addresses import address_text

if TYPE_CHECKING:
    from pocketmq.serving import Part


STOP_LOOK_SECONDS: Final = 0.05
"""How often the scraped thread looks whether it shall end."""


class _HttpServer(socketserver.ThreadingTCPServer):
    """Answers scrapes; unlike ``http.server``'s it asks no name service for the host's name."""

    daemon_threads = True
    allow_reuse_address = True


class _HttpServer6(_HttpServer):
    address_family = socket.AF_INET6


class MetricsPort(OSError):
    """The metrics can't be served at the address that was asked for."""


class MetricsPart:
    """Serves the metrics of the parts that were started before it.

    Args:
        parts: whose metrics.
        host: where to listen.
        port: where to listen; 0 picks a free one.
    """

    def __init__(self, parts: Sequence[Part], *, host: str, port: int) -> None:
        self._parts = parts
        self._host = host
        self._port = port
        self._monitor = LoopMonitor()
        self._times = RequestTimes()
        self._server: _HttpServer | None = None
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        """Begin to measure and to listen.

        Raises:
            MetricsPort: the port can't be had.
        """
        name_servers, brokers = servers_of(self._parts)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Page(name_servers, brokers, self._times, self._monitor.stalls))
        self._server = self._listen(registry)
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(STOP_LOOK_SECONDS,),
            name="metrics",
            daemon=True,
        )
        self._thread.start()
        for name_server in name_servers:
            name_server.measure(self._times.around)
        for broker in brokers:
            broker.measure(self._times.around, self._times.count)
        self._monitor.start()

    async def stop(self) -> None:
        """Measure and listen no more."""
        self._monitor.stop()
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(self._close, server)

    def ready(self) -> Mapping[str, str]:
        """Where to scrape."""
        return {"metrics": address_text((self._host, self._port))}

    def failures(self) -> Sequence[asyncio.Future[None]]:
        """Nothing here can die by itself."""
        return []

    def _listen(self, registry: CollectorRegistry) -> _HttpServer:
        kind = _HttpServer6 if ":" in self._host else _HttpServer
        try:
            return kind((self._host, self._port), MetricsHandler.factory(registry))
        except OSError as error:
            raise MetricsPort(
                f"metrics can't be served at {address_text((self._host, self._port))}: "
                f"{error.strerror or error}; choose another --metrics-port (0 picks a free one)"
            ) from error

    def _close(self, server: _HttpServer) -> None:
        server.shutdown()
        server.server_close()
        if self._thread is not None:
            self._thread.join()
