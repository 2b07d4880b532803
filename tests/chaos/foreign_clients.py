"""Java's and Go's unmodified clients, which send and consume while brokers fail."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import client
from tests.chaos.group_log import events
from tests.chaos.group_processes import MemberProcess
from tests.chaos.load import PATIENCE
from tests.chaos.pair import until
from tests.interop.apache import JavaClient
from tests.interop.goclient import GoClient

TOPIC = "foreign"
PERIOD_MS = 500
"""How often Java's ask the name server for the route; 30 s by default."""

TIMEOUT_MS = 3000
"""Java's default. 4.9.7 waits for so long for the answer of a broker that was killed."""

GO = "go"
"""The version that means Go's clients. They ask for the route every 30 s, which can't be set."""


class ForeignClients(ABC):
    """A producer of numbers, and the only member of a group that handles them."""

    @abstractmethod
    async def join(self) -> None:
        """Let the consumer join."""

    @abstractmethod
    def acknowledged(self) -> set[int]:
        """Return the numbers that were answered ``SEND_OK``."""

    @abstractmethod
    def handled(self) -> set[int]:
        """Return the numbers that the consumer has handled."""

    @abstractmethod
    def sends(self) -> bool:
        """Return whether the producer runs."""

    @abstractmethod
    async def end_producer(self) -> None:
        """End the producer."""

    @abstractmethod
    async def close(self) -> None:
        """Kill what still runs."""

    async def until_served(self, more: int = 20) -> None:
        """Wait until so many more messages are acknowledged, and more are handled."""
        sent, handled = len(self.acknowledged()), len(self.handled())
        await until(lambda: len(self.acknowledged()) >= sent + more)
        # Java's consumer of 4.9.7 waits 30 s for the answer to a pull of a broker that was killed.
        await until(lambda: len(self.handled()) >= handled + more, 2 * PATIENCE)
        assert self.sends(), "the producer has given up"

    async def end(self) -> set[int]:
        """End the producer, and wait for the consumer; return what was acknowledged."""
        await self.end_producer()
        acknowledged = self.acknowledged()
        with suppress(TimeoutError):
            await until(lambda: acknowledged <= self.handled(), PATIENCE)
        assert acknowledged - self.handled() == set(), "acknowledged, and not consumed"
        return acknowledged


class JavaClients(ForeignClients):
    """Those of a release of RocketMQ."""

    def __init__(self, java: JavaClient, nameserver: str) -> None:
        java.home.mkdir(parents=True, exist_ok=True)
        self._sent = java.home / "sent"
        words = (nameserver, "java", TOPIC, str(java.home / "handled"), "concurrent", "16", "java")
        consuming = java.command(*words, program="GroupMember")
        self._member = MemberProcess(consuming, java.home / "handled", "java")
        with self._sent.open("wb") as sent:
            self._producer = subprocess.Popen(
                java.command("keep sending", nameserver, TOPIC), stdout=sent
            )

    async def join(self) -> None:
        await self._member.join()

    def acknowledged(self) -> set[int]:
        rows = (line.split("\t") for line in self._sent.read_text().splitlines())
        return {int(row[0]) for row in rows if row[1:2] == ["SEND_OK"]}

    def handled(self) -> set[int]:
        calls = events({self._member.name: self._member.file})
        return {event.number for event in calls if event.kind == "end"}

    def sends(self) -> bool:
        return self._producer.poll() is None

    async def end_producer(self) -> None:
        self._producer.kill()
        self._producer.wait()

    async def end(self) -> set[int]:
        acknowledged = await super().end()
        await self._member.leave()
        return acknowledged

    async def close(self) -> None:
        await self.end_producer()
        await self._member.close()


class GoClients(ForeignClients):
    """Those of Go, both in one process, which ends its producer when its input ends."""

    def __init__(self, home: Path, nameserver: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._facts = home / "facts"
        with self._facts.open("wb") as facts:
            self._process = subprocess.Popen(
                GoClient().command("keep", nameserver, TOPIC, "go"),
                stdin=subprocess.PIPE,
                stdout=facts,
            )

    def _numbers(self, kind: str) -> set[int]:
        # Its last line may not be whole yet.
        lines = self._facts.read_text().splitlines(keepends=True)
        rows = (line.split("\t") for line in lines if line.endswith("\n"))
        return {int(row[1]) for row in rows if row[0] == kind}

    async def join(self) -> None:
        await until(lambda: "ready" in self._facts.read_text())

    def acknowledged(self) -> set[int]:
        return self._numbers("sent")

    def handled(self) -> set[int]:
        return self._numbers("handled")

    def sends(self) -> bool:
        return self._process.poll() is None

    async def end_producer(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await until(lambda: "ended\t" in self._facts.read_text())

    async def close(self) -> None:
        self._process.kill()
        self._process.wait()


@asynccontextmanager
async def foreign_clients(
    version: str, home: Path, nameserver: str
) -> AsyncIterator[ForeignClients]:
    """Run the clients of a release during the block.

    Args:
        version: of RocketMQ with its Java client, or ``GO``.
        home: an empty directory, or one that is to be made.
        nameserver: of a cluster that takes messages.
    """
    async with client.Admin(nameserver, request_timeout=PATIENCE) as admin:
        await admin.create_topic(TOPIC, queues=4)
    options = (
        f"-Dtimeout.ms={TIMEOUT_MS}",
        f"-Dperiods.ms={PERIOD_MS}",
        "-Drocketmq.client.rebalance.waitInterval=1000",
    )
    clients: ForeignClients
    if version == GO:
        clients = GoClients(home, nameserver)
    else:
        clients = JavaClients(JavaClient(version, "JSON", home, options=options), nameserver)
    try:
        await clients.join()
        yield clients
    finally:
        await clients.close()
