"""GET_MAX_OFFSET, and the sizes that our peers ask for with it."""

from __future__ import annotations

import pytest

from broker.store.message_store import MessageStore
from broker.store.results import StoreBusy
from remoting.protocol.byte_range import ByteAnswer, ByteQuestion
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import GetMaxOffsetRequestHeader
from tests.unit.broker.harness import Bench, answer_of, fields_of


def question(topic: str = "T", **extra: str) -> Command:
    header = GetMaxOffsetRequestHeader(topic=topic, queue_id=0)
    command = Command.request(RequestCode.GET_MAX_OFFSET, header, extra=extra)
    return Command(command.code, pairs=tuple(command.all_pairs() or ()))


def about(begin: int, end: int, limit: int | None = None, *, topic: str = "T") -> Command:
    return question(topic, **ByteQuestion(begin, end, limit).fields())


@pytest.fixture
def filled(bench: Bench) -> Bench:
    bench.topic("T")
    for length in (10, 1000, 10):
        bench.send("T", bytes(length))
    return bench


def test_who_asks_for_the_end_alone_is_told_the_end_alone(filled: Bench) -> None:
    assert fields_of(filled.must(question())) == {"offset": "3"}


async def test_who_asks_for_bytes_is_told_them_too(filled: Bench) -> None:
    answer = await answer_of(filled, about(0, 3))
    assert answer is not None
    fields = fields_of(answer)
    size = filled.store.end_offset
    assert fields == {"offset": "3", "pmqBytes": str(size), "pmqBytesReached": "3"}
    small = (size - 990) // 3
    limited = await answer_of(filled, about(0, 3, 2 * small))
    assert limited is not None
    assert ByteAnswer.of(fields_of(limited)) == ByteAnswer(small, 1, small + 990)


async def test_a_topic_that_is_not_there_has_no_bytes(filled: Bench) -> None:
    answer = await answer_of(filled, about(5, 7, topic="nowhere"))
    assert answer is not None
    assert fields_of(answer) == {"offset": "0", "pmqBytes": "0", "pmqBytesReached": "5"}


@pytest.mark.parametrize(
    "extra",
    [
        {"pmqBytesFrom": "0", "pmqBytesUntil": "ten"},
        {"pmqBytesFrom": "-1", "pmqBytesUntil": "10"},
        {"pmqBytesFrom": "11", "pmqBytesUntil": "10"},
        {"pmqBytesFrom": "0", "pmqBytesUntil": str(2**63)},
        {"pmqBytesFrom": "0", "pmqBytesUntil": "10", "pmqBytesLimit": ""},
        {"pmqBytesLimit": "10"},
    ],
)
def test_what_is_no_question_is_refused_with_a_code_of_its_own(
    filled: Bench, extra: dict[str, str]
) -> None:
    answer = filled.must(question(**extra))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "pmqBytes" in (answer.remark or "")


async def test_a_broker_that_has_too_much_to_read_says_so(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy(*_: object) -> ByteAnswer:
        raise StoreBusy("too many wait")

    monkeypatch.setattr(MessageStore, "bytes_of", busy)
    answer = await answer_of(filled, about(0, 3))
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_BUSY
