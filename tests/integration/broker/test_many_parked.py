"""Many pulls that wait for one message are answered in portions, and none is forgotten."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from broker.app import Broker
from broker.limits import BrokerLimits
from tests.integration.broker.client import bodies

PULLS = 20
AT_ONCE = 3


@pytest.fixture
async def broker(make_broker) -> Broker:
    """A broker that wakes few pulls at a time."""
    made = make_broker(limits=BrokerLimits(woken_at_once=AT_ONCE))
    await made.start()
    return made


async def test_a_message_that_many_wait_for_reaches_all_of_them(broker, connect):
    client = await connect(broker)
    await client.send()
    held = [await client.hold() for _ in range(PULLS)]
    await client.send(body=b"news")
    found: list[int] = []
    while not found or found[-1] < PULLS:
        # Of this loop's turns, each of which wakes some.
        await asyncio.sleep(0)
        found.append(broker.state.counters.messages_pulled)
    assert max(after - before for before, after in pairwise(found)) <= AT_ONCE
    answers = await asyncio.wait_for(asyncio.gather(*held), 10)
    assert [bodies(answer) for answer in answers] == [[b"news"]] * PULLS


async def test_a_stop_answers_pulls_that_still_wait(broker, connect):
    client = await connect(broker)
    await client.send()
    held = [await client.hold() for _ in range(PULLS)]
    other = await connect(broker)
    news = other.send(body=b"news")
    await asyncio.gather(news, broker.stop(), return_exceptions=True)
    answers = await asyncio.wait_for(asyncio.gather(*held), 10)
    assert {answer.code for answer in answers} <= {0, 19}
