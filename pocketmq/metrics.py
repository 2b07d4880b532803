"""``--metrics-port``: what a server process counts, for Prometheus.

The servers only keep plain numbers. A scrape, in a thread of its own, reads them and makes the page
(``metrics_page``); between scrapes this costs the loop two additions a request, for the latency
histograms, and twenty looks a second at its own punctuality.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from pocketmq.loop_monitor import LoopMonitor
from pocketmq.metrics_page import Page
from pocketmq.parts import servers_of
from pocketmq.request_times import RequestTimes

if TYPE_CHECKING:
    from pocketmq.serving import Part


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
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        """Begin to measure and to listen.

        Raises:
            MetricsPort: the port can't be had.
        """
        name_servers, brokers = servers_of(self._parts)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Page(name_servers, brokers, self._times, self._monitor.stalls))
        try:
            self._server, self._thread = start_http_server(
                self._port, addr=self._host, registry=registry
            )
        except OSError as error:
            raise MetricsPort(
                f"metrics can't be served at {self._host}:{self._port}: "
                f"{error.strerror or error}; choose another --metrics-port (0 picks a free one)"
            ) from error
        self._port = self._server.server_port
        for name_server in name_servers:
            name_server.measure(self._times.around)
        for broker in brokers:
            broker.measure(self._times.around)
        self._monitor.start()

    async def stop(self) -> None:
        """Measure and listen no more."""
        self._monitor.stop()
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(self._close, server)

    def ready(self) -> Mapping[str, str]:
        """Where to scrape."""
        return {"metrics": f"{self._host}:{self._port}"}

    def failures(self) -> Sequence[asyncio.Future[None]]:
        """Nothing here can die by itself."""
        return []

    def _close(self, server: WSGIServer) -> None:
        server.shutdown()
        server.server_close()
        if self._thread is not None:
            self._thread.join()
