"""What an answer, or none, means for a batch."""

from __future__ import annotations

import pytest

from client.errors import (
    MessageIllegal,
    NoPermission,
    Outcome,
    RemoteError,
    SendError,
    SystemBusy,
    TopicNotFound,
    remote_error,
)
from client.producer.accumulator import Batch, Lane
from client.producer.delivery import Delivery, Verdict, as_send_error
from client.producer.outgoing import Outgoing
from remoting.errors import ConnectFailed, ConnectionLost, RequestTimeout
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.queue import MessageQueue

QUEUE = MessageQueue("T", "a", 0)
SEND = RequestCode.SEND_MESSAGE_V2


def delivery() -> Delivery:
    made = Delivery(Batch(Lane("T"), [Outgoing("T", b"x", "", "1")]))
    made.queue = QUEUE
    made.attempts = 1
    return made


def judge(made: Delivery, code: int, remark: str | None = None) -> Verdict:
    return made.judge(Command(code, remark=remark), SEND, "g", "1.2.3.4:5")


@pytest.mark.parametrize("code", [0, 10, 11, 12])
def test_stored_with_less_durability_is_stored(code: int):
    assert judge(delivery(), code) is Verdict.STORED


@pytest.mark.parametrize("code", [17, 14, 1, 16, 204, 205, 2, 215])
def test_these_refusals_are_tried_again(code: int):
    assert judge(delivery(), code) is Verdict.RETRY


@pytest.mark.parametrize("code", [13, 3, 26, 29, 999])
def test_other_refusals_are_final(code: int):
    assert judge(delivery(), code) is Verdict.FAIL


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
    assert made.lost(RequestTimeout("a", SEND, 3.0), "g", "a", written=True) is Verdict.FAIL
    error = made.failure("T", "g")
    assert isinstance(error, SendError)
    assert error.outcome is Outcome.UNKNOWN


def test_a_lost_connection_is_tried_again_and_stays_unknown_even_when_refused_then():
    made = delivery()
    assert made.lost(ConnectionLost("a", "reset"), "g", "a", written=True) is Verdict.RETRY
    judge(made, ResponseCode.NO_PERMISSION, "no")
    error = made.failure("T", "g")
    assert isinstance(error, SendError)
    assert error.outcome is Outcome.UNKNOWN


def test_what_was_never_written_is_not_sent():
    made = delivery()
    assert made.lost(ConnectFailed("a", "refused"), "g", "a", written=False) is Verdict.RETRY
    assert made.lost(ConnectionLost("a", "reset"), "g", "a", written=False) is Verdict.RETRY
    error = made.failure("T", "g")
    assert isinstance(error, SendError)
    assert error.outcome is Outcome.NOT_SENT
    assert "refused" in str(error) or "reset" in str(error)


def test_a_refusal_is_raised_as_itself_and_anew_for_each_message():
    made = delivery()
    judge(made, ResponseCode.MESSAGE_ILLEGAL, "too big\nSee http://faq")
    first, second = made.failure("T", "g"), made.failure("T", "g")
    assert isinstance(first, MessageIllegal)
    assert first is not second
    assert (first.code, first.remark) == (13, "too big\nSee http://faq")
    assert "too big" in str(first)
    assert "faq" not in str(first)
    assert first.group == "g"


def test_a_refusal_becomes_a_send_error_where_results_are_returned():
    refusal = remote_error(16, "no", "SEND", topic="T", group="g", broker="b")
    wrapped = as_send_error(refusal)
    assert wrapped.outcome is Outcome.NOT_SENT
    assert wrapped.__cause__ is refusal
    assert (wrapped.topic, wrapped.group, wrapped.broker) == ("T", "g", "b")
    assert as_send_error(wrapped) is wrapped


@pytest.mark.parametrize(
    ("code", "kind"),
    [(2, SystemBusy), (13, MessageIllegal), (16, NoPermission), (17, TopicNotFound)],
)
def test_response_codes_have_their_own_errors(code: int, kind: type[RemoteError]):
    assert type(remote_error(code, None, "it")) is kind
    assert type(remote_error(777, None, "it")) is RemoteError
