"""One timer serves many alarms."""

from __future__ import annotations

import asyncio
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from remoting.deadlines import TICK_SECONDS, Alarm, Alarms, Wheel
from remoting.runtime.clock import SystemClock
from tests.support.clock import ManualClock


@given(st.lists(st.floats(min_value=0, max_value=500), max_size=30))
def test_every_alarm_fires_once_never_early_and_at_most_one_tick_late(times: list[float]) -> None:
    wheel, rung = Wheel(), []
    alarms = {Alarm(lambda: None): when for when in times}
    for alarm, when in alarms.items():
        wheel.set(alarm, when)
    while (now := wheel.next_at()) is not None:
        for alarm in wheel.due(now):
            rung.append(alarm)
            assert -1e-9 <= now - alarms[alarm] <= TICK_SECONDS + 1e-9
    assert len(rung) == len(set(rung)) == len(alarms)


def test_a_moved_alarm_fires_at_its_new_time_only() -> None:
    wheel, alarm = Wheel(), Alarm(lambda: None)
    wheel.set(alarm, 5)
    wheel.set(alarm, 5)
    wheel.set(alarm, 2)
    assert wheel.due(3) == [alarm]
    assert wheel.due(9) == []


def test_a_cleared_alarm_does_not_fire_and_needs_no_timer() -> None:
    wheel, alarm = Wheel(), Alarm(lambda: None)
    wheel.set(alarm, 5)
    wheel.clear(alarm)
    wheel.clear(alarm)
    assert wheel.next_at() is None
    assert wheel.due(9) == []


async def test_alarms_fire_in_order() -> None:
    alarms, rung = Alarms(SystemClock()), []
    done = asyncio.Event()
    now = SystemClock().monotonic()
    alarms.set(Alarm(done.set), now + 0.06)
    alarms.set(Alarm(partial(rung.append, "second")), now + 0.04)
    alarms.set(Alarm(partial(rung.append, "first")), now + 0.02)
    await done.wait()
    assert rung == ["first", "second"]
    alarms.close()


async def test_an_alarm_may_set_itself_again() -> None:
    clock = ManualClock(monotonic=10)
    alarms, rung = Alarms(clock), []

    def again() -> None:
        rung.append(clock.monotonic())
        alarms.set(alarm, clock.monotonic() + 1)

    alarm = Alarm(again)
    alarms.set(alarm, 11)
    for _ in range(3):
        clock.advance(1)
        alarms.ring_due()
    assert rung == [11, 12, 13]
    alarms.close()
    alarms.close()


async def test_a_failing_alarm_does_not_stop_the_others() -> None:
    clock = ManualClock(monotonic=10)
    alarms, rung = Alarms(clock), []

    def fail() -> None:
        raise ValueError("no")

    alarms.set(Alarm(fail), 11)
    alarms.set(Alarm(partial(rung.append, 1)), 11)
    alarms.set(Alarm(partial(rung.append, 2)), 12)
    clock.advance(2)
    alarms.ring_due()
    assert rung == [1, 2]
