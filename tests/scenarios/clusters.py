"""Where scenarios run: our brokers in this event loop or in processes, or Apache's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Protocol, Self

import client
from broker.app import Broker
from remoting.protocol.command import Command
from remoting.protocol.queue import MessageQueue
from tests.harness.cluster import Cluster
from tests.harness.processes import Processes
from tests.scenarios.loops import Actor

BROKERS = ("broker-a", "broker-b")


class Place(Protocol):
    """A name server and the two ``BROKERS``.

    Attributes:
        kind: whose they are: ``ours`` or ``apache``.
        nameserver: its address.
        settles: seconds in which what a step causes has come about; None: until what is expected
            has happened.
    """

    kind: str
    nameserver: str

    @property
    def settles(self) -> float | None:
        """See above."""

    async def stop(self, broker: str) -> None:
        """Stop a broker cleanly."""

    async def start(self, broker: str) -> None:
        """Start one again, at its address, with its store."""


class InLoop(Cluster):
    """Ours, without sockets, as actors of a ``StoryLoop``."""

    kind = "ours"
    settles: float | None = 2.0

    def __init__(self, root: Path) -> None:
        super().__init__(
            root, mappedFileSizeCommitLog="4194304", mappedFileSizeConsumeQueue="20000"
        )

    async def __aenter__(self) -> Self:
        with Actor("nameserver", "10.8.8.8").acting():
            await super().__aenter__()
        for name in BROKERS:
            await self.start(name)
        return self

    async def start(self, name: str = BROKERS[0], **settings: Any) -> Broker:
        with Actor(name, "10.7.7.7").acting():
            return await super().start(name, **settings)

    def answer(self, name: str, request: int, code: int | None) -> None:
        """Have a broker answer a request with a code instead of doing it; None: do it again."""
        endpoint = self.brokers[name]._server.endpoint
        real = getattr(endpoint.handler, "real", endpoint.handler)
        assert real is not None

        def handler(command: Command, connection: Any) -> Any:
            if command.code == request:
                assert code is not None
                return command.reply(code, "as told")
            return real(command, connection)

        handler.real = real  # type: ignore[attr-defined] # to find it again
        endpoint.handler = real if code is None else handler

    def forget_locks(self, broker: str) -> None:
        """As if another had been given them and had let them go again."""
        locks = self.brokers[broker].state.locks
        for group, owners in locks.saved().lock_table.items():
            for owner, places in owners.items():
                queues = [MessageQueue(*place[:3]) for place in places]
                locks.unlock(group, owner, queues)
                locks.lock(group, "10.6.6.6@stranger", queues, self.now_ms(broker))

    def now_ms(self, broker: str) -> int:
        """A broker's time."""
        return self.brokers[broker].state.clock.now_ms()


class OurProcesses:
    """Ours, each in a process of its own."""

    kind = "ours"
    settles: float | None = None

    def __init__(self, running: Processes) -> None:
        self.nameserver = running.address
        self._brokers = running.brokers

    async def stop(self, broker: str) -> None:
        await asyncio.to_thread(self._brokers[broker].stop)

    async def start(self, broker: str) -> None:
        await asyncio.to_thread(self._brokers[broker].start)


class Running:
    """Somebody else's, which can only be used."""

    settles: float | None = None

    def __init__(self, kind: str, nameserver: str) -> None:
        self.kind = kind
        self.nameserver = nameserver

    async def stop(self, broker: str) -> None:
        raise AssertionError(f"{broker} can't be stopped here")

    async def start(self, broker: str) -> None:
        raise AssertionError(f"{broker} can't be started here")


async def make_topic(cluster: Place, topic: str, queues: int, brokers: list[str]) -> None:
    """A topic at some of the brokers."""
    async with client.Admin(cluster.nameserver) as admin:
        await admin.create_topic(topic, queues=queues, brokers=brokers)
