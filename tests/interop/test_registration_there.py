"""Registrations: ours at Apache's name servers, and those of Apache's brokers at ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.config import BrokerConfig
from broker.registration import MAX_TOPICS_AT_ONCE, Announcement, BrokerRegistration
from broker.topics.table import TopicTable
from client import AccessDenied, blocking
from pocketmq import testing
from pocketmq.testing import SMALL_STORE, ServerProcess
from remoting.pool import ConnectionPool
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.stats import TopicList
from remoting.protocol.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from tests.harness.processes import options
from tests.interop.apache import (
    ANSWER_TIMEOUT,
    JavaClient,
    nameserver_command,
    second_broker,
    start,
)
from tests.support.ports import free_port, free_ports, wait_until_listening
from tests.support.sizes import size

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

THREADS = 6
ROUNDS = size(test=5, ci=20, soak=100)
WAIT_MS = size(ci=15_000, soak=1_000)
"""The longest time without a route; half a period of the registration proves that none helped."""

MANY = 2 * MAX_TOPICS_AT_ONCE + 500


@pytest.fixture(params=["4.9.7", "5.3.3"])
def nameserver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    port = free_port()
    command = nameserver_command(request.param, tmp_path, port)
    process = start(command, tmp_path, tmp_path / "log")
    try:
        wait_until_listening(port)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("there", [False, True], ids=["ours", "apache"])
def test_topics_that_javas_admin_creates_at_once_have_routes(tmp_path: Path, there: bool) -> None:
    java = JavaClient("5.3.3", "JSON", tmp_path)
    topics = {f"new-{thread}-{turn}" for thread in range(THREADS) for turn in range(ROUNDS)}
    with ExitStack() as stack:
        port = free_port()
        nameserver = f"127.0.0.1:{port}"
        if there:
            process = start(nameserver_command("5.3.3", tmp_path, port), tmp_path, tmp_path / "log")
            stack.callback(process.wait)
            stack.callback(process.kill)
            wait_until_listening(port)
        else:
            ours = ServerProcess(["nameserver", f"--port={port}"])
            stack.callback(ours.kill)
            ours.start()
        broker = ServerProcess(
            [
                *("broker", f"--nameserver={nameserver}", f"--port={free_ports(3)}"),
                *(f"--store={tmp_path / 'store'}", *options(SMALL_STORE)),
            ]
        )
        stack.callback(broker.kill)
        broker.start()
        counts = (str(THREADS), str(ROUNDS))
        waits = java.run(nameserver, broker.addresses["broker"], *counts, program="NewTopics")
    assert {topic for topic, _ in waits} == topics
    assert max(int(milliseconds) for _, milliseconds in waits) < WAIT_MS


async def known(pool: ConnectionPool, nameserver: str) -> set[str]:
    """Return the topics of the name server."""
    command = Command.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    reply = await pool.request(nameserver, command, timeout=ANSWER_TIMEOUT)
    return set(decode(TopicList, reply.body).topic_list)


async def test_topics_registered_singly_and_in_portions_are_all_listed(nameserver: str) -> None:
    topics = TopicTable(BrokerConfig(cluster_name="c", broker_name="b"))
    for n in range(MANY):
        topics.put(TopicConfig(f"topic-{n}"), 1)

    def wrapper(names) -> TopicConfigSerializeWrapper:
        table = topics.table if names is None else {name: topics.table[name] for name in names}
        return TopicConfigSerializeWrapper(table, topics.data_version)

    announcement = Announcement.of(BrokerConfig(broker_name="b"), 10911)
    registration = BrokerRegistration([nameserver], announcement, wrapper, patience=ANSWER_TIMEOUT)
    async with ConnectionPool() as pool:
        await registration.start()
        assert registration.states[0].registered
        assert set(topics.table) <= await known(pool, nameserver)
        for name in ("alone", "another"):
            topics.put(TopicConfig(name), 2)
            assert await asyncio.ensure_future(registration.changed([name], paced=True)) == [True]
        assert set(topics.table) <= await known(pool, nameserver)
        topics.put(TopicConfig("with-all"), 3)
        assert await asyncio.ensure_future(registration.changed()) == [True]
        assert set(topics.table) <= await known(pool, nameserver)
        await registration.stop()


def test_a_broker_of_apache_registers_unsigned_from_the_white_list(tmp_path: Path) -> None:
    accounts = {"operator": {"admin": True}}
    with (
        testing.broker(accounts=accounts) as server,
        blocking.Admin(server.nameserver, credentials=server.credentials["operator"]) as admin,
    ):
        with blocking.Admin(server.nameserver) as stranger, pytest.raises(AccessDenied):
            stranger.topics()
        admin.put_white_list(server.broker, ["127.0.0.1"])
        with second_broker("4.9.7", tmp_path, server.nameserver, "of-apache") as address:
            found = {broker.name: broker.address for broker in admin.brokers()}
    assert found == {"broker-a": server.broker, "of-apache": address}
