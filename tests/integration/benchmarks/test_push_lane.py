"""Our side of the push consumer benchmark, against a broker."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

import client
from benchmarks.push import QUEUES
from benchmarks.tools import run
from pocketmq import testing

LANE = [sys.executable, "-m", "benchmarks.push_lane"]


@pytest.fixture(scope="module")
def nameserver() -> Iterator[str]:
    with testing.broker() as server:
        yield server.nameserver


async def fill(nameserver: str, topic: str, messages: int) -> None:
    async with client.Admin(nameserver) as admin:
        await admin.create_topic(topic, queues=QUEUES)
    async with client.Producer(nameserver) as producer:
        await producer.send_many([client.Message(topic, b"x" * 100) for _ in range(messages)])


@pytest.mark.parametrize(("mode", "batch"), [("concurrent", 1), ("orderly", 1), ("concurrent", 32)])
async def test_every_message_is_handled_once(nameserver: str, mode: str, batch: int) -> None:
    warm, counted = f"{mode}-{batch}-warm", f"{mode}-{batch}"
    await fill(nameserver, warm, 100)
    await fill(nameserver, counted, 1000)
    words = [*LANE, mode, nameserver, counted, str(batch), warm, "100", counted, "1000"]
    figures = run(words, 60.0)
    assert (figures["n"], figures["extra"]) == (1000, 0)
    assert figures["per_s"] > 0
    assert figures["cpu_us_per"] > 0


async def test_latencies_are_those_of_all_that_count(nameserver: str) -> None:
    async with client.Admin(nameserver) as admin:
        await admin.create_topic("paced", queues=QUEUES)
    figures = run([*LANE, "deliver", nameserver, "paced", "paced", "1024", "200", "0.5", "0.2"], 60)
    assert (figures["n"], figures["extra"]) == (100, 0)
    assert 0 < figures["p50_us"] <= figures["p99_us"]
