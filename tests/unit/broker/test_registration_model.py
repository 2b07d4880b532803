"""A model of a broker's registration at two name servers, with virtual time and no sockets.

Topics are created, changed and deleted in any order, while name servers refuse, hang, lose answers,
close connections and restart. In the end each name server has the table of the broker, without the
periodic registration.
"""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from broker.config import BrokerConfig
from broker.registration import Announcement, BrokerRegistration
from broker.topics.table import TopicTable
from nameserver.config import NameServerConfig
from nameserver.requests import process
from nameserver.routes import Queues
from nameserver.state import SharedState
from remoting.errors import AnswerTimeout, ConnectFailed, ConnectionLost
from remoting.protocol.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.command import Command
from tests.support.clock import ManualClock
from tests.support.virtual_time import VirtualTimeLoop

NETWORK_SECONDS = 0.001
SLOW_SECONDS = 0.5
PERIOD_SECONDS = 1_000_000.0
TIMEOUT_SECONDS = 6.0
END_SECONDS = 10 * TIMEOUT_SECONDS
"""Longer than any registration and its retries, and shorter than a period."""

ADDRESSES = ("a:9876", "b:9876")
NAMES = ("orders", "bills", "stock", "users")
FAULTS = ("refuses", "hangs", "slow", "loses", "drops", "drops answer", "restarts")


class Socket:
    """A connection between the broker and a name server."""

    closed = False
    close_reason = "the name server closed it"
    remote_text = "10.0.0.1:5"


class NameServer:
    """A name server whose next requests meet the given faults."""

    def __init__(self) -> None:
        self.up = True
        self.faults: deque[str] = deque()
        self.socket: Socket | None = None
        self.start()

    def start(self) -> None:
        config = NameServerConfig(kv_config_path=Path("no such directory/kv.json"))
        self.state = SharedState.load(config, ManualClock())

    def routes(self) -> dict[str, Queues]:
        return {name: self.state.routes.route(name).queues["b"] for name in self.topics()}

    def topics(self) -> list[str]:
        return self.state.routes.topics()

    def answer(self, command: Command) -> Command:
        reply = process(self.state, command, self.socket)
        assert isinstance(reply, Command)
        return reply


class Network:
    """The connections of a broker to its name servers, in place of a ``ConnectionPool``."""

    def __init__(self) -> None:
        self.servers = {address: NameServer() for address in ADDRESSES}

    def __call__(self, *, on_close: Any, **_: Any) -> Network:
        self._on_close = on_close
        return self

    def connected(self, address: str) -> Socket | None:
        return self.servers[address].socket

    async def close(self) -> None:
        """Stand in for closing the pool."""

    def cut(self, address: str, *, restart: bool = False) -> None:
        """Close the connection to a name server; it drops the broker."""
        server = self.servers[address]
        socket, server.socket = server.socket, None
        if restart:
            server.start()
        if socket is not None:
            socket.closed = True
            server.state.routes.connection_closed(socket)
            self._on_close(socket)

    async def request(self, address: str, command: Command, *, timeout: float) -> Command:
        server = self.servers[address]
        await asyncio.sleep(NETWORK_SECONDS)
        if not server.up:
            raise ConnectFailed(address, "refused")
        if server.socket is None:
            server.socket = Socket()
        socket = server.socket
        fault = server.faults.popleft() if server.faults else ""
        if fault == "hangs":
            await asyncio.sleep(timeout)
            raise AnswerTimeout(address, command.code, timeout)
        if fault == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        if fault == "drops":
            self.cut(address)
        if socket.closed:
            raise ConnectionLost(address, "closed")
        reply = command.reply(1, "no room") if fault == "refuses" else server.answer(command)
        if fault == "loses":
            await asyncio.sleep(timeout)
            raise AnswerTimeout(address, command.code, timeout)
        if fault == "restarts":
            # The answer arrives together with the end of the connection.
            self.cut(address, restart=True)
            return reply
        if fault == "drops answer":
            self.cut(address)
        await asyncio.sleep(NETWORK_SECONDS)
        if socket.closed:
            raise ConnectionLost(address, "closed")
        return reply


class Model:
    """A broker, its name servers, and clients that change topics."""

    def __init__(self) -> None:
        self.network = Network()
        self.topics = TopicTable(BrokerConfig(cluster_name="c", broker_name="b"))
        config = BrokerConfig(broker_name="b", register_broker_timeout_ms=6000)
        announcement = Announcement.of(config, 10911)
        self.registration = BrokerRegistration(
            ADDRESSES,
            Announcement(
                cluster="c",
                broker_name="b",
                broker_id=0,
                address=announcement.address,
                ha_address="",
                period=PERIOD_SECONDS,
                timeout=TIMEOUT_SECONDS,
            ),
            self._wrapper,
            jitter=lambda: 0.5,
            pool=self.network,
        )
        self.last: dict[str, asyncio.Task[None]] = {}
        """The last change of each topic: one client after the other changes it."""
        self.changes = 0

    def _wrapper(self, names: Any) -> TopicConfigSerializeWrapper:
        table = self.topics.table
        if names is not None:
            table = {name: table[name] for name in names if name in table}
        return TopicConfigSerializeWrapper(table, self.topics.data_version)

    def spawn(self, name: str, work: Any) -> None:
        before = self.last.get(name)

        async def run() -> None:
            if before is not None:
                await before
            await work

        self.last[name] = asyncio.ensure_future(run())

    async def put(self, name: str, late: int, *, paced: bool) -> None:
        """Create or change a topic; its registration is requested some iterations later."""
        self.changes += 1
        self.topics.put(TopicConfig(name, self.changes, self.changes, 6), 1)
        for _ in range(late):
            await asyncio.sleep(0)
        await self.registration.changed([name], paced=paced)

    async def delete(self, name: str) -> None:
        """Delete a topic as an administrator does: at the broker, then at the name servers."""
        self.topics.delete(name, 1)
        await self.registration.changed([name])
        for server in self.network.servers.values():
            server.state.routes.delete_topic(name)

    async def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("put", name, late, paced):
                self.spawn(name, self.put(name, late, paced=paced))
            case ("delete", name):
                self.spawn(name, self.delete(name))
            case ("fault", address, fault):
                self.network.servers[address].faults.append(fault)
            case ("down", address):
                self.network.servers[address].up = False
                self.network.cut(address, restart=True)
            case ("up", address):
                self.network.servers[address].up = True
            case ("wait", seconds):
                await asyncio.sleep(seconds)

    async def end(self) -> None:
        """Let the name servers work, and wait until everything has come to rest."""
        for server in self.network.servers.values():
            server.up = True
            server.faults.clear()
        await asyncio.sleep(END_SECONDS)

    def expected(self) -> dict[str, Queues]:
        return {
            name: Queues(topic.read_queue_nums, topic.write_queue_nums, topic.perm)
            for name, topic in self.topics.table.items()
        }


names = st.sampled_from(NAMES)
addresses = st.sampled_from(ADDRESSES)
steps = st.one_of(
    st.tuples(st.just("put"), names, st.integers(0, 2), st.booleans()),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("fault"), addresses, st.sampled_from(FAULTS)),
    st.tuples(st.sampled_from(("down", "up")), addresses),
    st.tuples(st.just("wait"), st.sampled_from((0.0, NETWORK_SECONDS, 0.05, 0.3, 2.0))),
)
AT_ONCE = [("put", "orders", 0, False), ("put", "bills", 1, False)]
"""The second topic is in the table when the first is registered, but not yet to be registered."""


@given(script=st.lists(steps, max_size=25))
@example(script=[("wait", 1.0), *AT_ONCE])
@example(script=[("fault", ADDRESSES[0], "restarts")])
def test_in_the_end_each_name_server_has_the_table_of_the_broker(script: list[Any]) -> None:
    async def run() -> None:
        model = Model()
        started = asyncio.ensure_future(model.registration.start())
        for step in script:
            await model.do(step)
        await model.end()
        await started
        for server in model.network.servers.values():
            assert server.routes() == model.expected()
        assert all(task.done() and task.exception() is None for task in model.last.values())
        await model.registration.stop()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run())
