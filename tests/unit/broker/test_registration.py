"""What a broker registers, and how often, counted at a server in place of a name server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from broker.config import BrokerConfig
from broker.registration import MAX_TOPICS_AT_ONCE, Announcement, BrokerRegistration
from broker.topics.table import TopicTable
from nameserver.routes import Queues, RouteInfoTable
from nameserver.routes import Registration as Told
from remoting.connection import Connection
from remoting.protocol.bodies.registration import decode_registration
from remoting.protocol.bodies.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.server import Server

NEVER = 3600.0
PATIENCE = 30.0


class NameServer:
    """Records the topics of each registration; may refuse some of them, or be silent."""

    def __init__(self) -> None:
        self.registered: list[set[str]] = []
        self.versions: list[DataVersion] = []
        self.again = asyncio.Event()
        self.refusals = 0
        self.silent = False
        self.server = Server(self._serve)

    def _serve(self, command: Command, _: Connection) -> Command | None:
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
            if self.silent:
                return None
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
            patience=PATIENCE,
        )

    def _topics(self, wanted) -> TopicConfigSerializeWrapper:
        table = self.table.table
        if wanted is not None:
            table = {name: table[name] for name in wanted if name in table}
        return TopicConfigSerializeWrapper(dict(table), self.table.data_version)

    def make(self, name: str, *, paced: bool = True) -> asyncio.Future:
        self.table.put(TopicConfig(name), 1)
        return asyncio.ensure_future(self.registration.changed([name], paced=paced))


@pytest.fixture
async def making(names: NameServer) -> AsyncIterator[Callable]:
    made: list[Making] = []

    async def start(pace: float = NEVER) -> Making:
        making = Making(names, pace)
        made.append(making)
        await making.registration.start()
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
    await broker.make("by-an-administrator", paced=False)
    assert len(names.registered) == 2
    assert len(names.registered[1]) == 801
    assert all(future.done() for future in pending)


@pytest.mark.parametrize("everything", [True, False])
async def test_many_topics_are_registered_in_portions_that_name_servers_accept(
    names, making, everything
):
    broker = await making(pace=NEVER)
    made = {f"new-{n}" for n in range(3 * MAX_TOPICS_AT_ONCE + 1)}
    for name in made:
        broker.make(name)
    await broker.registration.changed(None if everything else [])
    portions = names.registered[1:]
    assert len(portions) == 4
    assert max(map(len, portions)) == MAX_TOPICS_AT_ONCE
    assert set().union(*portions) == (set(broker.table.table) if everything else made)
    versions = names.versions[1:]
    assert len(set(versions)) == 4
    assert (versions[-1] == broker.table.data_version) is everything
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
    assert set(routes.topics()) == set().union(*portions)


async def test_a_topic_deleted_before_its_registration_is_left_out(names, making):
    broker = await making(pace=NEVER)
    broker.make("new")
    broker.make("deleted")
    broker.table.delete("deleted", 2)
    await broker.registration.changed(["deleted"])
    assert names.registered[1:] == [{"new"}]


@pytest.mark.parametrize("paced", [True, False])
async def test_no_change_waits_longer_than_its_patience_for_a_silent_name_server(
    names, making, paced
):
    broker = await making(pace=0.0)
    broker.registration.patience = 0.01
    names.silent = True
    assert await broker.make("a", paced=paced) == [False]
    assert await broker.make("b", paced=paced) == [False]
    assert len(names.registered) == 2


async def test_a_new_topic_does_not_wait_for_a_name_server_that_failed(names, making):
    broker = await making(pace=NEVER)
    names.refusals = 10_000
    assert await broker.make("a", paced=False) == [False]
    assert await broker.make("b", paced=True) == []
    assert await broker.make("c", paced=False) == [False]


async def test_after_a_failure_everything_is_registered_again(names, making):
    broker = await making(pace=0.0)
    names.refusals = 1
    assert await broker.make("a") == [False]
    await broker.make("b", paced=False)
    assert names.registered[1] == {"a"}
    assert names.registered[2] == set(broker.table.table)


async def test_after_a_lost_connection_everything_is_registered_again(names, making):
    broker = await making(pace=NEVER)
    for connection in tuple(names.server.connections):
        connection.abort()
    await asyncio.wait_for(names.again.wait(), 10)
    assert names.registered[1] == set(broker.table.table)
