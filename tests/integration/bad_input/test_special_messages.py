"""Bad transactions, timers, recalls, replies and expressions get RocketMQ's errors.

Nothing that they name is changed, and messages sent beside them are delivered.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker.limits import LIMITS
from pocketmq.server.process import private_megabytes
from remoting.protocol import names
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.heartbeat import CheckClientRequestBody, SubscriptionData
from remoting.protocol.bodies.topic import CreateTopicListRequestBody, TopicConfig
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.query import ViewBrokerStatsDataRequestHeader
from remoting.protocol.headers.send import (
    EndTransactionRequestHeader,
    RecallMessageRequestHeader,
    SendMessageResponseHeader,
)
from remoting.protocol.message import recall_handle
from remoting.protocol.message.recall_handle import RecallHandle
from tests.integration.bad_input.conftest import MEMORY_MEGABYTES, running
from tests.integration.bad_input.peer import Peer
from tests.integration.bad_input.test_messages import max_offset
from tests.support.sizes import size
from tests.support.waiting import wait_until
from tests.unit.broker.harness import pull_command, send_command

COMMIT, ROLLBACK = 8, 12
HALF = "TRAN_MSG\x01true\x02UNIQ_KEY\x01U1\x02PGROUP\x01pg"
NO_HALF_MESSAGE = "Find prepared transaction message failed"
DAY_MS = 86_400_000
TOPICS = size(test=2_500, ci=10_000, soak=10_000)


def sent(peer: Peer, topic: str, text: str | None = None) -> SendMessageResponseHeader:
    answer = peer.ask(send_command(topic, properties=text))
    assert answer.code == 0, answer.remark
    return answer.read(SendMessageResponseHeader)


def end(peer: Peer, half: SendMessageResponseHeader, kind: int, **fields: object) -> Command:
    header = EndTransactionRequestHeader(
        **{
            "producer_group": "pg",
            "tran_state_table_offset": half.queue_offset,
            "commit_log_offset": place(half),
            "commit_or_rollback": kind,
            "msg_id": "U1",
            **fields,
        }
    )
    return peer.ask(Command.request(RequestCode.END_TRANSACTION, header))


def place(sent: SendMessageResponseHeader) -> int:
    """Return where in the log a message is."""
    return int(sent.msg_id[16:], 16)


# --- transactions


def test_an_end_of_what_is_no_half_message_ends_none(peer: Peer, topic: str) -> None:
    ordinary, half = place(sent(peer, topic)), sent(peer, topic, HALF)
    for other in (ordinary, place(half) + 8, place(half) - 1, 1 << 40, -1):
        answer = end(peer, half, COMMIT, commit_log_offset=other)
        assert (answer.code, answer.remark) == (1, NO_HALF_MESSAGE)
    for fields, remark in (
        ({"producer_group": "other"}, "The producer group wrong"),
        ({"tran_state_table_offset": 1 << 40}, "The transaction state table offset wrong"),
    ):
        answer = end(peer, half, COMMIT, **fields)
        assert (answer.code, answer.remark) == (1, remark)
    assert max_offset(peer, topic) == 1
    assert end(peer, half, COMMIT).code == 0
    assert max_offset(peer, topic) == 2


@pytest.mark.parametrize(("first", "visible"), [(COMMIT, 1), (ROLLBACK, 0)])
def test_a_transaction_ends_once(peer: Peer, topic: str, first: int, visible: int) -> None:
    half = sent(peer, topic, HALF)
    assert end(peer, half, first).code == 0
    for again in (COMMIT, ROLLBACK):
        answer = end(peer, half, again)
        assert answer.code == 1
        assert "has ended already" in (answer.remark or "")
    assert max_offset(peer, topic) == visible


# --- timers and recalls


@pytest.mark.parametrize(
    "timer",
    [
        "TIMER_DELIVER_MS\x0132503680000000",  # the year 3000
        "TIMER_DELIVER_MS\x019223372036854775807",
        "TIMER_DELIVER_MS\x01tomorrow",
        "TIMER_DELAY_SEC\x011.5",
        "TIMER_DELAY_MS\x01" + "9" * 5000,
    ],
    ids=lambda timer: timer.replace("\x01", "=")[:40],
)
def test_a_time_too_far_ahead_or_no_number_is_refused(peer: Peer, topic: str, timer: str) -> None:
    sent(peer, topic)
    answer = peer.ask(send_command(topic, properties=timer))
    assert answer.code == 13
    assert (answer.remark or "").startswith("timer message illegal")
    assert max_offset(peer, topic) == 1


@pytest.mark.parametrize("timer", ["TIMER_DELIVER_MS\x015", "TIMER_DELAY_SEC\x01-5"])
def test_a_time_in_the_past_is_delivered_at_once(peer: Peer, topic: str, timer: str) -> None:
    assert sent(peer, topic, timer).recall_handle is None
    assert max_offset(peer, topic) == 1


def test_recalls_by_the_handles_of_others_recall_nothing(peer: Peer, topic: str) -> None:
    due_ms = int(time.time() * 1000) + 1000
    own = sent(peer, topic, f"UNIQ_KEY\x01mine\x02TIMER_DELIVER_MS\x01{due_ms}").recall_handle
    assert own is not None
    other = f"{topic}-of-another"
    sent(peer, other)

    def recall(handle: str, topic: str = topic) -> tuple[int, str | None]:
        header = RecallMessageRequestHeader(
            producer_group="other", topic=topic, recall_handle=handle
        )
        answer = peer.ask(Command.request(RequestCode.RECALL_MESSAGE, header))
        return answer.code, answer.remark

    broker = recall_handle.decode(own).broker_name
    for handle, asked, remark in (
        (own, other, "topic not match"),
        (RecallHandle(topic, "broker-z", str(due_ms), "mine").encode(), topic, "not available"),
        (RecallHandle(topic, broker, str(due_ms + 4 * DAY_MS), "mine").encode(), topic, "time"),
        (own[4:], topic, "recall handle is invalid"),
        ("A" * 100_000, topic, "recall handle is invalid"),
    ):
        code, said = recall(handle, asked)
        assert code == 604
        assert remark in (said or "")
    # A handle made up for another message is taken, as in RocketMQ; it recalls that one only.
    assert recall(RecallHandle(topic, broker, str(due_ms), "not-mine").encode())[0] == 0
    wait_until(lambda: max_offset(peer, topic), "the handle's owner gets no message")


# --- replies


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("MSG_TYPE\x01reply", "reply message properties[REPLY_TO_CLIENT] is null"),
        ("REPLY_TO_CLIENT\x01gone", "push reply message fail, channel of <gone> not found."),
        (
            "REPLY_TO_CLIENT\x01" + "x" * 10_000,
            f"push reply message fail, channel of <{'x' * 10_000}> not found.",
        ),
    ],
    ids=["nobody", "gone", "long"],
)
def test_a_reply_to_nobody_is_stored_and_its_sender_is_told(
    peer: Peer, text: str, remark: str
) -> None:
    replies = f"DefaultCluster{names.REPLY_TOPIC_SUFFIX}"
    before = max_offset(peer, replies)
    command = send_command(replies, code=RequestCode.SEND_REPLY_MESSAGE_V2, properties=text)
    answer = peer.ask(command)
    assert (answer.code, answer.remark) == (1, remark)
    assert max_offset(peer, replies) == before + 1


# --- expressions


@pytest.mark.parametrize(
    "expression",
    [
        "a = 1 OR " * 7_300 + "a = 1",
        "a = '" + "x" * 65_536 + "'",
        "(" * 10_000 + "a = 1" + ")" * 10_000,
        "NOT " * 10_000 + "a",
        "a * 2 = 2",
    ],
    ids=lambda expression: f"{expression[:9]} {len(expression)}",
)
def test_a_wrong_expression_is_refused_by_pulls_and_before_a_consumer_starts(
    peer: Peer, topic: str, expression: str
) -> None:
    sent(peer, topic)
    subscription = SubscriptionData(topic=topic, sub_string=expression, expression_type="SQL92")
    body = CheckClientRequestBody(client_id="c", group="g", subscription_data=subscription)
    for request in (
        pull_command(topic, subscription=expression, expression_type="SQL92"),
        Command.request(RequestCode.CHECK_CLIENT_CONFIG, body=encode(body)),
    ):
        answer = peer.ask(request)
        assert answer.code == 23
        assert len(answer.remark or "") < 5_000
    assert peer.ask(pull_command(topic)).code == 0


def test_an_unknown_function_is_a_property_as_in_rocketmq(peer: Peer, topic: str) -> None:
    """What follows a complete expression is ignored, and ``abs`` is one: a property's name."""
    sent(peer, topic, "abs\x01no boolean\x02a\x011")
    answer = peer.ask(pull_command(topic, subscription="abs(a) = 1", expression_type="SQL92"))
    assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")


# --- statistics


def test_statistics_of_thousands_of_topics_take_bounded_memory(tmp_path: Path) -> None:
    topics = [f"topic-{number}" for number in range(TOPICS)]
    settings = {"pocketmqMaxTopics": TOPICS + 100, "mappedFileSizeConsumeQueue": 6000}
    with running(tmp_path, **settings) as servers, servers.broker.peer() as peer:
        body = encode(CreateTopicListRequestBody([TopicConfig(name, 1, 1) for name in topics]))
        creation = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
        assert peer.ask(creation).code == 0
        for topic in topics:
            sent(peer, topic)
        assert all(peer.ask(statistics(topic)).code == 0 for topic in topics)
        unknown = peer.ask(statistics("topic-x"))
        assert (unknown.code, unknown.remark) == (
            1,
            "The stats <TOPIC_PUT_NUMS> <topic-x> not exist",
        )
        assert all(max_offset(peer, topic) == 1 for topic in topics[::100])
        others = servers.broker.metrics()['pocketmq_topic_messages_in_total{topic="(others)"}']
        assert others == TOPICS - LIMITS.lag_pairs
        assert private_megabytes(servers.broker.process.pid) < MEMORY_MEGABYTES


def statistics(topic: str) -> Command:
    header = ViewBrokerStatsDataRequestHeader(stats_name="TOPIC_PUT_NUMS", stats_key=topic)
    return Command.request(RequestCode.VIEW_BROKER_STATS_DATA, header)
