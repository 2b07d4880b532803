"""Sending while there is no connection to the broker yet."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

import client
from client.heartbeat import Heartbeats
from remoting.connection import Connection
from remoting.errors import ConnectFailed


class Gate:
    """Stands between an open connection and those who wait for it.

    Attributes:
        opened: there is a connection.
        passed: who waits gets it.
    """

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.passed = asyncio.Event()
        self.failure: Exception | None = None


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Holds every connection to a broker back."""
    gate = Gate()
    connect: Callable[..., Any] = Heartbeats.connect

    async def held(self: Heartbeats, address: str, timeout: float) -> Connection:
        connection = await connect(self, address, timeout)
        assert isinstance(connection, Connection)
        gate.opened.set()
        await gate.passed.wait()
        if gate.failure is not None:
            raise gate.failure
        return connection

    monkeypatch.setattr(Heartbeats, "connect", held)
    return gate


async def test_nothing_overtakes_what_waits_for_the_connection(fakes: Any, gate: Gate) -> None:
    [fake] = await fakes(queues=1)
    async with client.Producer(fake.address, max_batch_messages=10) as producer:
        sends = [producer.send_nowait("T", b"%d" % number) for number in range(25)]
        await gate.opened.wait()
        sends += [producer.send_nowait("T", b"%d" % number) for number in range(25, 50)]
        sends += [producer.send_nowait("T", b"50", timeout=60)]
        await asyncio.sleep(0)
        gate.passed.set()
        offsets = [(await send).offset for send in sends]
    assert offsets == list(range(51))
    assert fake.bodies() == [b"%d" % number for number in range(51)]


async def test_each_waits_for_the_connection_until_its_own_deadline(fake: Any, gate: Gate) -> None:
    async with client.Producer(fake.address, timeout=60.0) as producer:
        patient = producer.send_nowait("T", b"patient")
        await gate.opened.wait()
        with pytest.raises(client.SendError, match="no connection within") as caught:
            await producer.send("T", b"hasty", timeout=0.05)
        assert caught.value.outcome is client.Outcome.NOT_SENT
        gate.passed.set()
        await patient
    assert fake.bodies() == [b"patient"]


async def test_a_connection_that_was_not_made_is_tried_again(fake: Any, gate: Gate) -> None:
    async with client.Producer(fake.address, timeout=60.0) as producer:
        sends = [producer.send_nowait("T", b"%d" % number) for number in range(3)]
        await gate.opened.wait()
        gate.failure = ConnectFailed(fake.address, "of a test")
        gate.passed.set()
        await asyncio.sleep(0)
        gate.failure = None
        await asyncio.gather(*sends)
    assert sorted(fake.bodies()) == [b"0", b"1", b"2"]


async def test_without_retries_a_connection_that_was_not_made_is_the_end(
    fake: Any, gate: Gate
) -> None:
    async with client.Producer(fake.address, timeout=60.0, retries=0) as producer:
        send = producer.send_nowait("T", b"x")
        await gate.opened.wait()
        gate.failure = ConnectFailed(fake.address, "of a test")
        gate.passed.set()
        with pytest.raises(client.SendError, match="of a test") as caught:
            await send
    assert caught.value.outcome is client.Outcome.NOT_SENT
    assert fake.bodies() == []


async def test_a_connection_that_nobody_waits_for_any_longer_fails_in_silence(
    fake: Any, gate: Gate, until: Any
) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    async with client.Producer(fake.address, timeout=60.0) as producer:
        send = producer.send_nowait("T", b"x", timeout=0.05)
        await gate.opened.wait()
        with pytest.raises(client.SendError):
            await send
        gate.failure = ConnectFailed(fake.address, "of a test")
        gate.passed.set()
        await until(lambda: not producer._buffer.sender._unconnected)
        gc.collect()
    assert complaints == []


async def test_a_broker_that_hangs_up_at_once_is_tried_again(
    fake: Any, gate: Gate, until: Any
) -> None:
    async with client.Producer(fake.address, timeout=60.0) as producer:
        send = producer.send_nowait("T", b"x")
        await gate.opened.wait()
        for connection in list(fake.server.connections):
            connection.abort("of a test")
        await until(lambda: producer._context.connected(fake.address) is None)
        gate.passed.set()
        await send
    assert fake.bodies() == [b"x"]


async def test_a_fault_while_writing_fails_its_message_alone(
    fake: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client.Producer(fake.address, timeout=60.0, max_batch_messages=1) as producer:
        sends = [producer.send_nowait("T", b"%d" % number) for number in range(2)]
        await gate.opened.wait()
        sender = producer._buffer.sender
        command = sender.command

        def faulty(batch: Any, queue: Any) -> Any:
            if batch.payload().body == b"0":
                raise ZeroDivisionError("of a test")
            return command(batch, queue)

        monkeypatch.setattr(sender, "command", faulty)
        gate.passed.set()
        with pytest.raises(client.SendError, match="of a test"):
            await sends[0]
        await sends[1]
    assert fake.bodies() == [b"1"]


async def test_closing_gives_up_what_waits_for_a_connection(fake: Any, gate: Gate) -> None:
    producer = client.Producer(fake.address, timeout=60.0)
    await producer.start()
    send = producer.send_nowait("T", b"x")
    await gate.opened.wait()
    await producer.close(timeout=0.05)
    with pytest.raises(client.SendError) as caught:
        await send
    assert caught.value.outcome is client.Outcome.NOT_SENT
