"""A cluster in this process, and a scripted peer that can misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import client
from remoting.connection import Connection
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import GetRouteInfoRequestHeader
from remoting.protocol.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from remoting.protocol.message.batch import iter_elements
from remoting.server import Server
from tests.harness.cluster import Cluster

Answer = Callable[[Command, Connection], Any]


@pytest.fixture
async def empty_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A name server without brokers."""
    async with Cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def cluster(empty_cluster: Cluster) -> Cluster:
    """A name server and one broker with the topic T of four queues."""
    await empty_cluster.start()
    async with client.Admin(empty_cluster.nameserver) as admin:
        await admin.create_topic("T", queues=4)
    return empty_cluster


@pytest.fixture
async def producer(cluster: Cluster) -> AsyncIterator[client.Producer[bytes]]:
    async with client.Producer(cluster.nameserver) as producer:
        yield producer


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[client.Admin]:
    async with client.Admin(cluster.nameserver) as admin:
        yield admin


def lose_offsets(root: Path) -> None:
    """Remove the committed offsets of the stopped brokers whose stores are in ``root``."""
    for file in root.rglob("consumerOffset.json*"):
        file.unlink()


class FakePeer:
    """Name server and broker in one, with scripted answers.

    Every topic has ``queues`` queues at every peer of ``brokers``. Sends are acknowledged and kept
    until ``on`` says otherwise.
    """

    def __init__(self, name: str = "fake", queues: int = 4) -> None:
        self.name = name
        self.queues = queues
        self.server = Server(self._handle, name=name)
        self.brokers: list[FakePeer] = [self]
        self.seen: list[Command] = []
        self.sent: list[tuple[int, list[bytes]]] = []
        self.answers: dict[int, Answer] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.SEND_MESSAGE_V2: self.store,
            RequestCode.SEND_BATCH_MESSAGE: self.store,
        }
        self.offsets: dict[int, int] = {}
        self.arrived = asyncio.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def on(self, *codes: int, answer: Answer) -> None:
        for code in codes:
            self.answers[code] = answer

    def on_send(self, answer: Answer) -> None:
        self.on(RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, answer=answer)

    def count(self, code: int) -> int:
        return sum(command.code == code for command in self.seen)

    def _handle(self, command: Command, connection: Connection) -> Any:
        if command.body:
            command.body = bytes(command.body)
        self.seen.append(command)
        self.arrived.set()
        answer = self.answers.get(command.code)
        return answer(command, connection) if answer is not None else command.reply()

    def _route(self, command: Command, _: Connection) -> Command:
        command.read(GetRouteInfoRequestHeader)
        route = TopicRouteData(
            queue_datas=[
                QueueData(
                    broker_name=peer.name,
                    read_queue_nums=peer.queues,
                    write_queue_nums=peer.queues,
                    perm=6,
                )
                for peer in self.brokers
            ],
            broker_datas=[
                BrokerData(cluster="c", broker_name=peer.name, broker_addrs={0: peer.address})
                for peer in self.brokers
            ],
        )
        return command.reply(body=encode(route, standard=True))

    def store(self, command: Command, _: Connection) -> Command:
        """Acknowledge a send."""
        header = command.read(SendMessageRequestHeaderV2)
        bodies = (
            [bytes(element.body) for element in iter_elements(command.body)]
            if header.batch
            else [bytes(command.body)]
        )
        self.sent.append((header.queue_id, bodies))
        offset = self.offsets.get(header.queue_id, 0)
        self.offsets[header.queue_id] = offset + len(bodies)
        return command.reply(
            header=SendMessageResponseHeader(
                msg_id=",".join(f"{offset + n:032X}" for n in range(len(bodies))),
                queue_id=header.queue_id,
                queue_offset=offset,
            )
        )

    def bodies(self, queue_id: int | None = None) -> list[bytes]:
        return [b for q, bodies in self.sent if queue_id in {None, q} for b in bodies]


def refusing(code: int, times: int, then: Answer) -> Answer:
    """Refuse a number of times, then do as ``then``."""
    left = [times]

    def answer(command: Command, connection: Connection) -> Any:
        if left[0] > 0:
            left[0] -= 1
            return command.reply(code, ResponseCode(code).name)
        return then(command, connection)

    return answer


@pytest.fixture
async def fakes() -> AsyncIterator[Callable[..., Any]]:
    """Starts scripted peers: ``peers = await fakes(2)``; the first is also the name server."""
    started: list[FakePeer] = []

    async def start(count: int = 1, queues: int = 4) -> list[FakePeer]:
        peers = [FakePeer(f"fake-{number}", queues) for number in range(count)]
        for peer in peers:
            await peer.server.start()
            started.append(peer)
        for peer in peers:
            peer.brokers = peers
        return peers

    try:
        yield start
    finally:
        for peer in started:
            await peer.server.stop(drain_timeout=0.1)


@pytest.fixture
async def fake(fakes: Callable[..., Any]) -> FakePeer:
    """One scripted peer, name server and broker in one."""
    [peer] = await fakes()
    assert isinstance(peer, FakePeer)
    return peer
