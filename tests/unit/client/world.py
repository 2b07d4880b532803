"""A simulated cluster on a loop with virtual time: real processors, real client objects.

Connections between them deliver commands after ``LATENCY``. A test injects failures: brokers can be
down, silent or busy, clients can crash or be cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from client.errors import NoNameServer, remote_error
from client.network.heartbeat import GROUP_REQUESTS, Heartbeats, Members, group_of
from client.network.remote import Remote
from client.network.routes import FaultTable, Route, RouteTable
from remoting.errors import AnswerTimeout, ConnectFailed, ConnectionLost
from remoting.protocol.codes import ResponseCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.queue import MessageQueue
from remoting.runtime.tasks import Supervisor
from tests.unit.broker.harness import Bench
from tests.unit.client.simulated_consumer import SimulatedConsumer

LATENCY = 0.001
"""Latency in one direction, in seconds."""

CONNECT_PAUSE = 0.2
"""Seconds until a connection is refused."""


class LoopClock:
    """The loop's clock, also as wall-clock time."""

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(asyncio.get_running_loop().time() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class SimulatedBroker:
    """One broker: its processors and injected failures."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self._root = root
        self._boots = 0
        self.address = f"{name}:10911"
        self.up = True
        self.notifies = True
        self.answers: dict[int, int] = {}
        """Response codes to give instead of doing what is asked, by request code."""
        self.silent: set[int] = set()
        """Request codes that are never answered."""
        self.slow: dict[int, float] = {}
        """Seconds that requests wait for a thread of the broker, by code; others overtake them."""
        self.seen: list[tuple[float, int, str]] = []
        """When which request came from which client."""
        self.links: list[Link] = []
        self.topics: dict[str, int] = {}
        self.boot()

    def boot(self) -> None:
        """Start with an empty memory; topics, committed offsets and locks are on disk."""
        before = getattr(self, "bench", None)
        self._boots += 1
        self.bench = Bench(self._root / f"{self.name}-{self._boots}", broker_name=self.name)
        self._synced = self.bench.clock.monotonic() - asyncio.get_running_loop().time()
        for topic, queues in self.topics.items():
            self.bench.topic(topic, queues)
        if before is not None:
            self.bench.state.offsets.table.update(before.state.offsets.table)
            self.bench.state.locks.restore(
                before.state.locks.saved(at_stop=True), self.bench.state.monotonic_ms
            )
            before.close()

    def topic(self, name: str, queues: int) -> None:
        self.topics[name] = queues
        self.bench.topic(name, queues)

    def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        self.bench.state.offsets.commit(group, queue.topic, queue.queue_id, offset)

    def committed(self, group: str, queue: MessageQueue) -> int:
        return self.bench.state.offsets.query(group, queue.topic, queue.queue_id)

    def lock_owner(self, group: str, queue: MessageQueue) -> str | None:
        return self.bench.state.locks.owner(group, queue, self.monotonic_ms())

    def monotonic_ms(self) -> int:
        self.now_ms()  # advances the clock
        return self.bench.state.monotonic_ms

    def now_ms(self) -> int:
        clock = self.bench.clock
        clock.advance(
            max(0.0, asyncio.get_running_loop().time() + self._synced - clock.monotonic())
        )
        return clock.now_ms()

    def crash(self) -> None:
        self.up = False
        for link in list(self.links):
            link.close()

    def restart(self) -> None:
        self.crash()
        self.boot()
        self.up = True

    def scan(self) -> None:
        """End memberships that have expired."""
        self.now_ms()
        self.bench.processors.clients.scan()

    def count(self, code: int, since: float = 0.0) -> int:
        return sum(seen == code and when >= since for when, seen, _ in self.seen)


class Link:
    """A client's connection to a broker, both ends in one."""

    def __init__(self, client: SimulatedClient, broker: SimulatedBroker) -> None:
        self.client = client
        self.broker = broker
        self.context: Any = None
        self.closed = False
        self.remote = (client.client_id.partition("@")[0], 5000)
        self.remote_text = f"{self.remote[0]}:5000"
        self._opaque = 0
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        broker.links.append(self)

    async def request(self, command: Command, *, timeout: float) -> Command:
        try:
            async with asyncio.timeout(timeout):
                return await self._request(command)
        except TimeoutError:
            raise AnswerTimeout(self.broker.address, command.code, timeout) from None

    def request_nowait(self, command: Command, *, timeout: float) -> asyncio.Future[Command]:
        # A task's first step comes later, but a connection sends in the order of the calls.
        return asyncio.ensure_future(self.request(command, timeout=timeout))

    async def _request(self, command: Command) -> Command:
        await asyncio.sleep(LATENCY)
        broker = self.broker
        if self.closed or not broker.up:
            raise ConnectionLost(broker.address, "gone")
        broker.seen.append((asyncio.get_running_loop().time(), command.code, self.client.client_id))
        if command.code in broker.silent or self.client.cut_off:
            await asyncio.Event().wait()
        await asyncio.sleep(broker.slow.get(command.code, 0.0))
        broker.now_ms()
        if command.code in broker.answers:
            answer: Command | None = command.reply(broker.answers[command.code], "as told")
        else:
            answer = await self._served(command)
        assert answer is not None
        await asyncio.sleep(LATENCY)
        if self.closed:
            raise ConnectionLost(broker.address, "gone")
        return answer

    async def _served(self, command: Command) -> Command:
        """Return the broker's answer, immediate or sent later."""
        self._opaque += 1
        command.opaque = self._opaque
        later = self._waiting[self._opaque] = asyncio.get_running_loop().create_future()
        try:
            return self.broker.bench.answer(command, self) or await later
        finally:
            del self._waiting[command.opaque]

    def send(self, command: Command) -> None:
        """Send an answer that is not the result of a handler."""
        waiting = self._waiting.get(command.opaque)
        if waiting is not None and not waiting.done():
            waiting.set_result(command)

    def send_with_body(self, command: Command, body: Sequence[memoryview]) -> None:
        command.body = b"".join(body)
        self.send(command)

    def send_oneway(self, command: Command) -> None:
        """Send a request from the broker to the client."""
        if self.broker.notifies and not self.client.cut_off:
            asyncio.get_running_loop().call_later(LATENCY, self._told, command)

    def _told(self, command: Command) -> None:
        if not self.closed:
            self.client.receive(command)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.broker.links.remove(self)
            self.broker.bench.processors.clients.closed(self)

    def abort(self, _: str) -> None:
        self.close()


class _Pool:
    """A client's connections."""

    def __init__(self, client: SimulatedClient) -> None:
        self._client = client
        self.links: dict[str, Link] = {}

    def connected(self, address: str) -> Link | None:
        link = self.links.get(address)
        return None if link is None or link.closed else link

    async def get(self, address: str) -> Link:
        link = self.connected(address)
        if link is None:
            broker = self._client.world.at(address)
            if broker is None or not broker.up or self._client.cut_off:
                await asyncio.sleep(CONNECT_PAUSE)
                raise ConnectFailed(address, "refused")
            link = self.links[address] = Link(self._client, broker)
        return link

    async def request(self, address: str, command: Command, *, timeout: float) -> Command:
        return await (await self.get(address)).request(command, timeout=timeout)


class _Routes:
    """The routes of a name server that is always up to date."""

    def __init__(self, client: SimulatedClient) -> None:
        self._client = client
        self.table = RouteTable()

    async def to_read(self, topic: str) -> Route:
        route = self._client.world.route(topic)
        if self._client.world.name_server_down:
            raise NoNameServer("no name server can be reached", topic=topic)
        if route is None:
            raise remote_error(ResponseCode.TOPIC_NOT_EXIST, "unknown", "the route", topic=topic)
        self.table.put(route, 0.0)
        return route

    def invalidate(self, topic: str) -> None:
        """Do nothing: there is no cache."""


class SimulatedClient:
    """The parts of an instance that a member needs."""

    def __init__(self, world: World, client_id: str) -> None:
        self.world = world
        self.client_id = client_id
        self.cut_off = False
        self.tasks = Supervisor(client_id)
        self.clock = LoopClock()
        self.members = Members()
        self.pool = _Pool(self)
        self.remote = Remote(self.pool, SerializeType.JSON, 5.0)  # type: ignore[arg-type] # ours
        self.routes = _Routes(self)
        self.heartbeats = Heartbeats(
            client_id, self.members, self.remote, self.routes.table, FaultTable(), self.tasks, 30.0
        )
        self.tasks.spawn(self.heartbeats.run(), "heartbeats")

    def heartbeat_soon(self) -> None:
        self.heartbeats.soon()

    async def leave(self, member: Any) -> None:
        self.members.leave(member)
        await self.heartbeats.unregister(consumer_group=member.group)

    def receive(self, command: Command) -> None:
        member = self.members.membership(group_of(command) or "")
        if command.code in GROUP_REQUESTS and member is not None:
            member.asked(command)

    def route_changed(self, topic: str) -> None:
        for member in self.members.memberships:
            member.route_changed(topic)

    async def crash(self, *, quietly: bool = False) -> None:
        """End the process; ``quietly``: brokers don't see the connections end."""
        await self.tasks.close()
        self.cut_off = True
        if not quietly:
            for link in self.pool.links.values():
                link.close()


class World:
    """Brokers and clients."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.brokers: dict[str, SimulatedBroker] = {}
        self.clients: dict[str, SimulatedClient] = {}
        self.consumers: dict[str, SimulatedConsumer] = {}
        self.name_server_down = False

    async def __aenter__(self) -> World:
        return self

    async def __aexit__(self, *_: object) -> None:
        for consumer in self.consumers.values():
            if consumer.member is not None:
                await consumer.tasks.close()
        for client in self.clients.values():
            await client.tasks.close()
        for broker in self.brokers.values():
            broker.bench.close()

    def broker(self, name: str = "broker-a", **topics: int) -> SimulatedBroker:
        broker = self.brokers[name] = SimulatedBroker(self._root, name)
        for topic, queues in topics.items():
            broker.topic(topic, queues)
        return broker

    def at(self, address: str) -> SimulatedBroker | None:
        return next((one for one in self.brokers.values() if one.address == address), None)

    def move(self, name: str, address: str) -> None:
        """Restart a broker at another address."""
        self.brokers[name].address = address
        for client in self.clients.values():
            for topic in self.brokers[name].topics:
                client.route_changed(topic)

    def route(self, topic: str) -> Route | None:
        serving = [
            (broker, config)
            for broker in self.brokers.values()
            if (config := broker.bench.state.topics.get(topic)) is not None
        ]
        if not serving:
            return None
        queues = sorted(
            MessageQueue(topic, broker.name, number)
            for broker, config in serving
            for number in range(config.read_queue_nums)
        )
        return Route(
            topic,
            tuple(queues),
            tuple(queues),
            {broker.name: {0: broker.address} for broker, _ in serving},
        )

    def client(self, name: str) -> SimulatedClient:
        client = self.clients[name] = SimulatedClient(self, name)
        return client

    def consumer(self, name: str, **options: Any) -> SimulatedConsumer:
        consumer = self.consumers[name] = SimulatedConsumer(self.client(name), **options)
        return consumer

    def owners(self, topic: str) -> dict[str, list[int]]:
        """Return which member reads which queue numbers of a topic."""
        return {
            name: sorted(queue.queue_id for queue in one.reading if queue.topic == topic)
            for name, one in self.consumers.items()
            if one.member is not None
        }
