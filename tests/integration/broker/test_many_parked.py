"""Many pulls that wait for the same moment are answered a few at a time, and none is forgotten."""

from __future__ import annotations

import asyncio

import pytest

from broker import app
from broker.delivery.long_poll import ParkedPull
from broker.processors.pull import PullProcessor
from tests.integration.broker.client import bodies

PULLS = 20
AT_ONCE = 3


@pytest.fixture
def portions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many were woken each time."""
    monkeypatch.setattr(app, "WOKEN_AT_ONCE", AT_ONCE)
    seen: list[int] = []
    wake = PullProcessor.wake

    def watched(self: PullProcessor, pulls: list[ParkedPull]) -> None:
        seen.append(len(pulls))
        wake(self, pulls)

    monkeypatch.setattr(PullProcessor, "wake", watched)
    return seen


async def test_a_message_that_many_wait_for_reaches_all_of_them(broker, connect, portions):
    client = await connect(broker)
    await client.send()
    held = [await client.hold() for _ in range(PULLS)]
    await client.send(body=b"news")
    answers = await asyncio.wait_for(asyncio.gather(*held), 10)
    assert [bodies(answer) for answer in answers] == [[b"news"]] * PULLS
    assert sum(portions) == PULLS
    assert max(portions) == AT_ONCE


async def test_a_stop_answers_those_whose_turn_had_not_come(broker, connect, portions):
    client = await connect(broker)
    await client.send()
    held = [await client.hold() for _ in range(PULLS)]
    other = await connect(broker)
    news = other.send(body=b"news")
    await asyncio.gather(news, broker.stop(), return_exceptions=True)
    answers = await asyncio.wait_for(asyncio.gather(*held), 10)
    assert {answer.code for answer in answers} <= {0, 19}
    assert sum(portions) == PULLS
