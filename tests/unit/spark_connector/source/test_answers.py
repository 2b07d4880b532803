"""What an answer to a pull means for a range."""

from __future__ import annotations

import pytest

from client.wire.pull_answer import (
    Covered,
    Ends,
    Gone,
    NoTopic,
    PullMeaning,
    PullRefused,
    judge_pull,
)
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from spark_connector.source.answers import REFUSAL_HINTS
from tests.unit.spark_connector.source.broker import answer, record, wire

FOUND, NONE, RETRY, MOVED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


def meaning_of(command: Command, *, is_filtered: bool = False) -> PullMeaning:
    """Return the meaning of an answer to a pull from offset 100."""
    return judge_pull(wire(command), 100, is_filtered=is_filtered, hints=REFUSAL_HINTS)


@pytest.mark.parametrize("is_filtered", [True, False])
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (answer(FOUND, 132, 0, 500, record(100)), Covered(132)),
        (answer(MOVED, 300, 300, 500), Gone(300)),
        (answer(MOVED, 50, 0, 50), Ends(0, 50)),
        (answer(MOVED, 0, 0, 0), Ends(0, 0)),
        (answer(NONE, 100, 0, 100), Ends(0, 100)),
        (answer(NONE, 200, 0, 500), Gone(200)),
        (Command(ResponseCode.TOPIC_NOT_EXIST, remark="gone"), NoTopic),
    ],
)
def test_what_answers_mean_with_a_filter_and_without(
    command: Command, expected: PullMeaning | type, is_filtered: bool
) -> None:
    meant = meaning_of(command, is_filtered=is_filtered)
    assert meant == expected or type(meant) is expected


def test_an_empty_answer_is_a_loss_without_a_filter() -> None:
    for nothing in (answer(RETRY, 900, 0, 1000), answer(FOUND, 900, 0, 1000)):
        assert meaning_of(nothing, is_filtered=True) == Covered(900)
        assert meaning_of(nothing) == Gone(900)


def test_an_answer_without_progress_is_refused_and_not_repeated_forever() -> None:
    for code in (FOUND, RETRY):
        assert meaning_of(answer(code, 100)) == PullRefused("its next offset 100 is not above 100")
    assert isinstance(meaning_of(Command(FOUND)), PullRefused)


def test_refusals_say_why_and_what_to_do() -> None:
    refusal = meaning_of(Command(ResponseCode.NO_PERMISSION, remark="forbidden"))
    assert isinstance(refusal, PullRefused)
    assert refusal.reason == "code 16 (NO_PERMISSION): forbidden"
    assert refusal.hint
    assert not refusal.is_busy
    assert meaning_of(Command(2, remark="later")) == PullRefused(
        "code 2 (SYSTEM_BUSY): later", is_busy=True
    )
    assert meaning_of(Command(9999)) == PullRefused("code 9999: no reason given")
