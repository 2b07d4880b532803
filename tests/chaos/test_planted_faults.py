"""Faults that are planted into real brokers are found by the judge of histories.

A master and its slave run in this process, recorded as in ``test_replication_faults``; then the
slave succeeds the master.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import client
from broker.replication.stream import HEADER, REPORT
from tests.chaos.alterations import altered, set_clock
from tests.chaos.history import Recorder, events
from tests.chaos.history_check import NS, Judge
from tests.chaos.load import PATIENCE
from tests.chaos.pair import COMMITS_LAG, NAME, SETTINGS, record_store
from tests.chaos.recorder import QUEUES, TOPIC, read_all, record
from tests.harness.cluster import Cluster
from tests.support.ports import free_port
from tests.support.waiting import until

ENOUGH = 200
"""Acknowledgements between two steps."""

TRIES = 15
"""What harm some faults do, if any, depends on the moment in which the broker stops."""


class Planted:
    """A cluster whose master and slave have been altered."""

    def __init__(self, root: Path, role: str) -> None:
        settings = {name: str(value) for name, value in SETTINGS.items()}
        self.cluster = Cluster(root, **{**settings, "brokerName": NAME})
        self.root = root
        self.role = role
        self.history = root / "history"
        self.stream_port = free_port()
        self._own = Recorder(self.history, "test")
        self._recording: asyncio.Task[None] | None = None
        self._runs = 0

    async def start_master(self, name: str = "a") -> None:
        """Start the master, or start a broker's store as the master."""
        port = str(self.stream_port)
        await self.cluster.start(name, brokerName=NAME, brokerRole=self.role, haListenPort=port)

    async def start_slave(self) -> None:
        """Start the slave, and wait until it has the topic."""
        slave = await self.cluster.start("b", brokerName=NAME, brokerRole="SLAVE", brokerId="1")
        await until(lambda: TOPIC in slave.state.topics, PATIENCE)

    async def record(self) -> None:
        """Record until some messages are acknowledged."""
        if self._recording is None:
            self._runs += 1
            running = record(self.cluster.nameserver, self.history, self._runs)
            self._recording = asyncio.create_task(running)
        enough = self._stored() + ENOUGH
        await until(lambda: self._stored() >= enough, PATIENCE)

    def _stored(self) -> int:
        return sum(path.read_bytes().count(b"\tstored\t") for path in self.history.iterdir())

    async def end_recording(self) -> None:
        """Cancel the recorder."""
        if self._recording is not None:
            self._recording.cancel()
            await asyncio.gather(self._recording, return_exceptions=True)
            self._recording = None

    async def succeed(self) -> None:
        """Stop both, and start the slave as the master."""
        for name in list(self.cluster.brokers):
            await self.cluster.stop(name)
        self._own.write("crash")
        self.role = "ASYNC_MASTER"
        await self.start_master("b")

    async def problems(self) -> set[str]:
        """End the recorder, and return the kinds of problems of the history."""
        await self.end_recording()
        await read_all(self.cluster.nameserver, self.history, patience=2.0)
        for name in self.cluster.brokers:
            record_store(self.root / name, self.history, f"store-{name}")
        return Judge(commits_lag=COMMITS_LAG).judge(events(self.history)).found


@asynccontextmanager
async def planted(
    root: Path, role: str = "SYNC_MASTER", *, master: str = "", slave: str = ""
) -> AsyncIterator[Planted]:
    """Run a pair, of which one may be altered, under a recorder."""
    made = Planted(root, role)
    async with made.cluster:
        with altered(*master.split()):
            await made.start_master()
            async with client.Admin(made.cluster.nameserver) as admin:
                await admin.create_topic(TOPIC, queues=QUEUES)
            with altered(*slave.split()):
                await made.start_slave()
                await made.record()
                try:
                    yield made
                finally:
                    await made.end_recording()


async def test_nothing_is_found_without_a_fault(tmp_path: Path) -> None:
    async with planted(tmp_path) as pair:
        await pair.end_recording()
        await pair.succeed()
        await pair.record()
        assert await pair.problems() == set()


async def test_a_master_that_does_not_wait_for_its_slave(tmp_path: Path) -> None:
    for role, master in (("ASYNC_MASTER", ""), ("SYNC_MASTER", "eager-master")):
        async with planted(tmp_path / role, role, master=master) as pair:
            await pair.cluster.stop("b")
            await pair.record()
            await pair.end_recording()
            await pair.succeed()
            await pair.record()
            assert await pair.problems() == {"lost", "two bodies"}


async def test_a_master_that_counts_what_a_stranger_acknowledges(tmp_path: Path) -> None:
    async with planted(tmp_path, master="gullible-master") as pair:
        with socket.create_connection(("127.0.0.1", pair.stream_port)) as stranger:
            stranger.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(stranger, REPORT.pack(0))
            assert len(await loop.sock_recv(stranger, HEADER.size)) == HEADER.size
            await loop.sock_sendall(stranger, REPORT.pack(1 << 40))
            await pair.cluster.stop("b")
            await pair.record()
        await pair.end_recording()
        await pair.succeed()
        assert "lost" in await pair.problems()


async def test_a_slave_that_acknowledges_before_it_appends(tmp_path: Path) -> None:
    found: set[str] = set()
    for attempt in range(TRIES):
        async with planted(tmp_path / str(attempt), slave="eager-slave") as pair:
            await pair.cluster.stop("b")
            await pair.end_recording()
            await pair.succeed()
            found |= await pair.problems()
        if "lost" in found:
            return
    raise AssertionError(found)


@pytest.mark.parametrize(
    ("slave", "found"),
    [("reordering", {"two bodies"}), ("dropping", {"lost"})],
)
async def test_a_slave_with_other_queues_than_its_master(
    tmp_path: Path, slave: str, found: set[str]
) -> None:
    problems: set[str] = set()
    for attempt in range(TRIES):
        async with planted(tmp_path / str(attempt), "ASYNC_MASTER", slave=slave) as pair:
            # A slave that is behind gets many messages of a queue at once.
            await pair.cluster.stop("b")
            await pair.record()
            await pair.end_recording()
            await pair.start_slave()
            master, copy = (pair.cluster.brokers[name].store for name in ("a", "b"))
            await until(lambda a=master, b=copy: a.log.end == b.log.end, PATIENCE)  # type: ignore[misc]
            await pair.succeed()
            problems |= await pair.problems()
        if found <= problems:
            return
    raise AssertionError(problems)


async def test_a_master_that_commits_what_is_rolled_back(tmp_path: Path) -> None:
    async with planted(tmp_path, master="committing") as pair:
        assert await pair.problems() == {"rolled back"}


async def test_a_clock_that_is_set_without_notice(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    set_clock(clock, 0)
    async with planted(tmp_path / "pair", master=f"clock={clock}") as pair:
        set_clock(clock, 3600 * NS)
        await pair.record()
        assert await pair.problems() == {"too early"}


async def test_a_master_that_forgets_offsets(tmp_path: Path) -> None:
    async with planted(tmp_path) as pair:
        await pair.end_recording()
        await pair.cluster.stop("a")
        for file in (tmp_path / "a" / "config").glob("consumerOffset.json*"):
            file.unlink()
        await pair.start_master()
        assert await pair.problems() == {"went back"}
