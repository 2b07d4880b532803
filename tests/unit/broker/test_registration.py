"""What a broker registers, and how often, counted at a server in place of a name server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from broker.config import BrokerConfig
from broker.registration import MAX_TOPICS_AT_ONCE, Announcement, BrokerRegistration
from broker.topics import TopicTable
from nameserver.routes import Queues, RouteInfoTable
from nameserver.routes import Registration as Told
from remoting.connection import Connection
from remoting.protocol.bodies.registration import decode_registration
from remoting.protocol.bodies.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.server import Server

NEVER = 3600.0


class NameServer:
    """Records the topics of each registration; refuses a number that the test sets."""

    def __init__(self) -> None:
        self.registered: list[set[str]] = []
        self.versions: list[DataVersion] = []
        self.again = asyncio.Event()
        self.refusals = 0
        self.server = Server(self._serve)

    def _serve(self, command: Command, _: Connection) -> Command:
        if command.code == RequestCode.REGISTER_BROKER:
            body = decode_registration(command.body)
            wrapper = body.topic_config_serialize_wrapper
            self.registered.append(set(wrapper.topic_config_table))
            self.versions.append(wrapper.data_version)
            if len(self.registered) > 1:
                self.again.set()
            if self.refusals:
                self.refusals -= 1
                return command.reply(1, "no room")
        return command.reply()


@pytest.fixture
async def names() -> AsyncIterator[NameServer]:
    found = NameServer()
    async with found.server:
        yield found


class Making:
    """A broker's topics and their registration."""

    def __init__(self, names: NameServer, pace: float) -> None:
        self.table = TopicTable(BrokerConfig(cluster_name="c", broker_name="b"))
        self.registration = BrokerRegistration(
            [names.server.address],
            Announcement.of(BrokerConfig(broker_name="b"), 10911),
            self._topics,
            pace=pace,
        )

    def _topics(self, wanted) -> TopicConfigSerializeWrapper:
        table = self.table.table
        if wanted is not None:
            table = {name: table[name] for name in wanted}
        return TopicConfigSerializeWrapper(dict(table), self.table.data_version)

    def make(self, name: str, *, oneway: bool = True) -> asyncio.Future:
        self.table.put(TopicConfig(name), 1)
        return asyncio.ensure_future(self.registration.changed([name], oneway=oneway))


@pytest.fixture
async def making(names: NameServer) -> AsyncIterator[Callable]:
    made: list[Making] = []

    async def start(pace: float = NEVER) -> Making:
        making = Making(names, pace)
        made.append(making)
        await making.registration.start(patience=10)
        return making

    yield start
    for one in made:
        await one.registration.stop()


async def test_each_new_topic_is_registered_once_and_alone(names, making):
    broker = await making(pace=0.0)
    everything = set(broker.table.table)
    made = [f"new-{n}" for n in range(50)]
    for name in made:
        await broker.make(name)
    assert names.registered == [everything, *({name} for name in made)]


async def test_topics_created_by_sends_are_registered_together_at_a_bounded_rate(names, making):
    broker = await making(pace=NEVER)
    pending = [broker.make(f"new-{n}") for n in range(500)]
    await asyncio.sleep(0)
    pending += [broker.make(f"more-{n}") for n in range(300)]
    await asyncio.wait(pending, timeout=0.05)
    assert len(names.registered) == 1
    await broker.make("by-an-administrator", oneway=False)
    assert len(names.registered) == 2
    assert len(names.registered[1]) == 801
    assert all(future.done() for future in pending)


async def test_all_topics_are_registered_in_portions_that_name_servers_accept(names, making):
    broker = await making(pace=NEVER)
    for n in range(3 * MAX_TOPICS_AT_ONCE):
        broker.make(f"new-{n}")
    await broker.make("the-last", oneway=False)
    portions = names.registered[1:]
    assert len(portions) == 4
    assert max(map(len, portions)) == MAX_TOPICS_AT_ONCE
    assert set().union(*portions) == set(broker.table.table)
    versions = names.versions[1:]
    assert len(set(versions)) == 4
    assert versions[-1] == broker.table.data_version
    routes = RouteInfoTable()
    for portion, version in zip(portions, versions, strict=True):
        topics = {name: Queues(4, 4, 6) for name in portion}
        routes.register(
            Told(
                cluster="c",
                broker_name="b",
                broker_id=0,
                address="a:1",
                version=version,
                topics=topics,
            ),
            1,
        )
    assert set(routes.topics()) == set(broker.table.table)


async def test_after_a_failure_everything_is_registered_again(names, making):
    broker = await making(pace=0.0)
    names.refusals = 1
    assert await broker.make("a") == [False]
    await broker.make("b", oneway=False)
    assert names.registered[1] == {"a"}
    assert names.registered[2] == set(broker.table.table)


async def test_after_a_lost_connection_everything_is_registered_again(names, making):
    broker = await making(pace=NEVER)
    for connection in tuple(names.server.connections):
        connection.abort()
    await asyncio.wait_for(names.again.wait(), 10)
    assert names.registered[1] == set(broker.table.table)
