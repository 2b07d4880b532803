"""Broker and client fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from broker.app import Broker
from broker.config import BrokerConfig
from broker.store.os_files import Files
from remoting.runtime.clock import Clock
from tests.integration.broker.client import Client

MakeBroker = Callable[..., Broker]


@pytest.fixture
async def make_broker(tmp_path: Path) -> AsyncIterator[MakeBroker]:
    """Creates brokers that are stopped at the end, by default on one store."""
    brokers: list[Broker] = []

    def make(*, clock: Clock | None = None, files: Files | None = None, **settings: Any) -> Broker:
        config = BrokerConfig(
            **{
                "broker_name": "broker-a",
                "listen_port": 0,
                "store_path_root_dir": tmp_path / "store",
                "mapped_file_size_commit_log": 1 << 20,
                "mapped_file_size_consume_queue": 20_000,
                **settings,
            }
        )
        brokers.append(Broker(config, clock=clock, files=files))
        return brokers[-1]

    yield make
    for broker in brokers:
        await broker.stop()


@pytest.fixture
async def broker(make_broker: MakeBroker) -> Broker:
    """A running broker."""
    made = make_broker()
    await made.start()
    return made


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[Broker], Any]]:
    """Connects clients."""
    clients: list[Client] = []

    async def make(broker: Broker) -> Client:
        client = Client()
        clients.append(client)
        client.connection = await client.pool.get(f"127.0.0.1:{broker.port}")
        return client

    yield make
    for client in clients:
        await client.pool.close()
