"""One Spark session and one broker for all tests here, and topics with known messages.

The JVM's options reduce compilation and use a simple garbage collector: these tests start many
small jobs, none of which runs long enough to benefit from optimized code.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client import Message
from client.blocking import Admin, Producer
from pocketmq import testing
from pocketmq.testing import StandaloneServer

HERE = Path(__file__).parent
TIMEOUT = 300
JVM_FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": JVM_FLAGS,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.streaming.stopTimeout": "60s",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test here as one that starts Spark."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session, with workers that run this interpreter."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("pocketmq-tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def server() -> Iterator[StandaloneServer]:
    """A broker of ours in a separate process."""
    with testing.broker() as running:
        yield running


@pytest.fixture(scope="session")
def admin(server: StandaloneServer) -> Iterator[Admin]:
    with Admin(server.nameserver) as made:
        yield made


@pytest.fixture(scope="session")
def producer(server: StandaloneServer) -> Iterator[Producer]:
    with Producer(server.nameserver, group="spark-tests") as made:
        yield made


@pytest.fixture(scope="session")
def new_topic(admin: Admin) -> Callable[..., str]:
    """Creates a topic for one test."""
    numbers = itertools.count()

    def make(queues: int = 4, name: str = "Spark") -> str:
        topic = f"{name}-{next(numbers)}"
        admin.create_topic(topic, queues=queues)
        return topic

    return make


class Filler:
    """Sends numbered messages; their bodies are their numbers."""

    def __init__(self, admin: Admin, producer: Producer) -> None:
        self._admin = admin
        self._producer = producer

    def __call__(self, topic: str, count: int, *, first: int = 0, size: int = 0) -> None:
        """Send messages; ``n`` has body ``n``, key ``kn``, tag even or odd, and queue ``n`` modulo.

        Args:
            count: how many.
            first: the first ``n``.
            size: blanks behind the number in the body.
        """
        queues = self._admin.queues(topic)
        by_queue: dict[int, list[Message]] = {}
        for number in range(first, first + count):
            message = Message(
                topic,
                b"%d" % number + b" " * size,
                tag="even" if number % 2 == 0 else "odd",
                keys=[f"k{number}"],
                properties={"n": str(number)},
                queue=queues[number % len(queues)],
            )
            by_queue.setdefault(number % len(queues), []).append(message)
        for messages in by_queue.values():
            results = self._producer.send_many(messages)
            errors = [result for result in results if isinstance(result, Exception)]
            assert not errors, errors[0]


@pytest.fixture(scope="session")
def fill(admin: Admin, producer: Producer) -> Filler:
    """Sends numbered messages to a topic."""
    return Filler(admin, producer)


@pytest.fixture
def read(spark: Any, server: StandaloneServer) -> Callable[..., Any]:
    """A batch DataFrame of a topic: ``read(topic, startingOffsets="latest")``."""

    def make(topic: str | None = None, *, schema: str | None = None, **options: Any) -> Any:
        reader = spark.read.format("rocketmq").option("nameServer", server.nameserver)
        return _configured(reader, topic, schema, options).load()

    return make


@pytest.fixture
def stream(spark: Any, server: StandaloneServer) -> Callable[..., Any]:
    """A streaming DataFrame of a topic."""

    def make(topic: str | None = None, *, schema: str | None = None, **options: Any) -> Any:
        reader = spark.readStream.format("rocketmq").option("nameServer", server.nameserver)
        return _configured(reader, topic, schema, options).load()

    return make


def _configured(reader: Any, topic: str | None, schema: str | None, options: dict[str, Any]) -> Any:
    if topic is not None:
        reader = reader.option("topic", topic)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader if schema is None else reader.schema(schema)
