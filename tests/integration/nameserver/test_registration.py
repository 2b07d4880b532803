"""A broker and its name servers over real sockets: registration, loss and reconnection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from broker.registration import MAX_TOPICS_AT_ONCE, BrokerRegistration
from nameserver.app import NameServer
from remoting.pool import ConnectionPool
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.stats import TopicList
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import PutKVConfigRequestHeader, TopicRequestHeader
from remoting.protocol.own_codes import OwnRequestCode
from remoting.server import Server
from tests.integration.nameserver.conftest import Topics
from tests.support.waiting import until

NewServer = Callable[..., Awaitable[NameServer]]
NewRegistration = Callable[..., BrokerRegistration]

NOWHERE = "127.0.0.1:1"
"""An address without a listener."""


def registered(registration: BrokerRegistration) -> list[bool]:
    return [state.registered for state in registration.states]


async def test_a_broker_is_registered_with_every_name_server_when_start_returns(
    new_server: NewServer, new_registration: NewRegistration, client: Any
) -> None:
    servers = [await new_server(), await new_server()]
    registration = new_registration([server.address for server in servers], Topics("t"))
    await registration.start()
    for server in servers:
        route = await client.route(server, "t")
        assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911"}
    assert registered(registration) == [True, True]
    assert all(state.last_success_ms for state in registration.states)


async def test_a_name_server_that_is_down_delays_no_registration(
    new_server: NewServer, new_registration: NewRegistration, client: Any
) -> None:
    server = await new_server()
    registration = new_registration([NOWHERE, server.address], Topics("t"))
    await registration.start()
    assert await client.knows(server, "t")
    down, up = registration.states
    assert (down.registered, up.registered) == (False, True)
    assert down.failures >= 1
    assert "can't connect" in (down.last_error or "")


async def test_without_name_servers_there_is_nothing_to_do(
    new_registration: NewRegistration,
) -> None:
    registration = new_registration([], Topics())
    await registration.start()
    await registration.changed(["t"])
    assert registration.states == ()


async def test_an_administrators_change_is_registered_when_it_returns(
    new_server: NewServer, new_registration: NewRegistration, client: Any
) -> None:
    server, table = await new_server(), Topics("t")
    registration = new_registration([server.address], table)
    await registration.start()
    table.add("u")
    await registration.changed(["u"])
    assert await client.knows(server, "u")
    assert await client.knows(server, "t")


async def test_a_topic_created_by_a_send_is_registered_in_the_background(
    new_server: NewServer,
    new_registration: NewRegistration,
    client: Any,
) -> None:
    server, table = await new_server(), Topics("t")
    registration = new_registration([server.address], table)
    await registration.start()
    table.add("u")
    registration.changed(paced=True)
    await until(lambda: client.knows(server, "u"))


async def test_many_changes_at_once_become_one_registration(
    new_server: NewServer, new_registration: NewRegistration, client: Any
) -> None:
    server, table = await new_server(), Topics("t")
    registration = new_registration([server.address], table)
    await registration.start()
    before = server.counters.frames_in
    names = [f"n{n}" for n in range(MAX_TOPICS_AT_ONCE // 2)]
    for name in names:
        table.add(name)
    await asyncio.gather(*(registration.changed([name]) for name in names))
    assert server.counters.frames_in == before + 1
    assert await client.knows(server, names[-1])


async def test_a_stopped_broker_is_unregistered_everywhere(
    new_server: NewServer, new_registration: NewRegistration, client: Any
) -> None:
    servers = [await new_server(), await new_server()]
    addresses = [servers[0].address, NOWHERE, servers[1].address]
    registration = new_registration(addresses, Topics("t"))
    await registration.start()
    await registration.stop()
    for server in servers:
        assert not server.state.routes.brokers()
        assert not await client.knows(server, "t")
    await registration.stop()


async def test_a_broker_whose_connection_ends_is_removed_at_once(
    new_server: NewServer,
    new_registration: NewRegistration,
) -> None:
    server = await new_server()
    registration = new_registration([server.address], Topics("t"))
    await registration.start()
    await registration.pool.close()
    await until(lambda: not server.state.routes.brokers())


async def test_a_restarted_name_server_gets_the_registration_again(
    new_server: NewServer,
    new_registration: NewRegistration,
    client: Any,
) -> None:
    first, second = await new_server(), await new_server()
    table = Topics("t")
    registration = new_registration([first.address, second.address], table)
    await registration.start()
    await first.stop()
    await until(lambda: registered(registration) == [False, True])
    assert registration.states[0].last_error
    table.add("u")
    await registration.changed(["u"])
    assert await client.knows(second, "u")
    again = await new_server(listen_port=first.port)
    await until(lambda: registered(registration) == [True, True])
    assert await client.knows(again, "t")
    assert await client.knows(again, "u")
    assert registration.states[0].failures == 0


async def test_an_unchanged_version_is_not_registered_again_when_not_forced(
    new_server: NewServer,
    new_registration: NewRegistration,
) -> None:
    server, table = await new_server(), Topics("t")
    registration = new_registration([server.address], table, force=False, period=0.05)
    await registration.start()
    start = server.counters.bytes_in
    frames = server.counters.frames_in
    await until(lambda: server.counters.frames_in >= frames + 3)
    asked = (server.counters.bytes_in - start) // (server.counters.frames_in - frames)
    body = encode(table(None))
    assert asked < len(body) + 400
    table.add("u")
    await until(lambda: server.state.routes.route("u") is not None)


async def test_each_periodic_registration_renews_the_timeout(
    new_server: NewServer,
    new_registration: NewRegistration,
) -> None:
    server = await new_server()
    registration = new_registration([server.address], Topics("t"), period=0.02)
    await registration.start()
    frames = server.counters.frames_in
    await until(lambda: server.counters.frames_in >= frames + 3)
    assert registered(registration) == [True]


async def test_a_compressed_registration_is_understood(
    new_server: NewServer, new_registration: NewRegistration, client: Any
) -> None:
    server = await new_server()
    registration = new_registration([server.address], Topics("t"), compressed=True)
    await registration.start()
    assert await client.knows(server, "t")


async def test_order_topics_reach_the_broker(
    new_server: NewServer, new_registration: NewRegistration, client: Any
) -> None:
    server = await new_server()
    header = PutKVConfigRequestHeader(namespace="ORDER_TOPIC_CONFIG", key="t", value="broker-a:4")
    await client.ask(server, Command.request(RequestCode.PUT_KV_CONFIG, header))
    notified: list[Any] = []
    registration = new_registration([server.address], Topics("t"), on_order_topics=notified.append)
    await registration.start()
    assert notified == [{"t": "broker-a:4"}]


async def test_an_answer_that_is_an_error_is_shown_and_tried_again(
    new_registration: NewRegistration,
) -> None:
    answers = iter([(ResponseCode.SYSTEM_ERROR, b""), (ResponseCode.SUCCESS, b"{broken")])

    def answer(command: Command, _: Any) -> Command:
        code, body = next(answers, (ResponseCode.SUCCESS, b""))
        return command.reply(code, "not today", body=body)

    async with Server(answer) as server:
        notified: list[Any] = []
        registration = new_registration(
            [server.address], Topics("t"), on_order_topics=notified.append
        )
        await registration.start()
        assert "not today" in (registration.states[0].last_error or "")
        await until(lambda: registered(registration) == [True])
        assert notified == []
        await registration.stop()


async def test_a_name_server_that_never_answers_times_out(
    new_registration: NewRegistration,
) -> None:
    async with Server(lambda _command, _connection: None) as server:
        registration = new_registration([server.address], Topics("t"), timeout=0.05)
        await registration.start()
        assert "did not answer" in (registration.states[0].last_error or "")
        await registration.stop()


async def test_a_name_server_without_the_version_query_gets_a_registration(
    new_registration: NewRegistration,
) -> None:
    asked: list[int] = []

    def answer(command: Command, _: Any) -> Command:
        if command.code != RequestCode.GET_BROKER_CLUSTER_INFO:  # looks for another of its name
            asked.append(command.code)
        refuses = command.code in {
            RequestCode.QUERY_DATA_VERSION,
            RequestCode.UNREGISTER_BROKER,
        }
        return command.reply(ResponseCode.SYSTEM_ERROR if refuses else ResponseCode.SUCCESS)

    async with Server(answer) as server:
        registration = new_registration([server.address], Topics("t"), force=False, period=0.01)
        await registration.start()
        register, question = RequestCode.REGISTER_BROKER, RequestCode.QUERY_DATA_VERSION
        await until(lambda: asked[:3] == [register, question, register])
        await registration.stop()
        assert asked[-1] == RequestCode.UNREGISTER_BROKER


async def test_a_subscribed_client_is_notified_of_changed_routes(
    new_server: NewServer,
    new_registration: NewRegistration,
) -> None:
    server = await new_server()
    notified: list[str] = []

    def hear(command: Command, _: Any) -> None:
        assert command.code == OwnRequestCode.ROUTE_CHANGED
        notified.append(command.read(TopicRequestHeader).topic)

    async with ConnectionPool(hear) as pool:
        connection = await pool.get(server.address)
        subscribe = Command.request(
            OwnRequestCode.SUBSCRIBE_ROUTE, body=encode(TopicList(["t"])), oneway=True
        )
        connection.send_oneway(subscribe)
        registration = new_registration([server.address], Topics("t", "u"))
        await registration.start()
        await until(lambda: notified == ["t"])
        await registration.stop()
        await until(lambda: notified == ["t", "t"])
    await until(lambda: not len(server.state.watches))
