"""Measurements of groups of three brokers whose master Apache's controller elects, side by side.

Apache's brokers are of RocketMQ 5.3.3, as earlier ones have no controller.
All processes run on this machine, so both slaves take processor time from their master. The runs of
two sides alternate, and each begins when the replicas of both groups have everything. For the time
to the next acknowledgement the master is killed under sends of our client, and comes back before
the next round.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import client
from benchmarks.beside import Beside, Plan
from benchmarks.figures import Figures
from benchmarks.replication import NAME, SHOWN, log_end, sends, wait_until_equal
from benchmarks.servers import HEAP, directory, process
from benchmarks.tools import BenchmarkError, Target, load
from remoting.blocking import BlockingConnection
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import TopicRequestHeader
from tests.chaos.controllers import VERSION, Controllers
from tests.interop import apache
from tests.support.ports import free_port, free_ports
from tests.support.waiting import wait_until

WHOLE_WITHIN: Final = 120.0
ACKNOWLEDGED_WITHIN: Final = 60.0
UNDISTURBED: Final = 3.0
"""Seconds of sends before the kill."""

SENDERS: Final = 8
TOPIC: Final = "failover"

Commands = Callable[[Path, int, str, str], Sequence[str]]
"""Returns a broker's command: its directory, its port, and where name server and controller are."""


def our_member(
    home: Path, port: int, nameserver: str, controller: str, *, python: Path
) -> list[str]:
    """Return the command of a broker of PocketMQ."""
    settings = {
        "enableControllerMode": "true",
        "controllerAddr": controller,
        "haListenPort": port + 1,
    }
    return [
        *(str(python), "-P", "-m", "pocketmq", "broker", f"--nameserver={nameserver}"),
        *(f"--port={port}", f"--store={home / 'store'}", f"--name={NAME}"),
        *(f"--set={key}={value}" for key, value in settings.items()),
    ]


def their_member(home: Path, port: int, nameserver: str, controller: str) -> list[str]:
    """Return the command of a broker of Apache RocketMQ that is as safe."""
    settings = [
        f"namesrvAddr={nameserver}",
        "enableControllerMode=true",
        f"controllerAddr={controller}",
        "allAckInSyncStateSet=true",
        "minInSyncReplicas=2",
        # With 200 ms, the default, it refuses sends on a busy machine.
        "waitTimeMillsInSendQueue=5000",
    ]
    return apache.broker_command(VERSION, home, port, settings=settings, heap=HEAP)


class Group:
    """A running group.

    Args:
        home: for everything.
        commands: returns the command of a broker.

    Attributes:
        nameserver: its address.
    """

    def __init__(self, home: Path, commands: Commands) -> None:
        home.mkdir()
        self._home = home
        self._commands = commands
        self._controllers = Controllers(home)
        self._running: dict[str, ExitStack] = {}
        self._pids: dict[str, int] = {}
        self._homes: dict[str, Path] = {}
        self.nameserver = f"127.0.0.1:{free_port()}"

    @contextmanager
    def open(self, names: Sequence[str]) -> Iterator[None]:
        """Run the group during the block.

        Args:
            names: the name server's command.
        """
        try:
            with process(names, self._home, self._home / "nameserver.log"):
                self._controllers.start_all()
                # Apache's brokers look for controllers that they miss at the start after minutes.
                wait_until(lambda: self._controllers.leader() is not None, "no controller leads")
                for name in "abc":
                    address = f"127.0.0.1:{free_ports(10)}"
                    self._homes[address] = self._home / name
                    self._homes[address].mkdir()
                    self.start(address)
                self.whole()
                yield
        finally:
            for address in list(self._running):
                self.kill(address)
            self._controllers.close()

    def start(self, address: str) -> None:
        """Start a broker."""
        home, port = self._homes[address], int(address.partition(":")[2])
        (controller,) = self._controllers.addresses
        stack = self._running[address] = ExitStack()
        command = self._commands(home, port, self.nameserver, controller)
        running = stack.enter_context(process(command, home, home / "broker.log"))
        self._pids[address] = running.pid

    def kill(self, address: str) -> None:
        """Kill a broker."""
        self._running.pop(address).close()

    def whole(self) -> Target:
        """Wait until all replicas are in sync, and have the same log; return the master.

        Raises:
            BenchmarkError: it took too long.
        """
        deadline = time.monotonic() + WHOLE_WITHIN
        while time.monotonic() < deadline:
            group = self._controllers.replicas(NAME)
            master = group.master_address or ""
            members = {one.broker_address for one in group.in_sync_replicas}
            if members == self._homes.keys() and master in members and log_end(master) is not None:
                for address in self._homes.keys() - {master}:
                    wait_until_equal(master, address)
                return Target(self.nameserver, master, self._pids[master])
            time.sleep(0.05)
        raise BenchmarkError(f"the group in {self._home} is not whole: {sorted(self._homes)}")

    def wait_for_topic(self) -> None:
        """Wait until all brokers have the topic.

        Raises:
            BenchmarkError: it took too long.
        """
        ask = Command.request(RequestCode.GET_TOPIC_CONFIG, TopicRequestHeader(topic=TOPIC))
        deadline = time.monotonic() + WHOLE_WITHIN
        for address in self._homes:
            with BlockingConnection(address, timeout=10) as connection:
                while connection.request(ask).code != ResponseCode.SUCCESS:
                    if time.monotonic() > deadline:
                        raise BenchmarkError(f"the broker {address} does not get the topic")
                    time.sleep(0.1)


@contextmanager
def both(plan: Plan) -> Iterator[Mapping[str, Group]]:
    """Run a group of each kind."""
    with ExitStack() as stack:
        home = stack.enter_context(directory(plan.where))
        groups = {
            "PocketMQ": Group(home / "pocketmq", partial(our_member, python=plan.python)),
            "Apache": Group(home / "apache", their_member),
        }
        for side, group in groups.items():
            port = int(group.nameserver.partition(":")[2])
            if side == "Apache":
                names = apache.nameserver_command(VERSION, home / "apache", port)
            else:
                kv = f"--set=kvConfigPath={home}/kv.json"
                names = [
                    str(plan.python),
                    "-P",
                    "-m",
                    "pocketmq",
                    "nameserver",
                    f"--port={port}",
                    kv,
                ]
            stack.enter_context(group.open(names))
        yield groups


def agreed(plan: Plan) -> Beside:
    """Compare groups in which all three replicas acknowledge."""
    scenario = sends("group")
    made = Beside(
        name="replica-group",
        text=f"{scenario.text}, a group of three, all acknowledge",
        sides=("PocketMQ", "Apache"),
        shown=SHOWN,
        bars={"per_s": 1.5},
    )
    with both(plan) as groups:

        def loaded(side: str) -> Figures:
            masters = {each: group.whole() for each, group in groups.items()}
            return load(scenario, masters[side], seconds=plan.seconds, warm=plan.settle)

        warm = groups["Apache"].whole()
        load(sends("warm-up"), warm, seconds=plan.warm_up, warm=0.0)
        made.measure(plan.rounds, loaded)
    return made


def succeeded(plan: Plan) -> Beside:
    """Compare the times from a master's death to the first acknowledgement of the next one."""
    made = Beside(
        name="failover",
        text="a master of three is killed, until the next acknowledgement",
        sides=("PocketMQ", "Apache"),
        shown={"seconds": "{:.2f} s"},
        bars={"seconds": 1.0},
    )
    with both(plan) as groups:
        for group in groups.values():
            asyncio.run(_create_topic(group.nameserver))
            group.wait_for_topic()

        def waited(side: str) -> Figures:
            for group in groups.values():
                group.whole()
            master = groups[side].whole().broker
            kill = partial(groups[side].kill, master)
            seconds = asyncio.run(_wait(groups[side].nameserver, kill))
            groups[side].start(master)
            return {"seconds": seconds}

        made.measure(plan.rounds, waited)
    return made


async def _create_topic(nameserver: str) -> None:
    async with client.Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, queues=4)


async def _wait(nameserver: str, kill: Callable[[], None]) -> float:
    """Return the seconds from a kill to the first acknowledgement of what is sent after it."""
    acknowledged = asyncio.Event()
    killed_at = float("inf")

    async def send() -> None:
        while True:
            begun = time.monotonic()
            with suppress(client.SendError):
                await producer.send(TOPIC, b"x" * 100)
                if begun > killed_at:
                    acknowledged.set()
                    return
            await asyncio.sleep(0.002)

    async with (
        client.Producer(nameserver, require_durable=True, linger=0) as producer,
        asyncio.TaskGroup() as tasks,
    ):
        senders = [tasks.create_task(send()) for _ in range(SENDERS)]
        await asyncio.sleep(UNDISTURBED)
        await asyncio.to_thread(kill)
        killed_at = time.monotonic()
        async with asyncio.timeout(ACKNOWLEDGED_WITHIN):
            await acknowledged.wait()
        seconds = time.monotonic() - killed_at
        for sender in senders:
            sender.cancel()
    return seconds


PARTS: Final[Mapping[str, Callable[[Plan], Beside]]] = {
    "replica-group": agreed,
    "failover": succeeded,
}
