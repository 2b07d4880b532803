"""Our broker parses numbers and booleans in headers exactly as Apache's does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pytest

from pocketmq import testing
from remoting.blocking import BlockingConnection
from remoting.protocol import bodies
from remoting.protocol.bodies.topic import TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.message import batch
from tests.interop.apache import Apache, shown

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

BOOLEANS = ["true", "TRUE", "tRuE", "false", "0", "1", "yes", "", " true", "true ", "x"]
NUMBERS = [
    *("2", "+2", "002", "0" * 100 + "2", "٢", "0٢", "+\uff12"),
    *("", "+", "-", "+-2", " 2", "2 ", "2_0", "2.0", "0x2", "2e0", "null", "²", "\U0001d7da"),
    *("2147483648", "-2147483649", "9223372036854775808"),
]
SMALL = ["0", "+0", "-0", "00", "٠", "", "x", " 0", "9223372036854775808"]

TOPIC = {
    "topic": "plain",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}
SEND = {
    **dict.fromkeys("efhjl", "0"),
    **dict.fromkeys("km", "false"),
    "a": "p",
    "b": "plain",
    "c": "TBW102",
    "d": "4",
    "g": "1700000000000",
    "i": "",
}
QUEUE = {"topic": "plain", "queueId": "0"}
COMMIT = QUEUE | {"consumerGroup": "g", "commitOffset": "0"}
PULL = COMMIT | {
    "queueOffset": "0",
    "maxMsgNums": "1",
    "sysFlag": "4",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
}


@pytest.fixture(scope="module")
def brokers(shared_apache: Callable[[str], Apache]) -> Iterator[list[BlockingConnection]]:
    """Connect to Apache's and our broker, each with a message in a queue."""
    theirs = shared_apache("4.9.7")
    with (
        testing.broker() as ours,
        BlockingConnection(theirs.broker, timeout=10.0) as one,
        BlockingConnection(ours.broker, timeout=10.0) as other,
    ):
        for broker in (one, other):
            assert ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC).code == 0
            assert ask(broker, RequestCode.SEND_MESSAGE_V2, SEND).code == 0
        asyncio.run(shown(theirs.nameserver, "plain", 1))
        yield [one, other]


def ask(
    broker: BlockingConnection, code: int, fields: dict[str, str], body: bytes = b"x"
) -> Command:
    return broker.request(Command.request(code, extra=fields, body=body), timeout=10.0)


@pytest.mark.parametrize(
    ("code", "usual", "field", "texts"),
    [
        (RequestCode.SEND_MESSAGE_V2, SEND, "j", NUMBERS),
        (RequestCode.SEND_MESSAGE_V2, SEND, "e", SMALL),
        (RequestCode.SEND_MESSAGE_V2, SEND, "g", SMALL),
        (RequestCode.SEND_MESSAGE_V2, SEND, "k", BOOLEANS),
        (RequestCode.PULL_MESSAGE, PULL, "queueId", SMALL),
        (RequestCode.PULL_MESSAGE, PULL, "queueOffset", SMALL),
        (RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT, "commitOffset", SMALL),
        (RequestCode.GET_MAX_OFFSET, QUEUE, "queueId", SMALL),
    ],
)
def test_our_broker_accepts_and_refuses_the_same_fields(
    code: int,
    usual: dict[str, str],
    field: str,
    texts: Sequence[str],
    brokers: list[BlockingConnection],
) -> None:
    theirs, ours = (
        {text: ask(broker, code, usual | {field: text}).code for text in texts}
        for broker in brokers
    )
    assert ours == theirs


def test_numbers_have_the_same_values(brokers: list[BlockingConnection]) -> None:
    names = {f"topic-{number}": text for number, text in enumerate(NUMBERS)}
    counts = []
    for broker in brokers:
        for name, text in names.items():
            fields = TOPIC | {"topic": name, "readQueueNums": text}
            ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        answer = broker.request(Command.request(RequestCode.GET_ALL_TOPIC_CONFIG), timeout=10.0)
        table = bodies.decode(TopicConfigSerializeWrapper, bytes(answer.body)).topic_config_table
        counts.append({names[name]: table[name].read_queue_nums for name in names if name in table})
    theirs, ours = counts
    assert ours == theirs


def test_booleans_have_the_same_values(brokers: list[BlockingConnection]) -> None:
    """A batch takes two offsets in the queue, anything else one."""
    two = batch.encode([(0, b"one", b""), (0, b"another", b"")])
    sends = [SEND | {"e": "3", "m": text} for text in (*BOOLEANS, "false")]
    theirs, ours = (
        [ask(broker, RequestCode.SEND_MESSAGE_V2, fields, two).fields for fields in sends]
        for broker in brokers
    )
    places = [int(fields["queueOffset"]) for fields in ours]
    assert places == [int(fields["queueOffset"]) for fields in theirs]
    assert places[-1] == len(BOOLEANS) + 3
