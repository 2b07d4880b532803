"""What brokers are asked about sizes, and what is made of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from client.routes import Route, route_of
from remoting.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from remoting.protocol.byte_range import ByteAnswer, ByteQuestion
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import BrokerError
from spark_connector.source.sizes import ASK_AGAIN, StoredSizes


def queue(broker: str, number: int) -> MessageQueue:
    return MessageQueue("T", broker, number)


class Calls:
    """Brokers that answer from a table; one that isn't in it is down."""

    def __init__(self) -> None:
        self.answers: dict[str, Mapping[str, str] | ResponseCode] = {}
        self.asked: list[str] = []
        self.retries: list[int | None] = []

    def many(
        self,
        address: str,
        commands: Sequence[Any],
        what: str,
        *,
        accept: frozenset[int],
        retries: int | None = None,
    ) -> list[Command]:
        self.asked += [address] * len(commands)
        self.retries.append(retries)
        answer = self.answers.get(address)
        if answer is None:
            raise BrokerError(f"{address} could not be asked for {what}")
        if isinstance(answer, ResponseCode):
            assert answer in accept
            return [Command(answer) for _ in commands]
        for make in commands:
            request = make()
            assert request.code == RequestCode.GET_MAX_OFFSET
            assert ByteQuestion.of(request.fields) is not None
        return [Command(0, pairs=tuple({"offset": "9", **answer}.items())) for _ in commands]

    def one(self, address: str, command: Any, what: str, *, accept: frozenset[int]) -> Command:
        return self.many(address, [command], what, accept=accept)[0]


class Brokers:
    def __init__(self) -> None:
        self.calls = Calls()


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def sizes(brokers: Any, now: list[float]) -> StoredSizes:
    sizes = StoredSizes(brokers, "g", clock=lambda: now[0])
    sizes.routes = {"T": route("a", "b")}
    return sizes


def route(*names: str) -> Route:
    data = TopicRouteData(
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=4, write_queue_nums=4, perm=6)
            for name in names
        ],
        broker_datas=[
            BrokerData(cluster="c", broker_name=name, broker_addrs={0: f"{name}:1"})
            for name in names
        ],
    )
    return route_of("T", data)


QUESTIONS = {queue("a", 0): ByteQuestion(0, 9, 500), queue("b", 1): ByteQuestion(3, 9, 500)}


def test_each_queue_is_asked_about_once(sizes: StoredSizes, brokers: Brokers):
    brokers.calls.answers = {
        "a:1": ByteAnswer(400, 4, 200).fields(),
        "b:1": ByteAnswer(500, 9).fields(),
    }
    assert sizes.measure(QUESTIONS) == {
        queue("a", 0): ByteAnswer(400, 4, 200),
        queue("b", 1): ByteAnswer(500, 9),
    }
    assert brokers.calls.asked == ["a:1", "b:1"]


def test_a_broker_that_can_not_tell_is_left_in_peace_for_a_while(
    sizes: StoredSizes, brokers: Brokers, now: list[float]
):
    brokers.calls.answers = {"a:1": ByteAnswer(400, 4, 200).fields(), "b:1": {}}
    for _ in range(3):
        assert sizes.measure(QUESTIONS)[queue("b", 1)] is None
    assert brokers.calls.asked.count("b:1") == 1
    brokers.calls.answers["b:1"] = ByteAnswer(500, 9).fields()
    now[0] += ASK_AGAIN
    assert sizes.measure(QUESTIONS)[queue("b", 1)] == ByteAnswer(500, 9)


def test_a_broker_that_is_busy_can_not_tell_now(sizes: StoredSizes, brokers: Brokers):
    brokers.calls.answers = {"a:1": ResponseCode.SYSTEM_BUSY, "b:1": ResponseCode.SYSTEM_ERROR}
    for _ in range(2):
        assert sizes.measure(QUESTIONS) == dict.fromkeys(QUESTIONS)
    assert len(brokers.calls.asked) == 4


@pytest.mark.parametrize(
    "told",
    [
        {"pmqBytes": "many", "pmqBytesReached": "4"},
        {"pmqBytes": "400", "pmqBytesReached": "10"},
        {"pmqBytes": "501", "pmqBytesReached": "9"},
        {"pmqBytes": "0", "pmqBytesReached": "0"},
    ],
)
def test_an_answer_that_can_not_be_is_none(
    sizes: StoredSizes, brokers: Brokers, told: dict[str, str]
):
    brokers.calls.answers = {"a:1": told}
    for _ in range(2):
        assert sizes.measure({queue("a", 0): ByteQuestion(0, 9, 500)}) == {queue("a", 0): None}
    assert len(brokers.calls.asked) == 2


def test_queues_of_a_broker_that_is_down_are_left_out(
    sizes: StoredSizes, brokers: Brokers, caplog: pytest.LogCaptureFixture
):
    brokers.calls.answers = {"a:1": ByteAnswer(500, 9).fields()}
    assert sizes.measure(QUESTIONS) == {queue("a", 0): ByteAnswer(500, 9)}
    assert brokers.calls.retries == [0, 0]
    assert "a broker can't be asked for the sizes of its messages" in caplog.text
    assert sizes.mean_size(queue("b", 1), 3) is None


def test_a_query_that_ends_by_itself_does_not_leave_them_out(sizes: StoredSizes, brokers: Brokers):
    sizes.strict = True
    with pytest.raises(BrokerError, match="a:1 could not be asked for the sizes of messages"):
        sizes.measure(QUESTIONS)
    with pytest.raises(BrokerError, match="b:1 could not be asked for messages of queue"):
        sizes.mean_size(queue("b", 1), 3)
    assert brokers.calls.retries == [None, None]


def test_a_queue_without_a_master_can_not_be_told_of(sizes: StoredSizes, brokers: Brokers):
    assert sizes.measure({queue("c", 0): ByteQuestion(0, 9, 500)}) == {queue("c", 0): None}
    assert brokers.calls.asked == []
