"""Clients create, look up and delete topics while one of two name servers restarts.

In full size no route is missing for more than a second while its name server runs; in any size
each route is there long before the broker's next periodic registration.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import pytest

from pocketmq.testing import SMALL_STORE, ServerProcess
from remoting.errors import RemotingError
from remoting.pool import ConnectionPool
from remoting.protocol.bodies.heartbeat import ConsumerData
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import (
    CreateTopicRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetRouteInfoRequestHeader,
    TopicRequestHeader,
)
from remoting.protocol.names import retry_topic
from tests.harness.processes import options
from tests.support.ports import free_port, free_ports
from tests.support.sizes import size
from tests.unit.broker.harness import heartbeat, send_command

CLIENTS = size(test=6, ci=20, soak=20)
RESTARTS = size(test=2, ci=4, soak=10)
INTERVAL_SECONDS = size(test=0.5, ci=2.0, soak=60.0)
MISSING_SECONDS = size(ci=15.0, soak=1.0)
"""The longest time without a route; half a period of the registration proves that none helped."""

ROUND_SECONDS = 0.02
LOOK_SECONDS = 0.01
TIMEOUT = 30.0


class NameServer:
    """A name server process, and since when it runs."""

    def __init__(self, root: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        port = self.address.rpartition(":")[2]
        kv = {"kvConfigPath": root / port / "kvConfig.json"}
        self.process = ServerProcess(["nameserver", f"--port={port}", *options(kv)])
        self.runs_since: float | None = None

    def start(self) -> None:
        self.process.start()
        self.runs_since = time.monotonic()

    def restart(self) -> None:
        self.runs_since = None
        self.process.kill()
        self.start()


@pytest.fixture
def nameservers(tmp_path: Path) -> Iterator[list[NameServer]]:
    with ExitStack() as stack:
        servers = [NameServer(tmp_path) for _ in range(2)]
        for server in servers:
            stack.callback(server.process.kill)
            server.start()
        yield servers


@pytest.fixture
def broker(tmp_path: Path, nameservers: list[NameServer]) -> Iterator[str]:
    """The address of a broker that registers with both."""
    addresses = ";".join(server.address for server in nameservers)
    command = ["broker", f"--nameserver={addresses}", f"--port={free_ports(3)}"]
    process = ServerProcess([*command, f"--store={tmp_path / 'store'}", *options(SMALL_STORE)])
    process.start()
    yield process.addresses["broker"]
    process.kill()


class Client:
    """Creates one topic after the other and deletes it when each name server has its route."""

    def __init__(self, number: int, broker: str, nameservers: list[NameServer]) -> None:
        self._name = f"new-{number}"
        self._broker = broker
        self._nameservers = nameservers
        self.longest = 0.0
        """The longest time that a route was missing, in seconds."""
        self.rounds = 0

    async def run(self, stop: asyncio.Event) -> None:
        async with ConnectionPool() as self._pool:
            for number in count():
                topic = await self._create(number)
                created = time.monotonic()
                for server in self._nameservers:
                    await self._look_up(server, topic, created)
                await self._delete(topic)
                self.rounds += 1
                if stop.is_set():
                    return
                await asyncio.sleep(ROUND_SECONDS)

    async def _create(self, number: int) -> str:
        """Create a topic as an administrator, by a send, or by a consumer's heartbeat."""
        topic = f"{self._name}-{number}"
        if number % 3 == 0:
            header = CreateTopicRequestHeader(
                topic=topic,
                default_topic="TBW102",
                read_queue_nums=1,
                write_queue_nums=1,
                perm=6,
                topic_filter_type="SINGLE_TAG",
            )
            command = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        elif number % 3 == 1:
            command = send_command(topic)
        else:
            topic = retry_topic(self._name)
            consumers = [ConsumerData(group_name=self._name)]
            command = heartbeat(self._name, consumers=consumers)
        reply = await self._pool.request(self._broker, command, timeout=TIMEOUT)
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        return topic

    async def _look_up(self, server: NameServer, topic: str, created: float) -> None:
        header = GetRouteInfoRequestHeader(topic=topic)
        while (since := server.runs_since) is not None:
            command = Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
            asked = time.monotonic()
            try:
                reply = await self._pool.request(server.address, command, timeout=TIMEOUT)
            except RemotingError:
                # It is being restarted.
                await asyncio.sleep(LOOK_SECONDS)
                continue
            if reply.code == ResponseCode.SUCCESS:
                return
            if since == server.runs_since:
                missing = asked - max(created, since)
                self.longest = max(self.longest, missing)
                assert missing < MISSING_SECONDS, f"{topic} has no route at {server.address}"
            await asyncio.sleep(LOOK_SECONDS)

    async def _delete(self, topic: str) -> None:
        command = Command.request(
            RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic=topic)
        )
        reply = await self._pool.request(self._broker, command, timeout=TIMEOUT)
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        for server in self._nameservers:
            header = DeleteTopicFromNamesrvRequestHeader(topic=topic)
            command = Command.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
            # While it is restarted, which makes it forget all topics.
            with suppress(RemotingError):
                await self._pool.request(server.address, command, timeout=TIMEOUT)


@pytest.mark.timeout(120 + 2 * RESTARTS * INTERVAL_SECONDS)
async def test_new_topics_have_routes_at_each_name_server_while_one_restarts(
    nameservers: list[NameServer], broker: str, record_property: pytest.RecordProperty
) -> None:
    clients = [Client(number, broker, nameservers) for number in range(CLIENTS)]
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run(stop))
        for restart in range(RESTARTS):
            await asyncio.sleep(INTERVAL_SECONDS)
            await asyncio.to_thread(nameservers[restart % 2].restart)
        await asyncio.sleep(INTERVAL_SECONDS)
        stop.set()
    assert all(client.rounds for client in clients)
    longest = max(client.longest for client in clients)
    record_property("topics created", sum(client.rounds for client in clients))
    record_property("longest time without a route in ms", round(longest * 1000))
