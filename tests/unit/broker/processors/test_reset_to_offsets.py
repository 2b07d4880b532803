"""INVOKE_BROKER_TO_RESET_OFFSET with the offsets in its body, as our admin sends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.group import ResetOffsetBody
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import ResetOffsetRequestHeader
from remoting.protocol.queue import MessageQueue
from tests.unit.broker.harness import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    made.topic("T", queues=2)
    yield made
    made.close()


def reset(bench: Bench, offsets: dict[MessageQueue, int]) -> Command:
    header = ResetOffsetRequestHeader(topic="T", group="g", timestamp=0, is_force=True)
    body = encode(ResetOffsetBody(offset_table=offsets))
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    return bench.must(Command.request(code, header, body=body))


def test_members_receive_exactly_these_offsets(bench: Bench) -> None:
    bench.subscribe("g", "T")
    offsets = {MessageQueue("T", "broker-a", 1): 7}
    answer = reset(bench, offsets)
    assert decode(ResetOffsetBody, answer.body).offset_table == offsets
    sent = [
        command
        for command in bench.connection.pushed
        if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    ]
    assert [decode(ResetOffsetBody, command.body).offset_table for command in sent] == [offsets]


def test_without_members_the_answer_is_not_online(bench: Bench) -> None:
    answer = reset(bench, {MessageQueue("T", "broker-a", 1): 7})
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE


@pytest.mark.parametrize(
    "offsets",
    [
        {MessageQueue("T", "broker-a", 0): -1},
        {MessageQueue("T", "broker-b", 0): 1},
        {MessageQueue("Other", "broker-a", 0): 1},
    ],
)
def test_queues_of_another_topic_or_broker_are_refused(
    bench: Bench, offsets: dict[MessageQueue, int]
) -> None:
    bench.subscribe("g", "T")
    answer = reset(bench, offsets)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "can't be reset" in (answer.remark or "")
