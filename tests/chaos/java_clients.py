"""Java's unmodified clients, which send and consume while brokers fail."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import client
from tests.chaos.group_log import events
from tests.chaos.group_processes import MemberProcess
from tests.chaos.load import PATIENCE
from tests.chaos.pair import until
from tests.interop.apache import JavaClient

TOPIC = "java"
PERIOD_MS = 500
"""How often both ask the name server for the route; 30 s by default."""

TIMEOUT_MS = 3000
"""Java's default. 4.9.7 waits for so long for the answer of a broker that was killed."""


class JavaClients:
    """A producer of numbers, and the only member of a group that handles them."""

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
        """Let the consumer join."""
        await self._member.join()

    def acknowledged(self) -> set[int]:
        """Return the numbers that were answered ``SEND_OK``."""
        rows = (line.split("\t") for line in self._sent.read_text().splitlines())
        return {int(row[0]) for row in rows if row[1:2] == ["SEND_OK"]}

    def handled(self) -> set[int]:
        """Return the numbers that the consumer has handled."""
        calls = events({self._member.name: self._member.file})
        return {event.number for event in calls if event.kind == "end"}

    async def until_served(self, more: int = 20) -> None:
        """Wait until so many more messages are acknowledged, and more are handled."""
        sent, handled = len(self.acknowledged()), len(self.handled())
        await until(lambda: len(self.acknowledged()) >= sent + more)
        await until(lambda: len(self.handled()) >= handled + more)
        assert self._producer.poll() is None, "the producer has given up"

    async def end(self) -> set[int]:
        """End both, the consumer when it has got everything; return what was acknowledged."""
        self._producer.kill()
        self._producer.wait()
        acknowledged = self.acknowledged()
        with suppress(TimeoutError):
            await until(lambda: acknowledged <= self.handled(), PATIENCE)
        assert acknowledged - self.handled() == set(), "acknowledged, and not consumed"
        await self._member.leave()
        return acknowledged

    async def close(self) -> None:
        """Kill what still runs."""
        self._producer.kill()
        self._producer.wait()
        await self._member.close()


@asynccontextmanager
async def java_clients(version: str, home: Path, nameserver: str) -> AsyncIterator[JavaClients]:
    """Run Java's clients of a release during the block.

    Args:
        version: of RocketMQ.
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
    java = JavaClients(JavaClient(version, "JSON", home, options=options), nameserver)
    try:
        await java.join()
        yield java
    finally:
        await java.close()
