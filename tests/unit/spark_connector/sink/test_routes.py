"""Where rows can be sent by the name servers' routes, and what happens without an answer."""

from __future__ import annotations

from typing import Any

import pytest

from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import BrokerError, ConnectorError, UnknownTopicError
from spark_connector.options import ConnectionOptions
from spark_connector.requests import Calls, NameServerCalls
from spark_connector.sink.routes import WriteRoutes
from tests.unit.spark_connector.sink.brokers import NAME_SERVER, World


def routes(world: World, *more: str, **given: Any) -> WriteRoutes:
    options = ConnectionOptions(name_servers=(NAME_SERVER, *more))
    calls = Calls(options, lease=world.lease, sleep=world.sleep)
    return WriteRoutes(NameServerCalls(calls), 4, clock=world.clock, **given)


def test_a_route_is_requested_once() -> None:
    world = World("a", "b")
    known = routes(world)
    assert [queue.broker_name for queue in known.queues("flights")] == ["a", "a", "b", "b"]
    assert known.address(MessageQueue("flights", "b", 0)) == "b:10911"
    assert known.address(MessageQueue("flights", "gone", 0)) is None
    assert world.asked == ["flights"]


def test_a_doubtful_route_is_requested_again_at_a_limited_rate() -> None:
    world = World()
    known = routes(world)
    known.queues("flights")
    world.topics["flights"] = 3
    known.invalidate("flights")
    assert len(known.queues("flights")) == 2
    world.now += 2
    known.invalidate("flights")
    assert len(known.queues("flights")) == 3
    known.invalidate("unknown")
    assert "unknown" not in world.asked


def test_a_known_route_stays_in_use_while_no_name_server_answers() -> None:
    world = World()
    known = routes(world)
    known.queues("flights")
    world.unreachable.add(NAME_SERVER)
    world.now += 2
    known.invalidate("flights")
    assert len(known.queues("flights")) == 2


def test_the_next_name_server_is_asked_when_one_is_down() -> None:
    world = World()
    world.unreachable.add("down:9876")
    for _ in range(8):
        assert routes(world, "down:9876").queues("flights")
    assert not world.slept


def test_a_topic_that_nobody_may_write_to_is_an_error() -> None:
    world = World()
    world.topics["flights"] = 1
    world.brokers = []
    with pytest.raises(BrokerError, match="no broker takes messages for topic flights"):
        routes(world).queues("flights")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ({"body": b"{"}, "answer about topic flights can't be read"),
        ({"code": ResponseCode.SYSTEM_ERROR, "remark": "no"}, r"names:9876 answered code 1: no"),
    ],
)
def test_a_name_server_with_an_invalid_answer_is_named(reply: dict[str, Any], words: str) -> None:
    class Senseless(World):
        def answer(self, address: str, command: Command) -> Command:
            return command.reply(**reply)

    world = Senseless()
    with pytest.raises(BrokerError, match=words):
        routes(world).queues("flights")


@pytest.mark.parametrize(
    ("code", "words"), [("list", "did not|does not exist"), ("brokers", "knows no broker")]
)
def test_lists_that_cannot_be_read_leave_the_plain_error(code: str, words: str) -> None:
    class Garbling(World):
        def answer(self, address: str, command: Command) -> Command:
            if command.code == {"list": 206, "brokers": 106}[code]:
                return command.reply(body=b"{")
            return super().answer(address, command)

    world = Garbling()
    world.topics, world.template = {}, False
    with pytest.raises((BrokerError, UnknownTopicError), match=words):
        routes(world).queues("flights")


def test_a_task_that_names_too_many_topics_is_stopped() -> None:
    world = World()
    known = routes(world, max_topics=3)
    for number in range(3):
        known.queues(f"t{number}")
    with pytest.raises(ConnectorError, match="more than 3 topics"):
        known.queues("t3")
