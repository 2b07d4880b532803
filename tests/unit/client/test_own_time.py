"""The clock of a producer's deadlines stops while the event loop is blocked."""

from __future__ import annotations

from client.producer.sender import OwnTime
from tests.clock import ManualClock


def test_a_stall_is_not_counted_and_a_short_wait_is() -> None:
    clock = ManualClock(monotonic=100.0)
    own = OwnTime(clock.monotonic)
    clock.advance(0.2)
    own.leave_out(100.0)
    assert own.now() == clock.monotonic()
    clock.advance(5.0)
    own.leave_out(100.0)
    assert own.now() == 100.0
    assert own.on_loop(own.now()) == clock.monotonic()


def test_a_stall_that_several_notice_counts_once() -> None:
    clock = ManualClock(monotonic=100.0)
    own = OwnTime(clock.monotonic)
    clock.advance(8.0)
    own.leave_out(104.0)
    assert own.now() == 104.0
    own.leave_out(101.0)
    own.leave_out(103.0)
    assert own.now() == 101.0
    clock.advance(0.1)
    own.leave_out(101.0)
    assert own.now() == 101.0


def test_every_stall_is_excluded() -> None:
    clock = ManualClock(monotonic=100.0)
    own = OwnTime(clock.monotonic)
    clock.advance(2.0)
    own.leave_out(100.0)
    clock.advance(10.0)
    own.leave_out(111.0)
    assert own.now() == 109.0
