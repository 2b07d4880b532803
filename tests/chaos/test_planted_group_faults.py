"""A fault that is planted into a group with a controller is found by the judge of histories."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import client
from broker.limits import BrokerLimits
from tests.chaos.alterations import altered
from tests.chaos.history import Recorder, events
from tests.chaos.history_check import Judge, Verdict
from tests.chaos.load import PATIENCE
from tests.chaos.pair import COMMITS_LAG, NAME, SETTINGS, record_store
from tests.chaos.recorder import QUEUES, TOPIC, read_all, record
from tests.harness.cluster import Cluster
from tests.harness.controller import ControllerServer
from tests.support.ports import free_port
from tests.support.sizes import size
from tests.support.waiting import until

ENOUGH = 200
"""Acknowledgements between two steps."""

UNKNOWN = 20
"""Messages that a master alone takes, and does not acknowledge."""

SECONDS = 60.0


class PlantedGroup:
    """The brokers ``a``, the master, ``b`` and ``c``."""

    def __init__(self, root: Path, cluster: Cluster, controller: ControllerServer) -> None:
        self.cluster = cluster
        self.controller = controller
        self.history = root / "history"
        self._root = root
        self._own = Recorder(self.history, "test")
        self._ports = {name: str(free_port()) for name in "abc"}
        self._recording: asyncio.Task[None] | None = None
        self._runs = 0

    async def start(self, *names: str, alterations: str = "") -> None:
        """Start brokers, and wait until all that run are in sync."""
        with altered(*alterations.split()):
            for name in names:
                await self.cluster.start(
                    name,
                    limits=BrokerLimits(table_copy_seconds=0.1),
                    brokerName=NAME,
                    enableControllerMode="true",
                    controllerAddr=self.controller.address,
                    haListenPort=self._ports[name],
                    slaveTimeout="200",
                )
            await until(self.is_whole, SECONDS)

    def is_whole(self) -> bool:
        """Return whether all brokers that run have their roles, and are in sync."""
        brokers = self.cluster.brokers.values()
        return len(self.controller.model.members) == len(brokers) and all(
            one.serving and one.state.group is not None and one.state.group.role.master_id
            for one in brokers
        )

    async def stop(self, *names: str) -> None:
        """Stop brokers."""
        for name in names:
            await self.cluster.stop(name)

    async def record(self) -> None:
        """Record until some messages are acknowledged."""
        if self._recording is None:
            self._runs += 1
            running = record(self.cluster.nameserver, self.history, self._runs)
            self._recording = asyncio.create_task(running)
        enough = self._count("produce*", b"\tstored\t") + ENOUGH
        await until(lambda: self._count("produce*", b"\tstored\t") >= enough, SECONDS)

    async def end_recording(self) -> None:
        """Cancel the recorder; a broker has failed."""
        if self._recording is not None:
            self._recording.cancel()
            await asyncio.gather(self._recording, return_exceptions=True)
            self._recording = None
        self._own.write("crash")

    async def go_on_alone(self) -> None:
        """Let the master lose its slaves, unknown to the controller, and take messages."""
        self.controller.is_silent = True
        await self.stop("b", "c")
        enough = self._count("produce*", b"\tunknown\t") + UNKNOWN
        await until(lambda: self._count("produce*", b"\tunknown\t") >= enough, SECONDS)

    def _count(self, files: str, text: bytes) -> int:
        return sum(path.read_bytes().count(text) for path in self.history.glob(files))

    async def judge(self) -> Verdict:
        """End the recorder, and judge the history."""
        await self.end_recording()
        await read_all(self.cluster.nameserver, self.history, patience=2.0)
        for name in self.cluster.brokers:
            record_store(self._root / name, self.history, f"store-{name}")
        return Judge(commits_lag=COMMITS_LAG).judge(events(self.history))


@asynccontextmanager
async def planted(root: Path, *, master: str = "") -> AsyncIterator[PlantedGroup]:
    """Run a group, of which the master may be altered, under a recorder."""
    settings = {name: str(value) for name, value in SETTINGS.items()}
    async with ControllerServer() as controller, Cluster(root, **settings) as cluster:
        group = PlantedGroup(root, cluster, controller)
        await group.start("a", alterations=master)
        async with client.Admin(cluster.nameserver) as admin:
            await until(admin.brokers, SECONDS)
            await admin.create_topic(TOPIC, queues=QUEUES)
        await group.start("b", "c")
        copies = [cluster.brokers[name] for name in "bc"]
        await until(lambda: all(TOPIC in one.state.topics for one in copies), PATIENCE)
        await group.record()
        try:
            yield group
        finally:
            await group.end_recording()


@pytest.mark.parametrize(
    ("master", "is_found"),
    size(ci=[("revealing-master", True)], soak=[("", False), ("revealing-master", True)]),
)
async def test_a_master_that_shows_what_is_not_confirmed(
    tmp_path: Path, master: str, is_found: bool
) -> None:
    async with planted(tmp_path, master=master) as group:
        await group.go_on_alone()
        await group.end_recording()
        await group.stop("a")
        group.controller.is_silent = False
        await group.start("b", "c")
        await group.record()
        await group.start("a")
        verdict = await group.judge()
    assert verdict.found == set()
    assert (verdict.counts["vanished"] > 0) is is_found
