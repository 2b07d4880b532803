"""Members that join or leave together are one change: who is notified how often."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from broker.group_monitor import NOTIFIED_AT_ONCE, NOTIFY_SECONDS, GroupMonitor, GroupNotifier
from tests.unit.broker.harness import Bench, FakeConnection


class Turns:
    """A loop whose iterations the test runs."""

    def __init__(self, bench: Bench, monitor: Any) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []
        self.bench = bench
        self.notifier = GroupNotifier(bench.state, monitor, lambda *call: self.waiting.append(call))

    def turn(self) -> float:
        """Run what is scheduled next; return the seconds until then."""
        ((delay, action),) = self.waiting
        self.waiting.clear()
        self.bench.clock.advance(delay)
        action()
        return delay

    def all(self) -> int:
        """Run until nothing is scheduled; return the number of iterations."""
        turns = 0
        while self.waiting:
            self.turn()
            turns += 1
        return turns


@pytest.fixture
def turns(bench: Bench) -> Turns:
    return Turns(bench, GroupMonitor(bench.state))


def members(bench: Bench, count: int, group: str = "g") -> list[FakeConnection]:
    """Members that have been notified of each other."""
    bench.state.groups.find(group, 1).notify_consumer_ids_changed_enable = False
    found = [FakeConnection(port) for port in range(1000, 1000 + count)]
    for connection in found:
        bench.subscribe(group, "T", connection=connection)
    bench.state.groups.find(group, 1).notify_consumer_ids_changed_enable = True
    return found


def leave(bench: Bench, turns: Turns, gone: list[FakeConnection]) -> None:
    for connection in gone:
        for group in bench.state.consumers.closed(connection):
            turns.notifier.changed(group, left=True)


def notified(connections: list[FakeConnection]) -> int:
    count = sum(len(connection.pushed) for connection in connections)
    for connection in connections:
        connection.pushed.clear()
    return count


def test_members_that_leave_together_are_one_change(bench, turns):
    everybody = members(bench, 600)
    leave(bench, turns, everybody[:400])
    assert notified(everybody) == 0
    turns.all()
    assert [len(connection.pushed) for connection in everybody] == [0] * 400 + [1] * 200


def test_one_loop_iteration_notifies_a_bounded_number_of_members(bench, turns):
    everybody = members(bench, 2 * NOTIFIED_AT_ONCE)
    turns.notifier.changed("g")
    most = 0
    while turns.waiting:
        assert turns.turn() == 0
        most = max(most, notified(everybody))
    assert 0 < most <= NOTIFIED_AT_ONCE


def test_a_change_right_after_a_notification_is_notified_once_later(bench, turns):
    everybody = members(bench, 10)
    leave(bench, turns, everybody[:1])
    assert turns.turn() == 0
    assert notified(everybody) == 9
    leave(bench, turns, everybody[1:3])
    leave(bench, turns, everybody[3:5])
    assert turns.turn() == pytest.approx(NOTIFY_SECONDS)
    assert notified(everybody) == 5
    assert not turns.waiting


def test_a_change_during_notifications_is_notified_to_all_in_the_next_round(bench, turns):
    everybody = members(bench, 3 * NOTIFIED_AT_ONCE)
    leave(bench, turns, everybody[:1])
    turns.turn()
    leave(bench, turns, everybody[1:2])
    turns.all()
    assert all(len(connection.pushed) == 2 for connection in everybody[2:])


def test_conflicts_are_checked_once_per_round(bench):
    looks = []
    turns = Turns(bench, SimpleNamespace(check_conflicts=looks.append))
    everybody = members(bench, 50)
    leave(bench, turns, everybody[:40])
    turns.all()
    assert looks == ["g"]


def test_many_groups_are_checked_a_few_at_a_time(bench, turns):
    for n in range(3 * NOTIFIED_AT_ONCE):
        turns.notifier.changed(f"g{n}", left=True)
    assert turns.all() > 3
