"""Parts of the metrics: request times, loop stalls, and the demo's figures and checks."""

from __future__ import annotations

import asyncio
import os
import time
from typing import cast

import pytest

from pocketmq.cli.demo import quantile
from pocketmq.flights import Sum, differences
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


def test_quantiles_are_values_that_were_measured() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert quantile([], 0.5) == 0.0


def test_memory_is_known_of_processes_that_are_there() -> None:
    assert private_megabytes(2**22 + 1) == 0
    assert private_megabytes(os.getpid()) > 1


def made_of(*bodies: tuple[str, bytes]) -> Sum:
    total = Sum()
    for destination, body in bodies:
        total.add(destination, body)
    return total


def test_the_same_bodies_in_the_order_of_each_destination_are_equal() -> None:
    sent = made_of(("IAH", b"1"), ("MIA", b"2"), ("IAH", b"3"))
    assert differences(sent, made_of(("MIA", b"2"), ("IAH", b"1"), ("IAH", b"3"))) == []


def test_a_lost_a_changed_and_a_swapped_message_are_found() -> None:
    sent = made_of(("IAH", b"1"), ("IAH", b"3"))
    assert "2 messages were sent, 1 received" in differences(sent, made_of(("IAH", b"1")))[0]
    assert "checksum" in differences(sent, made_of(("IAH", b"1"), ("IAH", b"4")))[0]
    swapped = differences(sent, made_of(("IAH", b"3"), ("IAH", b"1")))
    assert swapped == ["the order differs for 1 destinations: IAH"]
