"""The examples as modules, topics with flights, and the contents of topics."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable

import pytest

from client import ReceivedMessage
from examples.spark import send_flights as departures
from pocketmq.testing import StandaloneServer
from tests.integration.spark_connector.writing import received as written
from tests.spark.pipelines.shared import Received


@pytest.fixture(scope="session")
def all_flights() -> list[departures.Record]:
    """The first 20,000 flights: three weeks of January."""
    return list(departures.records(20_000))


@pytest.fixture
def send(server: StandaloneServer) -> Callable[[str, Iterable[departures.Record]], int]:
    """Sends flights to a topic, and creates it if it doesn't exist."""

    def run(topic: str, flights: Iterable[departures.Record]) -> int:
        return asyncio.run(departures.send(server.nameserver, topic, flights))

    return run


@pytest.fixture(scope="session")
def new_name() -> Callable[[str], str]:
    """Returns unique names."""
    numbers = itertools.count()
    return lambda name: f"{name}-{next(numbers)}"


@pytest.fixture
def received(server: StandaloneServer) -> Received:
    """Return all messages of a topic, after waiting for their number."""

    def read(topic: str, count: int) -> list[ReceivedMessage[bytes]]:
        found = written(server.nameserver, topic, count, group="pipelines")
        assert len(found) == count
        return found

    return read
