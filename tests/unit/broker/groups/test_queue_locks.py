"""Queue locks: who holds which, until when."""

from __future__ import annotations

import pytest

from broker.errors import LimitReached
from broker.groups.queue_locks import LOCK_LIVE_MS, LockTable
from remoting.protocol.queue import MessageQueue

Q0, Q1, Q2 = (MessageQueue("T", "b", number) for number in range(3))


def test_free_queues_are_taken():
    locks = LockTable()
    assert locks.lock("g", "a", [Q0, Q1], 0) == [Q0, Q1]
    assert locks.owner("g", Q0, 0) == "a"


def test_queues_of_others_are_omitted():
    locks = LockTable()
    locks.lock("g", "a", [Q0], 0)
    assert locks.lock("g", "b", [Q0, Q1], 1) == [Q1]


def test_a_lock_is_taken_by_force():
    locks = LockTable()
    locks.lock("g", "a", [Q0], 0)
    assert locks.lock("g", "b", [Q0, Q1], 1, by_force=True) == [Q0, Q1]
    assert locks.lock("g", "a", [Q0], 2) == []
    assert len(locks) == 2


def test_groups_lock_independently():
    locks = LockTable()
    locks.lock("g", "a", [Q0], 0)
    assert locks.lock("h", "b", [Q0], 0) == [Q0]


def test_locks_age_though_the_clock_stands_still():
    locks = LockTable()
    locks.lock("g", "a", [Q0], 0)
    locks.age(LOCK_LIVE_MS)
    assert locks.owner("g", Q0, 0) == "a"
    locks.lock("g", "a", [Q1], 0)
    locks.age(1)
    assert (locks.owner("g", Q0, 0), locks.owner("g", Q1, 0)) == (None, "a")
    assert locks.lock("g", "b", [Q0, Q1], 0) == [Q0]


def test_a_lock_lasts_60_seconds_and_no_longer():
    locks = LockTable()
    locks.lock("g", "a", [Q0], 0)
    assert locks.lock("g", "b", [Q0], LOCK_LIVE_MS) == []
    assert locks.lock("g", "b", [Q0], LOCK_LIVE_MS + 1) == [Q0]
    assert locks.owner("g", Q0, LOCK_LIVE_MS + 1) == "b"


def test_locking_again_refreshes():
    locks = LockTable()
    locks.lock("g", "a", [Q0], 0)
    assert locks.lock("g", "a", [Q0], 50_000) == [Q0]
    assert locks.lock("g", "b", [Q0], 100_000) == []


def test_only_the_holder_unlocks():
    locks = LockTable()
    locks.lock("g", "a", [Q0, Q1], 0)
    locks.unlock("g", "b", [Q0])
    assert locks.owner("g", Q0, 0) == "a"
    locks.unlock("g", "a", [Q0, Q2])
    assert locks.owner("g", Q0, 0) is None
    assert len(locks) == 1


def test_unlocking_the_last_one_forgets_the_group():
    locks = LockTable()
    locks.lock("g", "a", [Q0], 0)
    locks.unlock("g", "a", [Q0])
    locks.unlock("unknown", "a", [Q0])
    assert len(locks) == 0
    assert locks.saved().lock_table == {}


def test_a_sweep_removes_expired_locks():
    locks = LockTable()
    locks.lock("g", "a", [Q0], 0)
    locks.lock("h", "a", [Q0, Q1], 40_000)
    assert locks.sweep(70_000) == 1
    assert len(locks) == 2


def test_a_full_table_refuses_until_locks_end():
    locks = LockTable(limit=2)
    locks.lock("g", "a", [Q0, Q1], 0)
    with pytest.raises(LimitReached, match="at most 2 queue locks"):
        locks.lock("g", "a", [Q2], 0)
    assert locks.lock("g", "a", [Q0], 1) == [Q0]
    assert locks.lock("g", "b", [Q2], LOCK_LIVE_MS + 2) == [Q2]
    assert len(locks) == 1


def test_a_closed_table_gives_no_queue_to_others_before_its_time():
    locks = LockTable()
    locks.lock("g", "a", [Q0], 0)
    locks.close(30_000)
    assert locks.lock("g", "b", [Q0, Q1], 29_999) == []
    assert locks.lock("g", "a", [Q0, Q1], 29_999) == [Q0]
    assert locks.lock("g", "b", [Q0, Q1], 30_000) == [Q1]


def test_locks_that_are_handed_over_keep_the_rest_of_their_time():
    before, after = LockTable(), LockTable()
    before.lock("g", "a", [Q0], 1_000)
    after.lock("g", "b", [Q0], 500_000)
    after.restore(before.saved(-21_000, at_stop=True), 500_000, -500_000)
    assert after.owner("g", Q0, 540_000) == "a"
    assert after.owner("g", Q0, 540_001) is None
