"""The console beside ``pocketmq standalone``: a process of its own, which is kept running."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pocketmq.server.serving import NameServerPart
from pocketmq.server.workers import BrokerWorker, WorkerPlan
from remoting.runtime.tasks import Supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolePlan(WorkerPlan):
    """How the console is started; ``settings`` are not used.

    Attributes:
        name_server: the one to ask, which is started before.
    """

    name_server: NameServerPart

    def command(self, addresses: Mapping[str, str]) -> list[str]:
        """Return the command line; a restart gets the same options, whose port is fixed."""
        options = list(self.options)
        if "console" in addresses:
            options += ["--port", addresses["console"].rstrip("/").rpartition(":")[2]]
        return [
            *(sys.executable, "-P", "-m", "pocketmq", "console"),
            *("--nameserver", self.name_server.server.address),
            *options,
            "--until-stdin-closes",
        ]


class ConsoleChildPart:
    """The console's process, which is started again when it dies.

    Args:
        name_server: the one to ask.
        options: further arguments of ``pocketmq console``.
    """

    def __init__(self, name_server: NameServerPart, options: Sequence[str]) -> None:
        self._plan = ConsolePlan(
            name="console", settings={}, options=options, name_server=name_server
        )
        self._worker: BrokerWorker | None = None
        self._tasks: Supervisor | None = None

    async def start(self) -> None:
        """Start it and wait until it serves. Raises WorkerFailed."""
        self._worker = BrokerWorker(self._plan, asyncio.get_running_loop().time)
        self._tasks = Supervisor("console")
        await self._worker.start()
        self._tasks.spawn(self._worker.keep(), "console")

    async def stop(self) -> None:
        """Stop it, also after a failed start."""
        if self._tasks is not None:
            await self._tasks.close()
        if self._worker is not None:
            await self._worker.stop()

    def ready(self) -> Mapping[str, str]:
        """Return its address."""
        return {} if self._worker is None else self._worker.addresses

    def failures(self) -> Sequence[asyncio.Future[None]]:
        """Return a future that gets an exception if supervising fails; it is restarted itself."""
        return [] if self._tasks is None else [self._tasks.failed]
