"""The clock of a producer's deadlines stops while the event loop is blocked."""

from __future__ import annotations

from client.producer.sender import DeadlineClock
from tests.support.clock import ManualClock


def test_a_stall_is_not_counted_and_a_short_wait_is() -> None:
    clock = ManualClock(monotonic=100.0)
    deadlines = DeadlineClock(clock.monotonic)
    clock.advance(0.2)
    deadlines.exclude_stall(100.0)
    assert deadlines.now() == clock.monotonic()
    clock.advance(5.0)
    deadlines.exclude_stall(100.0)
    assert deadlines.now() == 100.0
    assert deadlines.on_loop(deadlines.now()) == clock.monotonic()


def test_a_stall_that_several_notice_counts_once() -> None:
    clock = ManualClock(monotonic=100.0)
    deadlines = DeadlineClock(clock.monotonic)
    clock.advance(8.0)
    deadlines.exclude_stall(104.0)
    assert deadlines.now() == 104.0
    deadlines.exclude_stall(101.0)
    deadlines.exclude_stall(103.0)
    assert deadlines.now() == 101.0
    clock.advance(0.1)
    deadlines.exclude_stall(101.0)
    assert deadlines.now() == 101.0


def test_every_stall_is_excluded() -> None:
    clock = ManualClock(monotonic=100.0)
    deadlines = DeadlineClock(clock.monotonic)
    clock.advance(2.0)
    deadlines.exclude_stall(100.0)
    clock.advance(10.0)
    deadlines.exclude_stall(111.0)
    assert deadlines.now() == 109.0
