"""Sends before there is a connection to the broker."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import pytest

import client
from client.network.context import ClientContext
from remoting.connection import Connection
from remoting.errors import ConnectFailed
from tests.integration.client.contexts import FaultyConnection, producing
from tests.support.waiting import until


class Gate(ClientContext):
    """A context that delays every connection to a broker.

    Attributes:
        opened: there is a connection.
        passed: who waits gets it.
        failure: or this instead.
        faulty: bodies that can't be written then.
        ended: nobody is held any longer.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address, {})
        self.opened = asyncio.Event()
        self.passed = asyncio.Event()
        self.ended = asyncio.Event()
        self.failure: Exception | None = None
        self.faulty: tuple[bytes, ...] = ()

    async def connect(self, address: str, timeout: float) -> Connection:
        connection = await super().connect(address, timeout)
        self.opened.set()
        await self.passed.wait()
        self.ended.set()
        if self.failure is not None:
            raise self.failure
        return cast(Connection, FaultyConnection(connection, *self.faulty))


async def test_no_send_overtakes_those_that_wait_for_the_connection(fakes: Any) -> None:
    [fake] = await fakes(queues=1)
    gate = Gate(fake.address)
    async with producing(gate, max_batch_messages=10) as producer:
        sends = [producer.send_nowait("T", b"%d" % number) for number in range(25)]
        await gate.opened.wait()
        sends += [producer.send_nowait("T", b"%d" % number) for number in range(25, 50)]
        sends += [producer.send_nowait("T", b"50", timeout=60)]
        await asyncio.sleep(0)
        gate.passed.set()
        offsets = [(await send).offset for send in sends]
    assert offsets == list(range(51))
    assert fake.bodies() == [b"%d" % number for number in range(51)]


async def test_each_waits_for_the_connection_until_its_own_deadline(fake: Any) -> None:
    gate = Gate(fake.address)
    async with producing(gate, timeout=60.0) as producer:
        patient = producer.send_nowait("T", b"patient")
        await gate.opened.wait()
        with pytest.raises(client.SendError, match="no connection within") as caught:
            await producer.send("T", b"hasty", timeout=0.05)
        assert caught.value.outcome is client.Outcome.NOT_SENT
        gate.passed.set()
        await patient
    assert fake.bodies() == [b"patient"]


async def test_a_failed_connect_is_retried(fake: Any) -> None:
    gate = Gate(fake.address)
    async with producing(gate, timeout=60.0) as producer:
        sends = [producer.send_nowait("T", b"%d" % number) for number in range(3)]
        await gate.opened.wait()
        gate.failure = ConnectFailed(fake.address, "of a test")
        gate.passed.set()
        await asyncio.sleep(0)
        gate.failure = None
        await asyncio.gather(*sends)
    assert sorted(fake.bodies()) == [b"0", b"1", b"2"]


async def test_without_retries_a_failed_connect_fails_the_send(fake: Any) -> None:
    gate = Gate(fake.address)
    async with producing(gate, timeout=60.0, retries=0) as producer:
        send = producer.send_nowait("T", b"x")
        await gate.opened.wait()
        gate.failure = ConnectFailed(fake.address, "of a test")
        gate.passed.set()
        with pytest.raises(client.SendError, match="of a test") as caught:
            await send
    assert caught.value.outcome is client.Outcome.NOT_SENT
    assert fake.bodies() == []


async def test_a_failed_connect_that_nobody_awaits_is_not_reported(fake: Any) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, details: complaints.append(details))
    gate = Gate(fake.address)
    async with producing(gate, timeout=60.0) as producer:
        send = producer.send_nowait("T", b"x", timeout=0.05)
        await gate.opened.wait()
        with pytest.raises(client.SendError):
            await send
        gate.failure = ConnectFailed(fake.address, "of a test")
        gate.passed.set()
        await gate.ended.wait()
        await asyncio.sleep(0.01)
        gc.collect()
    assert complaints == []


async def test_a_broker_that_closes_at_once_is_retried(fake: Any) -> None:
    gate = Gate(fake.address)
    async with producing(gate, timeout=60.0) as producer:
        send = producer.send_nowait("T", b"x")
        await gate.opened.wait()
        for connection in list(fake.server.connections):
            connection.abort("of a test")
        await until(lambda: gate.connected(fake.address) is None)
        gate.passed.set()
        await send
    assert fake.bodies() == [b"x"]


async def test_a_fault_while_writing_fails_its_message_alone(fake: Any) -> None:
    gate = Gate(fake.address)
    async with producing(gate, timeout=60.0, max_batch_messages=1) as producer:
        sends = [producer.send_nowait("T", b"%d" % number) for number in range(2)]
        await gate.opened.wait()
        gate.faulty = (b"0",)
        gate.passed.set()
        with pytest.raises(client.SendError, match="of a test"):
            await sends[0]
        await sends[1]
    assert fake.bodies() == [b"1"]


async def test_closing_fails_sends_that_wait_for_a_connection(fake: Any) -> None:
    gate = Gate(fake.address)
    async with producing(gate, timeout=60.0) as producer:
        send = producer.send_nowait("T", b"x")
        await gate.opened.wait()
        await producer.close(timeout=0.05)
        with pytest.raises(client.SendError) as caught:
            await send
        assert caught.value.outcome is client.Outcome.NOT_SENT
