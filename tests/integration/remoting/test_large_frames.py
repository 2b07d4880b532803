"""Large frames over real sockets, on either event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from remoting.limits import BEGIN_BYTES, LARGE_REST_BYTES
from remoting.pool import ConnectionPool
from remoting.protocol.command import Command
from remoting.protocol.frame import encode
from remoting.runtime.tasks import new_event_loop
from remoting.server import Server
from tests.integration.remoting.peers import ECHO, Services, raw
from tests.support.waiting import until

LARGE = BEGIN_BYTES + LARGE_REST_BYTES
SIZES = (10, LARGE - 1, 3 * LARGE, 0, LARGE + 1, 20 * LARGE, 5, 2 * LARGE, 2 * LARGE, 100)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_event_loop])
def test_frames_of_all_sizes_arrive_whole_over_connections_that_share_buffers(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scenario() -> None:
        async with Server(Services()) as server:
            pools = [ConnectionPool() for _ in range(3)]
            await asyncio.gather(*(echo_all(pool, server.address) for pool in pools))
            assert server.counters.bytes_in == sum(pool.counters.bytes_out for pool in pools)
            for pool in pools:
                await pool.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


async def echo_all(pool: ConnectionPool, address: str) -> None:
    sizes = random.sample(SIZES, len(SIZES)) + list(SIZES)
    bodies = [random.randbytes(size) for size in sizes]
    calls = [pool.request(address, Command.request(ECHO, body=body), timeout=60) for body in bodies]
    answers = await asyncio.gather(*calls)
    assert [bytes(answer.body) for answer in answers] == bodies


async def test_a_peer_that_disconnects_within_a_large_frame_leaves_nothing_behind() -> None:
    frame = encode(Command.request(ECHO, body=bytes(2 * LARGE)))
    async with Server(Services()) as server:
        async with raw(server.address) as (_, writer):
            writer.write(frame[:LARGE])
            await until(lambda: server.counters.bytes_held >= LARGE)
        await until(lambda: not server.connections)
        assert server.counters.bytes_held == 0
