"""The loop does not sleep while single requests follow each other closely."""

from __future__ import annotations

import asyncio
import os

import pytest

from remoting.busy_poll import (
    ENOUGH,
    FIRST_PAUSE_SECONDS,
    LAST_PAUSE_SECONDS,
    POLL_SECONDS,
    TAKEN_SECONDS,
    BusyPoll,
    can_poll,
)
from remoting.clock import ManualClock

AT_ONCE = POLL_SECONDS / 2
LATER = 2 * POLL_SECONDS
WORK = 20e-6


class Peer:
    """Sends requests to a loop that has a busy poll."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.poll = BusyPoll(self.clock.monotonic)
        self.frames = 0

    def send(self, *, after: float, frames: int = 1, answered: bool = True) -> None:
        """A read, its work and its answer."""
        self.clock.advance(after)
        came = self.clock.monotonic()
        self.clock.advance(WORK)
        self.frames += frames
        self.poll.worked(came, self.clock.monotonic() if answered else came - 1, self.frames)

    def send_many(self, count: int = 2 * ENOUGH, *, after: float = AT_ONCE) -> None:
        for _ in range(count):
            self.send(after=after)

    async def turn(self) -> None:
        """One turn of the loop."""
        await asyncio.sleep(0)


async def test_it_begins_when_enough_single_requests_came_at_once() -> None:
    peer = Peer()
    peer.send_many(ENOUGH)
    assert not peer.poll.polling
    peer.send_many(1)
    assert peer.poll.polling


async def test_it_ends_when_no_request_comes_any_more() -> None:
    peer = Peer()
    peer.send_many()
    await peer.turn()
    assert peer.poll.polling
    peer.clock.advance(POLL_SECONDS)
    await peer.turn()
    assert not peer.poll.polling


async def test_each_answer_prolongs_it() -> None:
    peer = Peer()
    peer.send_many()
    for _ in range(5):
        peer.send(after=AT_ONCE)
        await peer.turn()
        assert peer.poll.polling


async def test_after_a_late_request_it_goes_on() -> None:
    peer = Peer()
    peer.send_many(8 * ENOUGH)
    peer.clock.advance(LATER)
    await peer.turn()
    assert not peer.poll.polling
    peer.send(after=0)
    assert peer.poll.polling


async def test_requests_further_apart_leave_the_loop_to_sleep() -> None:
    peer = Peer()
    peer.send_many(8 * ENOUGH, after=LATER)
    assert not peer.poll.polling


async def test_a_send_and_the_pull_that_it_wakes_are_not_enough() -> None:
    peer = Peer()
    for _ in range(8 * ENOUGH):
        peer.send(after=LATER)
        peer.send(after=AT_ONCE)
    assert not peer.poll.polling


async def test_several_requests_at_a_time_leave_the_loop_to_sleep() -> None:
    peer = Peer()
    for _ in range(8 * ENOUGH):
        peer.send(after=AT_ONCE, frames=2)
    assert not peer.poll.polling


async def test_it_ends_at_once_when_the_peer_sends_several_at_a_time() -> None:
    peer = Peer()
    peer.send_many()
    for _ in range(5):
        peer.send(after=AT_ONCE, frames=2)
    await peer.turn()
    assert not peer.poll.polling


async def test_a_request_that_waits_for_its_answer_counts_neither_way() -> None:
    peer = Peer()
    for _ in range(2 * ENOUGH):
        peer.send(after=AT_ONCE)
        peer.send(after=AT_ONCE / 10, answered=False)
    assert peer.poll.polling


async def test_it_leaves_the_core_to_others_who_take_it() -> None:
    peer = Peer()
    peer.send_many()
    peer.clock.advance(TAKEN_SECONDS * 1.1)
    await peer.turn()
    assert not peer.poll.polling
    peer.send_many()
    assert not peer.poll.polling
    peer.clock.advance(FIRST_PAUSE_SECONDS)
    peer.send_many(2 * ENOUGH)
    assert peer.poll.polling


async def taken_again(peer: Peer) -> float:
    """How long it pauses when others take the core as soon as it polls again."""
    peer.clock.advance(max(0.0, peer.poll.not_before - peer.clock.monotonic()))
    peer.send_many()
    peer.clock.advance(TAKEN_SECONDS * 1.1)
    await peer.turn()
    return peer.poll.not_before - peer.clock.monotonic()


async def test_it_pauses_longer_and_longer_while_others_need_the_core() -> None:
    peer = Peer()
    pauses = [await taken_again(peer) for _ in range(12)]
    assert pauses[:3] == pytest.approx([FIRST_PAUSE_SECONDS * factor for factor in (1, 2, 4)])
    assert max(pauses) == pytest.approx(LAST_PAUSE_SECONDS)
    peer.clock.advance(10 * LAST_PAUSE_SECONDS)
    assert await taken_again(peer) == pytest.approx(FIRST_PAUSE_SECONDS)


@pytest.mark.parametrize(("cores", "expected"), [(1, False), (2, True)])
def test_a_process_with_one_core_does_not_poll(
    monkeypatch: pytest.MonkeyPatch, cores: int, expected: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert can_poll() is expected


@pytest.mark.parametrize(("cores", "expected"), [(None, False), (1, False), (2, True)])
def test_where_the_system_does_not_tell_its_cores_the_machines_count(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, expected: bool
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert can_poll() is expected
