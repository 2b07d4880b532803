"""Requests for old messages: what is only on disk is read in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.limits import BrokerLimits
from broker.store.limits import StoreLimits
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
COLD = StoreLimits(hot_log_bytes=0, hot_queue_entries=0)


@pytest.fixture
def disk() -> SlowFiles:
    return SlowFiles()


@pytest.fixture
def cold_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Creates a broker whose messages, a second apart, are only on disk."""
    before = Bench(tmp_path)
    before.topic("old")
    for _ in range(MESSAGES):
        before.clock.advance(1.0)
        before.send("old")
    before.close()
    made: list[tuple[Bench, SlowFiles]] = []

    def make(disk: SlowFiles, **settings: Any) -> Bench:
        bench = Bench(tmp_path, files=disk, **{"store_limits": COLD, **settings})
        bench.topic("old")
        disk.cold = True
        made.append((bench, disk))
        return bench

    yield make
    for bench, disk in made:
        disk.let.set()
        bench.close()


@pytest.fixture
def bench(cold_bench: Callable[..., Bench], disk: SlowFiles) -> Bench:
    return cold_bench(disk)


def found(answer: Command | None) -> int:
    """Return the offset that a search found."""
    assert answer is not None
    header = answer.header
    assert isinstance(header, OffsetResponseHeader)
    return header.offset


def search(bench: Bench, number: int) -> Command:
    moment = bench.store.queries.store_time_at("old", 0, number)
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
async def test_other_requests_for_old_messages_read_in_a_thread(
    bench: Bench, disk: SlowFiles, code: int, header: Any
) -> None:
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


class ForgetfulFiles(SlowFiles):
    """A disk whose pages leave memory as soon as they are read."""

    def fetch(self, path: Path, start: int, end: int) -> None:
        super().fetch(path, start, end)
        self.fetched.clear()


async def test_a_read_whose_pages_are_evicted_again_blocks_in_the_end(
    cold_bench: Callable[..., Bench],
) -> None:
    bench = cold_bench(ForgetfulFiles(), limits=BrokerLimits(reads_per_request=3))
    assert found(await answer_of(bench, search(bench, 63))) == 63


async def test_when_too_many_wait_the_broker_is_busy(
    cold_bench: Callable[..., Bench], disk: SlowFiles
) -> None:
    bench = cold_bench(disk, store_limits=replace(COLD, max_cold_reads=0))
    answer = await answer_of(bench, search(bench, 63))
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_BUSY
