"""A master and a slave as processes under recorders, and what is done to them.

Each of the two brokers keeps its store and its ports while the roles change. Producers and readers
are processes too; what they record is judged at the end.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import client
from broker.storetools.view import StoreView
from pocketmq.testing import SMALL_STORE, ServerProcess
from remoting.blocking import BlockingConnection
from remoting.errors import RemotingError
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.disk.files import ENTRY
from remoting.protocol.headers.admin import TopicRequestHeader
from tests.chaos.alterations import environment, set_clock
from tests.chaos.history import Recorder, events
from tests.chaos.history_check import Judge, Verdict
from tests.chaos.load import PATIENCE
from tests.chaos.network import ROUTER, Network, Proxy
from tests.chaos.recorder import LEVEL_MS, QUEUES, TOPIC, read_all
from tests.harness.processes import options
from tests.support.ports import free_port, free_ports
from tests.support.sizes import size

T = TypeVar("T")

NAME = "broker-a"

SETTINGS: Mapping[str, object] = {
    **SMALL_STORE,
    "brokerName": NAME,
    "mappedFileSizeCommitLog": 1 << 20,
    "messageDelayLevel": f"{LEVEL_MS // 1000}s",
    "transactionTimeOut": 500,
    "transactionCheckInterval": 200,
    "transactionCheckMax": 10_000,
    "flushConsumerOffsetInterval": 500,
}

COPIED_WITHIN = 90.0
"""Seconds in which a slave has the topic; Apache's takes up to thirty."""

COMMITS_LAG = size(ci=40.0, soak=20.0)
"""Seconds: a slave copies the offsets every ten, which may have failed; or the machine is busy."""


class Node:
    """A broker that is master or slave.

    Args:
        store: its directory.
        name: of its host in ``network``; that of its directory by default.
        network: where it runs; None: on this machine.
        environment: of its process.
    """

    def __init__(
        self,
        store: Path,
        *,
        name: str = "",
        network: Network | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.store = store
        self.name = name or store.name
        self.host = "127.0.0.1" if network is None else network.address(self.name)
        self.port = free_ports(3)
        self.stream_port = free_port()
        self._network = network
        self._server = ServerProcess([], environment=environment)

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.host}:{self.port}"

    @property
    def log(self) -> str:
        """The last lines of its log."""
        return self._server.log

    def configure(self, nameserver: str, role: str, settings: Mapping[str, object]) -> None:
        """Give it a role for its next start."""
        own: dict[str, object] = {**settings, "brokerRole": role, "pocketmqBindHost": self.host}
        if role == "SLAVE":
            own["brokerId"] = 1
        else:
            own["haListenPort"] = self.stream_port
        self._server.command = [
            *("broker", "--nameserver", nameserver, f"--port={self.port}", "--metrics-port=0"),
            *("--store", str(self.store), *options(own)),
        ]

    def start(self) -> None:
        """Start the process."""
        self._run_there(self._server.start)

    def _run_there(self, call: Callable[..., T], *arguments: object) -> T:
        """Call a function on the broker's host."""
        if self._network is None:
            return call(*arguments)
        return self._network.run(self.name, call, *arguments)

    def stop(self) -> None:
        """Stop it cleanly."""
        self._server.stop()

    def kill(self) -> None:
        """Kill it."""
        self._server.kill()

    def pause(self) -> None:
        """Stop its time (SIGSTOP)."""
        self._server.pause()

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        if self._server.alive:
            self._server.resume()

    def log_end(self) -> int:
        """Return where its log ends; -1 when it does not answer."""
        try:
            with BlockingConnection(self.address, timeout=PATIENCE) as connection:
                request = Command.request(RequestCode.GET_BROKER_RUNTIME_INFO)
                answer = connection.request(request)
        except (OSError, RemotingError):
            return -1
        if answer.code != ResponseCode.SUCCESS:
            return -1
        return int(decode(KVTable, answer.body).table["commitLogMaxOffset"])

    def has_topic(self) -> bool:
        """Return whether it has the topic, without which nobody could read it."""
        request = Command.request(RequestCode.GET_TOPIC_CONFIG, TopicRequestHeader(topic=TOPIC))
        with BlockingConnection(self.address, timeout=PATIENCE) as connection:
            return connection.request(request).code == ResponseCode.SUCCESS


async def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until a condition holds, which may block."""
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - in other processes
            await asyncio.sleep(0.05)


class Pair:
    """A name server, a master, its slave, and the recorders.

    Args:
        root: for everything.
        role: of the master.
        settings: of both brokers.
        network: with the hosts ``a`` and ``b``; the rest runs on its router, as the caller does.
        alter: alterations of the two brokers, by name; see ``alterations``.
        proxy: between the slave and its master.
        slave: the broker that begins as the slave; None: ours.

    Attributes:
        master, slave: the brokers; they begin as ``a`` and ``b``.
        done: counts what was done, by name.
        history: the recorders' folder.
        recorder_options: of the recorders' command lines.
    """

    recorder_options: Sequence[str] = ()

    def __init__(
        self,
        root: Path,
        role: str = "SYNC_MASTER",
        settings: Mapping[str, object] | None = None,
        *,
        network: Network | None = None,
        alter: Mapping[str, Sequence[str]] | None = None,
        proxy: Proxy | None = None,
        slave: Node | None = None,
    ) -> None:
        self.root = root
        self.role = role
        self.settings = {**SETTINGS, **(settings or {})}
        self.history = root / "history"
        self.done: Counter[str] = Counter()
        self.proxy = proxy
        host, port = "127.0.0.1" if network is None else network.address(ROUTER), free_port()
        self.nameserver = f"{host}:{port}"
        kv = options({"kvConfigPath": root / "kvConfig.json"})
        command = ["nameserver", f"--host={host}", f"--port={port}", "--metrics-port=0", *kv]
        self._nameserver = ServerProcess(command)

        def ours(name: str) -> Node:
            alterations = (alter or {}).get(name)
            variables = environment(*alterations) if alterations else None
            return Node(root / name, network=network, environment=variables)

        self.master, self.slave = ours("a"), slave or ours("b")
        self._recorders: list[subprocess.Popen[bytes]] = []
        self._runs = 0
        self._counted: dict[Path, tuple[int, int]] = {}
        self._own = Recorder(self.history, "test")

    # --- the cluster

    async def open(self) -> None:
        """Start everything, without recorders."""
        await asyncio.to_thread(self._nameserver.start)
        await asyncio.gather(self.start_master(), self.start_slave())

    def close(self) -> None:
        """Kill everything."""
        self.end_recorders()
        for node in (self.slave, self.master):
            node.kill()
        self._nameserver.kill()
        self._own.close()

    async def start_master(self) -> None:
        """Start the master, with the topic."""
        self.master.configure(self.nameserver, self.role, self.settings)
        if self.proxy is not None:
            self.proxy.target = self.master.host, self.master.stream_port
        await asyncio.to_thread(self.master.start)
        if not await asyncio.to_thread(self.master.has_topic):
            async with client.Admin(self.nameserver, request_timeout=PATIENCE) as admin:
                await admin.create_topic(TOPIC, queues=QUEUES)

    async def start_slave(self) -> None:
        """Start the slave, and wait until it has the topic."""
        own = {} if self.proxy is None else {"haMasterAddress": self.proxy.address}
        self.slave.configure(self.nameserver, "SLAVE", {**self.settings, **own})
        await asyncio.to_thread(self.slave.start)
        await until(self.slave.has_topic, COPIED_WITHIN)

    async def in_sync(self) -> None:
        """Wait until the slave has the master's log, which must not grow."""
        await until(lambda: self.master.log_end() == self.slave.log_end())

    # --- what is done to it

    async def kill_master(self) -> None:
        """Kill the master."""
        await asyncio.to_thread(self.master.kill)
        self.crashed()
        self.done["master kills"] += 1

    def crashed(self) -> None:
        """Record that a broker has lost its memory."""
        self._own.write("crash")

    async def promote(self, *, empty: bool = True) -> None:
        """Start the slave as the master, and the old master as its slave.

        Args:
            empty: without its store.
        """
        await asyncio.to_thread(self.slave.kill)
        self.master, self.slave = self.slave, self.master
        if empty:
            await asyncio.to_thread(shutil.rmtree, self.slave.store)
        await asyncio.gather(self.start_master(), self.start_slave())

    async def kill_slave(self) -> None:
        """Kill the slave."""
        await asyncio.to_thread(self.slave.kill)
        self.done["slave kills"] += 1

    async def pause(self, node: Node, seconds: float) -> None:
        """Stop a broker's time (SIGSTOP)."""
        node.pause()
        await asyncio.sleep(seconds)
        node.resume()
        self.done["pauses"] += 1

    async def set_clock(self, file: Path, ahead_ns: int) -> None:
        """Set the clock of the brokers that have this file."""
        self._own.write("clock", detail=ahead_ns)
        set_clock(file, ahead_ns)
        self._own.write("clock set")
        self.done["clock steps"] += 1

    # --- recorders

    def record(self) -> None:
        """Start a recorder."""
        self._runs += 1
        command = [sys.executable, "-m", "tests.chaos.recorder", self.nameserver]
        self._recorders.append(
            subprocess.Popen([*command, str(self.history), str(self._runs), *self.recorder_options])
        )

    def end_recorders(self) -> None:
        """Kill all recorders."""
        while self._recorders:
            recorder = self._recorders.pop()
            recorder.kill()
            recorder.wait()

    async def until_stored(self, more: int) -> None:
        """Wait until so many more messages are acknowledged."""
        before = self._stored()
        await until(lambda: self._stored() >= before + more)
        assert all(recorder.poll() is None for recorder in self._recorders), "a recorder has ended"

    def _stored(self) -> int:
        for path in self.history.glob("produce*"):
            at, count = self._counted.get(path, (0, 0))
            with path.open("rb") as file:
                file.seek(at)
                new = file.read()
            self._counted[path] = at + len(new), count + new.count(b"\tstored\t")
        return sum(count for _, count in self._counted.values())

    # --- the end

    def logs_are_equal(self) -> bool:
        """Return whether the stopped brokers have the same log."""
        logs = [
            {file.name: file.read_bytes() for file in (node.store / "commitlog").iterdir()}
            for node in (self.master, self.slave)
        ]
        return logs[0] == logs[1]

    async def judge(self, *, commits_lag: float = COMMITS_LAG, patience: float = 15.0) -> Verdict:
        """End the recorders, read everything from the master and from both stores, and judge."""
        self.end_recorders()
        await read_all(self.nameserver, self.history, patience=patience)
        for node in (self.master, self.slave):
            if node.store.exists():
                record_store(node.store, self.history, f"store-{node.store.name}")
        return Judge(commits_lag=commits_lag).judge(events(self.history))


@asynccontextmanager
async def running(pair: Pair) -> AsyncIterator[Pair]:
    """Run a pair under a recorder; all are killed at the end."""
    try:
        await pair.open()
        pair.record()
        yield pair
    finally:
        await asyncio.to_thread(pair.close)


def record_store(store: Path, folder: Path, who: str) -> None:
    """Record what the queues in a store's directory have, as another reader."""
    recorder = Recorder(folder, who)
    view = StoreView(store)
    for queue_id in range(QUEUES):
        queue = view.queue(TOPIC, queue_id)
        low, high, _ = queue.range()
        for run in queue.entries(low, high):
            for offset, (position, _, _) in enumerate(ENTRY.iter_unpack(run.entries), run.offset):
                record = view.log.record_at(position)
                assert record is not None, f"{store} has no sound record at {position}"
                recorder.write("read", int(record.body), queue_id, offset)
    recorder.close()
