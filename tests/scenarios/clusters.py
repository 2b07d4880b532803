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
        settles: seconds after which the effects of a step are complete; None: wait for the
            expected outcome.
    """

    kind: str
    nameserver: str

    @property
    def settles(self) -> float | None:
        """See ``Place``."""

    async def stop(self, broker: str) -> None:
        """Stop a broker cleanly."""

    async def start(self, broker: str) -> None:
        """Restart one at its address, with its store."""


class InLoop(Cluster):
    """Our brokers, without sockets, as actors of a ``SimulatedLoop``."""

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
        """Make a broker answer a request with a code; None: serve the request again."""
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
        """Drop locks, as if another client had acquired and released them."""
        locks = self.brokers[broker].state.locks
        for group, owners in locks.saved().lock_table.items():
            for owner, places in owners.items():
                queues = [MessageQueue(*place[:3]) for place in places]
                locks.unlock(group, owner, queues)
                now_ms = self.brokers[broker].state.monotonic_ms
                locks.lock(group, "10.6.6.6@stranger", queues, now_ms)


class OurProcesses:
    """Our servers, each in its own process."""

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
    """A running cluster that the scenarios don't control."""

    settles: float | None = None

    def __init__(self, kind: str, nameserver: str) -> None:
        self.kind = kind
        self.nameserver = nameserver

    async def stop(self, broker: str) -> None:
        raise AssertionError(f"{broker} can't be stopped here")

    async def start(self, broker: str) -> None:
        raise AssertionError(f"{broker} can't be started here")


async def make_topic(cluster: Place, topic: str, queues: int, brokers: list[str]) -> None:
    """Create a topic at some of the brokers."""
    async with client.Admin(cluster.nameserver) as admin:
        await admin.create_topic(topic, queues=queues, brokers=brokers)
