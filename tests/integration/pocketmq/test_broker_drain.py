"""``pocketmq broker drain``: a broker takes no more messages, and its groups read what it has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import client
from client import blocking
from pocketmq import testing
from pocketmq.testing import StandaloneServer
from tests.integration.pocketmq.conftest import CommandLine


@pytest.fixture
def own() -> Iterator[StandaloneServer]:
    with testing.broker() as server:
        yield server


def test_a_drained_broker_takes_nothing_until_it_is_undone(own: StandaloneServer) -> None:
    cli = CommandLine(own.nameserver)
    cli("topic", "create", "T", "--queues", "1")
    with blocking.Producer(own.nameserver) as producer, blocking.Admin(own.nameserver) as admin:
        for _ in range(3):
            producer.send("T", b"x")
        producer.send("T", b"late", delay=1)
        (queue,) = admin.queues("T")
        admin.create_group("g")
        admin.commit("g", {queue: 1})
        error = cli.fails("broker", "drain", "broker-a", "--timeout", "0")
        assert "messages of group g" in error
        assert "broker drain broker-a --undo" in error
        admin.commit("g", {queue: 4})
        assert "it can be stopped" in cli("broker", "drain", "broker-a")
        assert admin.max_offset(queue) == 4
        with pytest.raises(client.PocketMQError):
            producer.send("T", b"refused", timeout=1)
        cli("broker", "drain", "broker-a", "--undo")
        producer.send("T", b"taken")
        assert admin.max_offset(queue) == 5


def test_an_unknown_broker_is_a_one_line_error(cli: CommandLine) -> None:
    assert "there is no broker 'elsewhere'" in cli.fails("broker", "drain", "elsewhere")
