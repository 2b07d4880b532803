"""A raw client for tests of a whole broker."""

from __future__ import annotations

import asyncio
from typing import Any

from remoting.connection import Connection
from remoting.pool import ConnectionPool
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.message.view import iter_records
from tests.unit.broker.harness import pull_command, send_command

TIMEOUT = 30.0


class Client:
    """A connection to a broker that records requests from the broker."""

    def __init__(self) -> None:
        self.pushed: asyncio.Queue[Command] = asyncio.Queue()
        self.pool = ConnectionPool(self._take)
        self.connection: Connection

    def _take(self, command: Command, _: Connection) -> None:
        self.pushed.put_nowait(command)

    async def ask(self, command: Command) -> Command:
        return await self.connection.request(command, timeout=TIMEOUT)

    async def send(self, topic: str = "T", body: bytes = b"x", **fields: Any) -> Command:
        return await self.ask(send_command(topic, body, **fields))

    async def pull(self, topic: str = "T", **fields: Any) -> Command:
        return await self.ask(pull_command(topic, **fields))

    async def hold(self) -> asyncio.Future[Command]:
        """Send a pull from offset 1 of queue 0 of T, and return when it is parked."""
        command = pull_command("T", queue_offset=1, sys_flag=6, suspend_timeout_millis=60_000)
        held = self.connection.request_nowait(command, timeout=TIMEOUT)
        # Requests of a connection are served in order: behind this one the pull is parked.
        await self.ask(Command.request(RequestCode.GET_ALL_TOPIC_CONFIG))
        return held


def bodies(reply: Command) -> list[bytes]:
    return [bytes(record.body) for record in iter_records(reply.body)]
