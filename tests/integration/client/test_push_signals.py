"""Signals and a running push consumer."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from client.limits import CLOSE_TIMEOUT
from tests.integration.client.pushing import collect, consumer, fill, lag


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """Restore SIGINT, which a shell ignores for background processes and their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


PROGRAM = """
import asyncio, sys
import client

running = asyncio.Event()

async def handle(message):
    await running.wait()
    print("got", flush=True)

async def main():
    async with client.PushConsumer(
        sys.argv[1], group="g", subscribe={"T": "*"}, handler=handle, start_from=client.FIRST
    ) as consumer:
        # Whoever reads that a message came may send the signal: run() listens for it by then.
        asyncio.get_running_loop().call_soon(running.set)
        await consumer.run()
    print("stopped", flush=True)

asyncio.run(main())
"""

BLOCKING_PROGRAM = """
import signal, sys, threading, time
from client import FIRST, blocking
from tests.support.waiting import until

running = threading.Event()

def handle(message):
    running.wait()
    print("got", flush=True)

def watch():
    # Whoever reads that a message came may send the signal: run() listens for it by then.
    while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        time.sleep(0.001)
    running.set()

threading.Thread(target=watch).start()
with blocking.PushConsumer(
    sys.argv[1], group="g", subscribe={"T": "*"}, handler=handle, start_from=FIRST
) as consumer:
    consumer.run()
print("stopped", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("program", [PROGRAM, BLOCKING_PROGRAM], ids=["asyncio", "blocking"])
async def test_a_signal_stops_run_cleanly(
    cluster: Any, producer: Any, number: signal.Signals, program: str
):
    await fill(producer, 1)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cluster.nameserver, stdout=pipe, stderr=pipe
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"got\n"
            process.send_signal(number)
            assert await process.stdout.readline() == b"stopped\n"
            assert await process.wait() == 0
            assert await process.stderr.read() == b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert await lag(cluster) == 0


@pytest.mark.parametrize("program", [PROGRAM, BLOCKING_PROGRAM], ids=["asyncio", "blocking"])
async def test_a_second_signal_ends_a_program_whose_handlers_block_at_once(
    cluster: Any, producer: Any, program: str
):
    await fill(producer, 1)
    blocking = program.replace("async def handle", "def handle").replace("await running", "running")
    blocking = blocking.replace("asyncio.Event()", "threading.Event()")
    blocking = blocking.replace(
        'print("got", flush=True)', 'print("got", flush=True); time.sleep(1000)'
    )
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"import threading, time\n{blocking}", cluster.nameserver),
        stdout=pipe,
        stderr=pipe,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"got\n"
            process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.5)  # nothing says that the first was taken
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(CLOSE_TIMEOUT - 2):
                await process.wait()
            assert b"KeyboardInterrupt" in await process.stderr.read()
            assert await process.stdout.read() == b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_run_keeps_the_applications_signal_handlers(cluster: Any, number: signal.Signals):
    caught: list[int] = []
    before = signal.signal(number, lambda number, _: caught.append(number))
    own = signal.getsignal(number)
    try:
        async with consumer(cluster, collect([])) as made:
            running = asyncio.create_task(made.run())
            await asyncio.sleep(0)
            assert signal.getsignal(number) is own
            signal.raise_signal(number)
            assert caught == [number]
            assert not running.done()
            await made.stop()
            await running
        assert signal.getsignal(number) is own
    finally:
        signal.signal(number, before)


async def test_run_restores_signal_handlers_and_stops_all_consumers(cluster: Any):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    async with (
        consumer(cluster, collect([]), group="a") as one,
        consumer(cluster, collect([]), group="b") as two,
    ):
        running = asyncio.gather(one.run(), two.run())
        await asyncio.sleep(0)
        signal.raise_signal(signal.SIGINT)
        async with asyncio.timeout(10):
            await running
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
