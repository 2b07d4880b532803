"""Questions about old messages: what only the disk has is read in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.processors import offload as patience
from broker.store import cold_reads
from broker.store import queries as lookups
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.stats import TopicStatsTable
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import TopicRequestHeader
from remoting.protocol.headers.pull import (
    OffsetResponseHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
)
from tests.unit.broker.harness import Bench, answer_of
from tests.unit.broker.store.test_cold_reads import SlowFiles

MESSAGES = 100
BORN = 1_700_000_000_000


@pytest.fixture
def disk() -> SlowFiles:
    return SlowFiles()


@pytest.fixture
def bench(tmp_path: Path, disk: SlowFiles, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A broker whose messages, a second apart, are on the disk alone."""
    monkeypatch.setattr(lookups, "HOT_LOG_BYTES", 0)
    monkeypatch.setattr(lookups, "HOT_QUEUE_ENTRIES", 0)
    before = Bench(tmp_path)
    before.topic("old")
    for _ in range(MESSAGES):
        before.clock.advance(1.0)
        before.send("old")
    before.close()
    bench = Bench(tmp_path, files=disk)
    bench.topic("old")
    disk.cold = True
    yield bench
    disk.let.set()
    bench.close()


def found(answer: Command | None) -> int:
    """The offset that a search found."""
    assert answer is not None
    header = answer.header
    assert isinstance(header, OffsetResponseHeader)
    return header.offset


def search(bench: Bench, number: int) -> Command:
    moment = bench.store.store_time_at("old", 0, number)
    header = SearchOffsetRequestHeader(topic="old", queue_id=0, timestamp=moment)
    return Command.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)


async def test_a_search_by_time_reads_in_a_thread(bench: Bench, disk: SlowFiles) -> None:
    assert found(await answer_of(bench, search(bench, 63))) == 63
    assert disk.fetched
    assert all("cold" in name for name in disk.threads), disk.threads


async def test_what_is_in_memory_is_answered_at_once(bench: Bench, disk: SlowFiles) -> None:
    disk.cold = False
    connection: Any = bench.connection
    answer = bench.dispatch(search(bench, 63), connection)
    assert isinstance(answer, Command)
    assert disk.fetched == []


@pytest.mark.parametrize(
    ("code", "header"),
    [
        (
            RequestCode.GET_EARLIEST_MSG_STORETIME,
            QueueRequestHeader(topic="old", queue_id=0),
        ),
        (RequestCode.GET_TOPIC_STATS_INFO, TopicRequestHeader(topic="old")),
        (RequestCode.GET_BROKER_RUNTIME_INFO, None),
    ],
)
async def test_other_questions_too(bench: Bench, disk: SlowFiles, code: int, header: Any) -> None:
    disk.cold = False
    known = await answer_of(bench, Command.request(code, header))
    disk.cold = True
    bench.clock.advance(2.0)
    answer = await answer_of(bench, Command.request(code, header))
    assert known is not None
    assert answer is not None
    assert (answer.code, answer.header, disk.fetched != []) == (0, known.header, True)
    if code == RequestCode.GET_TOPIC_STATS_INFO:
        assert decode(TopicStatsTable, answer.body) == decode(TopicStatsTable, known.body)


async def test_a_disk_that_forgets_what_it_read_is_waited_for_in_the_end(
    bench: Bench, disk: SlowFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "MAX_READS", 3)
    monkeypatch.setattr(
        "broker.store.page_cache.PageCacheTracker.fetched", lambda *_: disk.fetched.clear()
    )
    assert found(await answer_of(bench, search(bench, 63))) == 63


async def test_when_too_many_wait_the_broker_is_busy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reads, "MAX_COLD_READS", 0)
    answer = await answer_of(bench, search(bench, 63))
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_BUSY
