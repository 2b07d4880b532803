"""Producers on a context that the test can inspect and modify."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import client
from client.network.context import ClientContext
from client.producer.producer import shared_producer
from client.serde import raw
from remoting.connection import Connection
from remoting.protocol.command import Command


@asynccontextmanager
async def producing(
    context: ClientContext, **options: Any
) -> AsyncIterator[client.Producer[bytes]]:
    """A producer that shares a context; both are closed at the end."""
    await context.start()
    try:
        async with shared_producer(context, "p", raw, options) as producer:
            yield producer
    finally:
        await context.close()


class FaultyConnection:
    """A connection over which requests with certain bodies can't be sent, by a fault of ours."""

    def __init__(self, connection: Connection, *bodies: bytes) -> None:
        self._connection = connection
        self._bodies = bodies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def request_nowait(self, command: Command, *, timeout: float) -> Any:
        if command.body in self._bodies:
            raise ZeroDivisionError("of a test")
        return self._connection.request_nowait(command, timeout=timeout)
