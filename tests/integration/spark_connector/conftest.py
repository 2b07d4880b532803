"""A broker process, and helpers that fill it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from client.blocking import Admin, Producer
from pocketmq import testing
from pocketmq.testing import StandaloneServer
from spark_connector import connections
from tests.integration.spark_connector.filling import Filler


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneServer]:
    """A broker shared by the tests of a module, which don't stop it."""
    with testing.broker(store=tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture(scope="module")
def admin(server: StandaloneServer) -> Iterator[Admin]:
    with Admin(server.nameserver) as admin:
        yield admin


@pytest.fixture(scope="module")
def producer(server: StandaloneServer) -> Iterator[Producer]:
    with Producer(server.nameserver, group="tests") as producer:
        yield producer


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[StandaloneServer]:
    """A broker that a test may kill."""
    with testing.broker(store=tmp_path / "store") as server:
        yield server


@pytest.fixture
def filler(server: StandaloneServer) -> Iterator[Filler]:
    filler = Filler(server.broker)
    yield filler
    filler.close()


@pytest.fixture(autouse=True)
def _no_connections_left() -> Iterator[None]:
    yield
    connections.close_unused()
