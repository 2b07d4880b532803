"""A broker and a name server: topics created at the broker are in the route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nameserver.app import NameServer
from nameserver.config import NameServerConfig
from remoting.connection import Connection
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.heartbeat import ConsumerData
from remoting.protocol.bodies.route import TopicRouteData
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers import admin
from remoting.protocol.names import retry_topic
from remoting.server import Server
from tests.integration.broker.client import TIMEOUT, Client
from tests.support.sizes import size
from tests.unit.broker.harness import heartbeat

NEW_NAMES = size(test=3_000, ci=30_000, soak=30_000)
GROUPS = 500
"""Groups of one heartbeat, whose size is limited."""


@pytest.fixture
async def name_server(tmp_path: Path) -> AsyncIterator[NameServer]:
    """A separate name server."""
    config = NameServerConfig.from_sources(
        None, {}, {"listenPort": "0", "kvConfigPath": str(tmp_path / "kv.json")}
    )
    async with NameServer(config) as server:
        yield server


async def route(client: Client, topic: str) -> TopicRouteData | None:
    header = admin.GetRouteInfoRequestHeader(topic=topic)
    reply = await client.ask(Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header))
    return decode(TopicRouteData, reply.body) if reply.code == 0 else None


async def test_a_created_topic_is_in_the_route_when_the_creation_is_answered(
    name_server, make_broker, connect
):
    broker = make_broker(namesrv_addr=(name_server.address,))
    await broker.start()
    to_broker = await connect(broker)
    to_names = Client()
    to_names.connection = await to_names.pool.get(name_server.address)
    header = admin.CreateTopicRequestHeader(
        topic="Made",
        default_topic="TBW102",
        read_queue_nums=3,
        write_queue_nums=3,
        perm=6,
        topic_filter_type="SINGLE_TAG",
    )
    await to_broker.ask(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header))
    found = await route(to_names, "Made")
    assert found is not None
    assert found.broker_datas[0].broker_addrs == {0: broker.address}
    assert found.queue_datas[0].write_queue_nums == 3
    await broker.stop()
    assert await route(to_names, "Made") is None
    await to_names.pool.close()


@pytest.mark.parametrize("how", ["send", "heartbeat"])
async def test_what_a_request_creates_is_in_the_route_when_the_request_is_answered(
    name_server, make_broker, connect, how
):
    broker = make_broker(namesrv_addr=(name_server.address,))
    await broker.start()
    broker.registration.patience = TIMEOUT
    to_broker = await connect(broker)
    to_names = Client()
    to_names.connection = await to_names.pool.get(name_server.address)
    # Each but the first is created in the pause after the registration of another.
    for number in range(5):
        name = f"New{number}"
        if how == "send":
            reply = await to_broker.send(name)
        else:
            reply = await to_broker.ask(heartbeat(consumers=[ConsumerData(group_name=name)]))
        assert reply.code == 0
        topic = name if how == "send" else retry_topic(name)
        assert await route(to_names, topic) is not None
    await to_names.pool.close()


async def test_a_client_creates_a_topic_beside_30_000_names_of_another(
    name_server, make_broker, connect
):
    broker = make_broker(namesrv_addr=(name_server.address,))
    await broker.start()
    broker.registration.patience = TIMEOUT
    flooder, to_broker = await connect(broker), await connect(broker)
    to_names = Client()
    to_names.connection = await to_names.pool.get(name_server.address)
    batches = [
        [ConsumerData(group_name=f"g{batch}-{n}") for n in range(GROUPS)]
        for batch in range(NEW_NAMES // GROUPS)
    ]
    flood = asyncio.gather(*(flooder.ask(heartbeat(consumers=batch)) for batch in batches))
    await to_broker.ask(heartbeat(producers=["p"]))
    assert (await to_broker.send("Mine")).code == 0
    await flood
    assert await route(to_names, "Mine") is not None
    await to_names.pool.close()


@pytest.mark.parametrize("how", ["silent", "refuses"])
async def test_a_new_topic_is_answered_though_a_name_server_does_not_register_it(
    make_broker, connect, how
):
    def serve(command: Command, _: Connection) -> Command | None:
        return None if how == "silent" else command.reply(1, "no room")

    async with Server(serve) as server:
        broker = make_broker(namesrv_addr=(server.address,))
        await broker.start()
        to_broker = await connect(broker)
        assert (await to_broker.send("New")).code == 0
        assert (await to_broker.ask(heartbeat(consumers=[ConsumerData(group_name="g")]))).code == 0


async def test_a_broker_serves_while_its_name_server_is_down(make_broker, connect):
    broker = make_broker(namesrv_addr=("127.0.0.1:1",))
    await broker.start()
    assert (await (await connect(broker)).send("New")).code == 0


async def test_name_servers_say_which_topics_are_in_order(name_server, make_broker, connect):
    to_names = Client()
    to_names.connection = await to_names.pool.get(name_server.address)
    header = admin.PutKVConfigRequestHeader(
        namespace="ORDER_TOPIC_CONFIG", key="DefaultCluster_REPLY_TOPIC", value="broker-a:1"
    )
    await to_names.ask(Command.request(RequestCode.PUT_KV_CONFIG, header))
    broker = make_broker(namesrv_addr=(name_server.address,))
    await broker.start()
    assert broker.state.topics.get("DefaultCluster_REPLY_TOPIC").order
    assert broker.registration is not None
    assert [state.registered for state in broker.registration.states] == [True]
    await to_names.pool.close()
