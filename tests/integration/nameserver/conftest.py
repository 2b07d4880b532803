"""Name servers on loopback, and the requests of brokers and clients to them."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from broker.registration import Announcement, BrokerRegistration
from nameserver.app import NameServer
from nameserver.config import NameServerConfig
from remoting.pool import ConnectionPool
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.route import TopicRouteData
from remoting.protocol.bodies.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import GetRouteInfoRequestHeader

PATIENCE = 30.0
"""Seconds to wait for any event here."""


class Topics:
    """The part of a broker's topics that its registration uses."""

    def __init__(self, *names: str) -> None:
        self.table: dict[str, TopicConfig] = {}
        self.version = DataVersion(1, 0)
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        self.table[name] = TopicConfig(name, 4, 4, 6)
        self.version = self.version.next(1)

    def __call__(self, names: Sequence[str] | None) -> TopicConfigSerializeWrapper:
        table = self.table if names is None else {n: self.table[n] for n in names}
        return TopicConfigSerializeWrapper(dict(table), self.version)


class Client:
    """Asks name servers for routes."""

    def __init__(self) -> None:
        self.pool = ConnectionPool(name="client")

    async def ask(self, server: NameServer, command: Command) -> Command:
        return await self.pool.request(server.address, command, timeout=PATIENCE)

    async def route(self, server: NameServer, topic: str) -> TopicRouteData | None:
        header = GetRouteInfoRequestHeader(topic=topic)
        command = Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        reply = await self.ask(server, command)
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        assert reply.code == ResponseCode.SUCCESS
        return decode(TopicRouteData, reply.body)

    async def knows(self, server: NameServer, topic: str) -> bool:
        return await self.route(server, topic) is not None


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def new_server(tmp_path: Path, stack: AsyncExitStack) -> Callable[..., Awaitable[NameServer]]:
    """Starts name servers, and stops them at the end."""
    numbers = iter(range(100))

    async def start(**fields: Any) -> NameServer:
        path = tmp_path / str(next(numbers)) / "kvConfig.json"
        defaults: dict[str, Any] = {"listen_port": 0, "kv_config_path": path}
        config = NameServerConfig(**(defaults | fields))
        return await stack.enter_async_context(NameServer(config))

    return start


@pytest.fixture
async def client(stack: AsyncExitStack) -> Client:
    client = Client()
    stack.push_async_callback(client.pool.close)
    return client


@pytest.fixture
def new_registration(stack: AsyncExitStack) -> Callable[..., BrokerRegistration]:
    """Creates a broker's registrations, and stops them at the end."""

    def make(addresses: Sequence[str], topics: Topics, **fields: Any) -> BrokerRegistration:
        handlers = {k: fields.pop(k) for k in ("on_order_topics", "pool") if k in fields}
        announcement = Announcement(
            cluster="DefaultCluster",
            broker_name="broker-a",
            broker_id=0,
            address="127.0.0.1:10911",
            ha_address="127.0.0.1:10912",
            timeout=2.0,
        )
        announcement = dataclasses.replace(announcement, **fields)
        registration = BrokerRegistration(addresses, announcement, topics, **handlers)
        stack.push_async_callback(registration.stop)
        return registration

    return make
