"""How a failed message is returned to the brokers."""

from __future__ import annotations

from typing import Any

import pytest

from client import serde
from client.consumer.outcome import DONE, MessageOutcome, OutcomeKind, outcome_of
from client.consumer.received import ReceivedMessage, messages_of
from client.consumer.send_back import SendBack, skip_failed
from client.errors import DeadLetter, PocketMQError, RetryLater, UsageError, remote_error
from client.events import MessageDeadLettered
from client.limits import MAX_DEAD_REASON
from client.network.routes import Route
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Header
from remoting.protocol.message import properties
from remoting.protocol.queue import MessageQueue
from tests.support.clock import ManualClock
from tests.unit.client.consuming import Shelf, record

QUEUE = MessageQueue("T", "a", 0)
BROKERS = {"a": {0: "1.1.1.1:1"}, "b": {0: "2.2.2.2:2"}}


class Cluster:
    """An instance whose brokers refuse what the test chooses."""

    client_id = "1.2.3.4@5"

    def __init__(self) -> None:
        self.clock = ManualClock(now_ms=1_700_000_000_123)
        self.routes = self.remote = self
        self.asked: list[tuple[str, int, Any, bytes]] = []
        self.refused: set[tuple[str, int]] = set()

    async def to_read(self, topic: str) -> Route:
        return Route(topic, (), (), BROKERS)

    async def to_write(self, topic: str, queues: int, timeout: float) -> Route:
        queues_of = tuple(MessageQueue(topic, name, 0) for name in BROKERS)
        return Route(topic, queues_of, (), BROKERS)

    async def call(
        self, address: str, code: int, header: Header, *, body: bytes = b"", **_: Any
    ) -> None:
        self.asked.append((address, code, header, body))
        if (address, code) in self.refused:
            raise remote_error(2, "busy", "the request")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def events() -> list[Any]:
    return []


@pytest.fixture
def back(cluster: Cluster, events: list[Any]) -> SendBack:
    instance: Any = cluster
    return SendBack(instance, "g", 16, events.append)


def message(*, times: int = 0, text: bytes = b"") -> ReceivedMessage[bytes]:
    shelf: Any = None
    [made] = messages_of(record(7, QUEUE, times=times, properties=text), QUEUE, serde.raw, shelf)
    return made


RETRY = outcome_of(ValueError())
BURY = outcome_of(DeadLetter("bad"))
FIRST = ("1.1.1.1:1", RequestCode.CONSUMER_SEND_MSG_BACK)


async def test_a_message_is_sent_back_to_its_own_broker(back: Any, cluster: Cluster):
    assert await back.carry_out(message(), outcome_of(RetryLater(30)))
    [(address, code, header, _)] = cluster.asked
    assert (address, code) == FIRST
    assert (header.offset, header.group, header.delay_level) == (1007, "g", 4)
    assert (header.origin_msg_id, header.origin_topic) == ("7", "T")
    assert header.max_reconsume_times == 16


async def test_a_dead_letter_is_sent_to_its_own_broker_without_retries_and_with_a_reason(
    back: Any, cluster: Cluster, events: list[Any]
):
    text = b"UNIQ_KEY\x01U\x02DELAY\x013"
    error = ValueError("first\x01second\x02" + "x" * 1000)
    assert await back.carry_out(message(times=16, text=text), outcome_of(error))
    [(address, code, header, body)] = cluster.asked
    assert (address, code) == ("1.1.1.1:1", RequestCode.SEND_MESSAGE_V2)
    assert (header.topic, body) == ("%RETRY%g", b"7")
    assert (header.reconsume_times, header.max_reconsume_times) == (17, 0)
    written = properties.decode(header.properties.encode())
    reason = written.pop("POCKETMQ_DEAD_REASON")
    assert reason.startswith("ValueError('first")
    assert len(reason) == MAX_DEAD_REASON
    assert written == {
        "UNIQ_KEY": "U",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": message().offset_id,
        "POCKETMQ_DEAD_EXCEPTION": "ValueError",
        "POCKETMQ_DEAD_CONSUMER": "1.2.3.4@5",
        "POCKETMQ_DEAD_TIME": "1700000000123",
    }
    assert [event.message_id for event in events] == ["U"]


async def test_the_reason_has_no_characters_that_a_property_lacks(back: Any, cluster: Cluster):
    assert await back.carry_out(message(), outcome_of(DeadLetter("a\x01b\x02c\udc80")))
    written = properties.decode(cluster.asked[0][2].properties.encode())
    assert written["POCKETMQ_DEAD_REASON"] == "a b c?"
    assert "POCKETMQ_DEAD_EXCEPTION" not in written


async def test_a_dead_letter_without_room_for_a_reason_has_none(back: Any, cluster: Cluster):
    text = b"UNIQ_KEY\x01U\x02own\x01" + b"x" * 31_700
    assert await back.carry_out(message(text=text), BURY)
    assert "POCKETMQ" not in cluster.asked[0][2].properties


async def test_a_dead_letter_that_cannot_be_sent_is_delay_level_minus_one(
    back: Any, cluster: Cluster, events: list[Any]
):
    cluster.refused = {(ids[0], int(RequestCode.SEND_MESSAGE_V2)) for ids in BROKERS.values()}
    assert await back.carry_out(message(), BURY)
    address, code, header, _ = cluster.asked[-1]
    assert (address, code) == FIRST
    assert header.delay_level == -1
    assert events == [MessageDeadLettered(QUEUE, 7, "7", "g", "bad")]


async def test_the_retry_after_the_last_is_a_dead_letter_too(back: Any, events: list[Any]):
    assert await back.carry_out(message(times=15), RETRY)
    assert events == []
    assert await back.carry_out(message(times=16), RETRY)
    assert [event.reason for event in events] == ["ValueError()"]


async def test_a_refused_message_is_sent_as_new_to_another_broker(back: Any, cluster: Cluster):
    cluster.refused = {FIRST}
    text = b"UNIQ_KEY\x01U\x02TAGS\x01x\x02TRAN_MSG\x01true"
    assert await back.carry_out(message(times=2, text=text), RETRY)
    address, code, header, body = cluster.asked[1]
    assert (address, code) == ("2.2.2.2:2", RequestCode.SEND_MESSAGE_V2)
    assert (header.topic, header.queue_id, body) == ("%RETRY%g", 0, b"7")
    assert (header.reconsume_times, header.max_reconsume_times) == (3, 16)
    assert properties.decode(header.properties.encode()) == {
        "UNIQ_KEY": "U",
        "TAGS": "x",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": message().offset_id,
        "DELAY": "5",
    }


async def test_its_own_broker_is_tried_last(back: Any, cluster: Cluster):
    cluster.refused = {FIRST, ("2.2.2.2:2", RequestCode.SEND_MESSAGE_V2)}
    assert await back.carry_out(message(), RETRY)
    assert [address for address, *_ in cluster.asked] == ["1.1.1.1:1", "2.2.2.2:2", "1.1.1.1:1"]


async def test_a_message_refused_by_all_is_kept_and_no_dead_letter_reported(
    back: Any, cluster: Cluster, events: list[Any]
):
    cluster.refused = {FIRST} | {
        (ids[0], int(RequestCode.SEND_MESSAGE_V2)) for ids in BROKERS.values()
    }
    assert not await back.carry_out(message(), BURY)
    assert events == []


async def test_broadcasting_sends_nothing_back(caplog: pytest.LogCaptureFixture):
    assert await skip_failed("g", message(), RETRY)
    assert "broadcasting has no retries" in caplog.text


@pytest.mark.parametrize(
    ("delay", "level"), [(None, 0), (0, 1), (1, 1), (1.5, 2), (59, 5), (7200, 18), (10**9, 18)]
)
def test_delays_are_rounded_up_to_a_level(delay: float | None, level: int):
    assert MessageOutcome(OutcomeKind.RETRY, delay).delay_level == level


def test_a_message_of_a_pull_consumer_has_no_outcome():
    made = message()
    assert made.settled
    for settle in (made.ack, made.retry_later, made.dead_letter, made.__enter__):
        with pytest.raises(UsageError, match="a message of a pull consumer has no outcome"):
            settle()
    assert made.retries == 0


def test_a_message_that_was_sent_back_has_the_topic_it_came_from():
    queue = MessageQueue("%RETRY%g", "a", 0)
    text = b"UNIQ_KEY\x01U\x02RETRY_TOPIC\x01T"
    settler: Any = Shelf()
    [mine] = messages_of(record(7, queue, properties=text), queue, serde.raw, settler)
    [pulled] = messages_of(record(7, queue, properties=text), queue, serde.raw)
    assert (mine.topic, pulled.topic) == ("T", "%RETRY%g")
    assert mine.queue == queue


def test_outcomes_of_nothing_raised_and_of_errors():
    assert DONE.verdict is OutcomeKind.DONE
    assert outcome_of(PocketMQError("x")).verdict is OutcomeKind.RETRY
