"""What an answer, or a missing one, means for a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from client.errors import (
    BrokerUnreachable,
    MessageIllegal,
    NoPermission,
    Outcome,
    PocketMQError,
    RemoteError,
    SendError,
    SystemBusy,
    TopicNotFound,
    as_send_error,
    remote_error,
)
from client.limits import RETRY_AFTER_MAX
from client.producer.columns import MessageColumns
from client.producer.sender import Delivery, SendVerdict
from remoting.errors import AnswerTimeout, ConnectFailed, ConnectionLost
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.own_codes import RETRY_AFTER
from remoting.protocol.queue import MessageQueue

QUEUE = MessageQueue("T", "a", 0)
SEND = RequestCode.SEND_MESSAGE_V2


def delivery() -> Delivery:
    made = Delivery(MessageColumns("T", "T", 3.0, 0))
    made.queue = QUEUE
    made.attempts = 1
    return made


def lose(made: Delivery) -> SendVerdict:
    return made.lost(ConnectFailed("a", "refused"), "g", "a", written=False)


def judge(made: Delivery, code: int, remark: str | None = None) -> SendVerdict:
    return made.judge(Command(code, remark=remark), SEND, "g", "1.2.3.4:5")


@pytest.mark.parametrize("code", [0, 10, 11, 12])
def test_stored_with_less_durability_is_stored(code: int):
    assert judge(delivery(), code) is SendVerdict.STORED


@pytest.mark.parametrize("code", [17, 14, 1, 16, 204, 205])
def test_these_refusals_are_tried_again(code: int):
    assert judge(delivery(), code) is SendVerdict.RETRY


@pytest.mark.parametrize("code", [2, 215])
def test_a_busy_broker_is_tried_again(code: int):
    assert judge(delivery(), code) is SendVerdict.BUSY


@pytest.mark.parametrize("code", [13, 3, 26, 29, 999])
def test_other_refusals_are_final(code: int):
    assert judge(delivery(), code) is SendVerdict.FAIL


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250", 0.25), ("0", 0), ("", 0), ("-5", 0), ("1e3", 0), ("\u0665", 0)]
    + [(digits, RETRY_AFTER_MAX) for digits in ("999999999", "9" * 5000)],
)
def test_a_refusal_may_name_the_time_to_wait(text: str, seconds: float) -> None:
    answer = Command(ResponseCode.SYSTEM_BUSY, remark="quota", pairs=((RETRY_AFTER, text),))
    made = delivery()
    assert made.judge(answer, SEND, "g", "1.2.3.4:5") is SendVerdict.BUSY
    error = made.failure("T", "g")
    assert isinstance(error, SystemBusy)
    assert error.retry_after == seconds


def test_brokers_are_avoided_until_the_time_they_named_and_else_after_a_failure() -> None:
    made = delivery()
    made.failed_broker = "a"
    assert made.avoid(0.0) == {"a"}
    made.not_before = {"a": 5.0, "b": 7.0}
    assert made.avoid(4.0) == {"a", "b"}
    assert made.avoid(5.0) == {"b"}


def test_attempts_are_counted_and_busy_answers_and_failed_connects_are_not():
    made = delivery()
    judge(made, ResponseCode.SYSTEM_BUSY)
    made.attempts = 3
    assert not made.exhausted(retries=2)
    made.attempts = 4
    assert made.exhausted(retries=2)
    fresh = delivery()
    fresh.attempts = 0
    assert not fresh.exhausted(retries=2)
    assert fresh.exhausted(retries=0)


def test_a_timeout_ends_it_and_leaves_the_outcome_unknown():
    made = delivery()
    assert made.lost(AnswerTimeout("a", SEND, 3.0), "g", "a", written=True) is SendVerdict.FAIL
    error = made.failure("T", "g")
    assert isinstance(error, SendError)
    assert error.outcome is Outcome.UNKNOWN


def test_a_lost_connection_is_tried_again_and_stays_unknown_even_when_refused_then():
    made = delivery()
    assert made.lost(ConnectionLost("a", "reset"), "g", "a", written=True) is SendVerdict.RETRY
    judge(made, ResponseCode.NO_PERMISSION, "no")
    error = made.failure("T", "g")
    assert isinstance(error, SendError)
    assert error.outcome is Outcome.UNKNOWN


def test_what_was_never_written_is_not_sent():
    made = delivery()
    assert made.lost(ConnectFailed("a", "refused"), "g", "a", written=False) is SendVerdict.RETRY
    assert made.lost(ConnectionLost("a", "reset"), "g", "a", written=False) is SendVerdict.RETRY
    error = made.failure("T", "g")
    assert isinstance(error, SendError)
    assert error.outcome is Outcome.NOT_SENT
    assert "refused" in str(error) or "reset" in str(error)


def test_a_refusal_is_raised_as_a_new_error_for_each_message():
    made = delivery()
    judge(made, ResponseCode.MESSAGE_ILLEGAL, "too big\nSee http://faq")
    first, second = made.failure("T", "g"), made.failure("T", "g")
    assert isinstance(first, MessageIllegal)
    assert first is not second
    assert (first.code, first.remark) == (13, "too big\nSee http://faq")
    assert "too big" in str(first)
    assert "faq" not in str(first)
    assert first.group == "g"


def test_what_a_send_fails_with_is_a_send_error_and_of_its_own_kind():
    refusal = remote_error(16, "no", "SEND", topic="T", group="g", broker="b")
    error = as_send_error(refusal)
    assert isinstance(error, NoPermission)
    assert (error.outcome, error.code, error.remark) == (Outcome.NOT_SENT, 16, "no")
    assert (error.topic, error.group, error.broker) == ("T", "g", "b")
    assert (str(error), error.__cause__) == (str(refusal), refusal)
    assert not isinstance(refusal, SendError)
    assert as_send_error(error) is error
    assert type(as_send_error(PocketMQError("x"))) is SendError


@pytest.mark.parametrize(
    "failure",
    [lambda made: judge(made, 16, "no"), lose],
    ids=["refused", "unreachable"],
)
def test_every_failure_of_a_batch_is_a_send_error(failure: Callable[[Delivery], Any]):
    made = delivery()
    failure(made)
    error = made.failure("T", "g")
    assert isinstance(error, SendError)
    assert isinstance(error, NoPermission | BrokerUnreachable)
    assert (error.outcome, error.topic, error.queue) == (Outcome.NOT_SENT, "T", QUEUE)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(2, SystemBusy), (13, MessageIllegal), (16, NoPermission), (17, TopicNotFound)],
)
def test_response_codes_have_their_own_errors(code: int, kind: type[RemoteError]):
    assert type(remote_error(code, None, "it")) is kind
    assert type(remote_error(777, None, "it")) is RemoteError
