"""Parts of the metrics: request times, loop stalls and memory."""

from __future__ import annotations

import asyncio
import os
import time
from typing import cast

import pytest

from pocketmq.server.process import (
    LATENCY_BUCKETS,
    OTHER,
    PERIOD,
    STALL_BUCKETS,
    Durations,
    LoopMonitor,
    RequestTimes,
    private_megabytes,
)
from remoting.connection import Connection
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command

NOBODY = cast(Connection, None)


def test_a_handler_is_measured_by_its_requests_family() -> None:
    times = RequestTimes()
    handler = times.around(lambda command, _: command.reply())
    for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, 9999):
        handler(Command.request(code), NOBODY)
    assert {name: sum(family.buckets) for name, family in times.families.items()} == {
        "send": 2,
        OTHER: 1,
    }


def test_a_handler_that_fails_is_measured_and_fails() -> None:
    def broken(command: Command, connection: Connection) -> Command:
        raise ValueError("no")

    times = RequestTimes()
    with pytest.raises(ValueError, match="no"):
        times.around(broken)(Command.request(RequestCode.PULL_MESSAGE), NOBODY)
    assert sum(times.families["pull"].buckets) == 1


def test_a_time_on_a_bound_is_within_it() -> None:
    times = Durations(LATENCY_BUCKETS)
    times.count(LATENCY_BUCKETS[2])
    times.count(LATENCY_BUCKETS[-1] + 1)
    assert times.buckets[2] == 1
    assert times.buckets[-1] == 1


def test_a_timer_that_is_early_counts_as_punctual() -> None:
    stalls = Durations(STALL_BUCKETS)
    stalls.count(-0.001)
    assert stalls.buckets[0] == 1
    assert stalls.total == stalls.longest == 0.0


async def test_a_busy_loop_is_noticed() -> None:
    monitor = LoopMonitor()
    monitor.start()
    await asyncio.sleep(0)
    time.sleep(PERIOD + 0.6)  # noqa: ASYNC251 - the stall itself
    await asyncio.sleep(PERIOD)
    monitor.stop()
    monitor.stop()
    assert monitor.stalls.longest >= 0.59
    assert sum(monitor.stalls.buckets[STALL_BUCKETS.index(0.5) + 1 :]) == 1


def test_memory_is_known_of_processes_that_are_there() -> None:
    assert private_megabytes(2**22 + 1) == 0
    assert private_megabytes(os.getpid()) > 1
