"""Slow peers use bounded memory, and are dropped in time and counted.

Time limits of half a minute are tested with shorter ones, with a server in this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import client
from broker.app import Broker
from broker.config import BrokerConfig
from nameserver.app import NameServer
from nameserver.config import NameServerConfig
from pocketmq.server.process import private_megabytes
from remoting.counters import CloseReason
from remoting.limits import UNSENT_HIGH_WATER_BYTES
from remoting.protocol.command import Command
from remoting.protocol.frame import encode
from remoting.protocol.limits import MAX_FRAME_BYTES
from remoting.server import Server
from tests.integration.bad_input.conftest import MEMORY_MEGABYTES, running
from tests.integration.bad_input.meanwhile import Meanwhile
from tests.integration.bad_input.peer import Peer, Target
from tests.integration.remoting.peers import ended, raw
from tests.support.waiting import until
from tests.unit.broker.harness import pull_command, send_command

MIB = 1024 * 1024
PULL_BYTES = 4 * MIB

# --- server processes


@pytest.fixture
def big_topic(broker: Target) -> str:
    """Return a queue with more messages than one answer holds."""
    with broker.peer() as peer:
        for _ in range(3):
            assert peer.ask(send_command("big", bytes(2 * MIB))).code == 0
    return "big"


def greedy_pulls(topic: str, count: int) -> bytes:
    pull = pull_command(topic, max_msg_nums=1000, max_msg_bytes=PULL_BYTES)
    return encode(pull) * count


def test_peers_that_pull_much_and_read_nothing_cost_a_bounded_amount(
    broker: Target, big_topic: str, meanwhile: Meanwhile
) -> None:
    peers = [Peer(broker.address, receive_buffer_bytes=8192) for _ in range(10)]
    for peer in peers:
        peer.send(greedy_pulls(big_topic, 300))
    meanwhile.goes_on(100)
    assert private_megabytes(broker.process.pid) < MEMORY_MEGABYTES, "of 12 GB asked for"
    for peer in peers:
        peer.reset()


def test_memory_of_unfinished_large_frames_is_freed_when_their_peers_disconnect(
    target: Target, meanwhile: Meanwhile
) -> None:
    unfinished = encode(Command(29_999, body=bytes(MAX_FRAME_BYTES - 1000)))[:-1]
    peers = [target.peer() for _ in range(6)]
    for peer in peers:
        peer.send(unfinished)
    meanwhile.goes_on()
    for peer in peers:
        peer.reset()


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Target, Target]]:
    """Servers that close idle connections after a second."""
    with running(
        tmp_path_factory.mktemp("impatient"),
        nameserver_settings={"serverChannelMaxIdleTimeSeconds": 1},
        serverChannelMaxIdleTimeSeconds=1,
    ) as servers:
        yield servers.nameserver, servers.broker


def test_idle_connections_are_closed_and_counted(impatient: tuple[Target, Target]) -> None:
    for target in impatient:
        before = target.dropped("idle")
        silent, trickling = target.peer(), target.peer()
        with silent, trickling:
            trickling.send(b"\x00\x00")
            assert silent.last_words() == b""
            assert trickling.last_words() == b""
        assert target.dropped("idle") >= before + 2


# --- servers in this process, with short time limits


def server_of(owner: Any) -> Server:
    found = owner._server
    assert isinstance(found, Server)
    return found


def shorten(owner: Any, **limits: Any) -> Server:
    """Change the limits of a running server."""
    server = server_of(owner)
    server.endpoint.limits = replace(server.endpoint.limits, **limits)
    return server


class Here(NamedTuple):
    """Servers in this process, and a client in a separate thread."""

    nameserver: NameServer
    broker: Broker
    meanwhile: Meanwhile


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    """Run the servers; at the end, check that everything acknowledged meanwhile is read."""
    kv = tmp_path / "kvConfig.json"
    async with NameServer(NameServerConfig(listen_port=0, kv_config_path=kv)) as nameserver:
        config = BrokerConfig(
            broker_name="broker-a",
            listen_port=0,
            store_path_root_dir=tmp_path / "store",
            mapped_file_size_commit_log=64 * MIB,
            namesrv_addr=(nameserver.address,),
        )
        async with Broker(config) as broker:
            meanwhile = Meanwhile(nameserver.address)
            await asyncio.to_thread(meanwhile.start)
            yield Here(nameserver, broker, meanwhile)
            await asyncio.to_thread(meanwhile.goes_on)
            await asyncio.to_thread(meanwhile.stop)


@pytest.mark.parametrize("name", ["nameserver", "broker"])
async def test_a_frame_that_trickles_is_dropped(here: Here, name: str) -> None:
    server = shorten(getattr(here, name), frame_timeout=0.3)
    async with raw(server.address) as (reader, writer):
        dropped = asyncio.ensure_future(ended(reader))
        for byte in encode(Command(29_999, body=bytes(1000))):
            if dropped.done():
                break
            writer.write(bytes((byte,)))
            await asyncio.sleep(0.02)
        assert await dropped
    assert server.counters.dropped[CloseReason.SLOW_FRAME] == 1


async def test_a_peer_that_never_reads_is_dropped_and_uses_little_memory_until_then(
    here: Here,
) -> None:
    server = shorten(here.broker, unsent_timeout=0.3)
    await fill(here.nameserver.address)
    async with raw(server.address, receive_buffer_bytes=8192) as (_, writer):
        own_address = writer.get_extra_info("sockname")
        await until(lambda: own_address in {peer.remote for peer in server.connections})
        (greedy,) = (peer for peer in server.connections if peer.remote == own_address)
        writer.write(greedy_pulls("big", 500))
        most = 0
        while not greedy.closed:
            most = max(most, greedy.unsent_bytes)
            await asyncio.sleep(0.01)
    assert server.counters.dropped[CloseReason.SLOW_READER] == 1
    assert most <= 2 * UNSENT_HIGH_WATER_BYTES + 2 * PULL_BYTES, "of 2 GB asked for"


@pytest.mark.parametrize("name", ["nameserver", "broker"])
async def test_peers_that_use_too_much_memory_together_are_dropped(here: Here, name: str) -> None:
    server = shorten(getattr(here, name), max_total_held_bytes=4 * MIB)
    unfinished = encode(Command(29_999, body=bytes(3 * MIB)))[:-1]
    async with raw(server.address) as (_, first), raw(server.address) as (_, second):
        for writer in (first, second):
            writer.write(unfinished)
        await until(lambda: server.counters.dropped[CloseReason.HOARDING] >= 1)
    await until(lambda: server.counters.bytes_held < MIB)


async def fill(nameserver: str) -> None:
    """Fill a queue with more messages than one answer holds."""
    async with client.Admin(nameserver) as admin:
        await admin.create_topic("big", queues=1)
    async with client.Producer(nameserver, group="filler", compress=None) as producer:
        for _ in range(3):
            await producer.send("big", bytes(2 * MIB))
