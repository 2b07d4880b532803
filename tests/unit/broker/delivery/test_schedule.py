"""When what is due: single cases, and random events compared with a simple model."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.delivery.schedule import Schedule

LEVELS = (1000, 5000)
BEYOND = len(LEVELS) + 1
NOW = 1_000_000


def test_nothing_is_read_while_nothing_waits() -> None:
    schedule = Schedule(LEVELS)
    assert schedule.next_check(NOW) is None
    assert schedule.level_due(NOW) is None


def test_the_first_message_of_a_level_sets_the_time_the_others_do_not() -> None:
    schedule = Schedule(LEVELS)
    assert schedule.arrived(1, NOW + 1000, NOW)
    assert not schedule.arrived(1, NOW + 1001, NOW + 1)
    assert schedule.next_check(NOW + 1) == NOW + 1000
    assert schedule.level_due(NOW + 999) is None
    assert schedule.level_due(NOW + 1000) == 1


def test_only_an_earlier_check_needs_a_wake_up() -> None:
    schedule = Schedule(LEVELS)
    assert schedule.arrived(2, NOW + 5000, NOW)
    assert schedule.arrived(1, NOW + 1000, NOW)
    schedule.settle(1, NOW)
    schedule.settle(2, None)
    assert not schedule.arrived(2, NOW + 5000, NOW)


def test_levels_that_are_due_take_turns() -> None:
    schedule = Schedule(LEVELS)
    turns = []
    for level in (2, 1):
        schedule.settle(level, NOW)
    for _ in range(4):
        level = schedule.level_due(NOW)
        assert level is not None
        turns.append(level)
        schedule.settle(level, NOW)
    assert turns == [2, 1, 2, 1]


def test_messages_are_due_up_to_the_first_that_is_not() -> None:
    entries = [NOW - 5, NOW, NOW + 1, NOW - 1]
    assert Schedule(LEVELS).split(1, entries, NOW) == (2, NOW + 1)
    assert Schedule(LEVELS).split(1, entries[:2], NOW) == (2, None)


def test_a_message_further_off_than_its_level_is_long_is_due_at_once() -> None:
    schedule = Schedule(LEVELS)
    assert schedule.split(1, [NOW + 1001], NOW) == (1, None)
    assert schedule.split(1, [NOW + 1000], NOW) == (0, NOW + 1000)


def test_a_check_is_due_at_once_when_the_clock_was_set_back() -> None:
    schedule = Schedule(LEVELS)
    schedule.arrived(1, NOW + 1000, NOW)
    back = NOW - 3_600_000
    assert schedule.next_check(back) == back
    assert schedule.level_due(back) == 1


def test_a_level_missing_from_the_table_uses_the_times_in_its_entries() -> None:
    schedule = Schedule(LEVELS)
    assert schedule.split(BEYOND, [NOW + 9_000_000], NOW) == (0, NOW + 9_000_000)
    schedule.arrived(BEYOND, NOW + 9_000_000, NOW)
    assert schedule.next_check(NOW) == NOW + 9_000_000


def test_progress_outside_the_queue_is_moved_to_the_nearest_end() -> None:
    schedule = Schedule(LEVELS, {1: 3, 2: 90})
    assert (schedule.clamp(1, 5, 10), schedule.clamp(2, 0, 10)) == (5, 10)
    assert schedule.offsets == {1: 5, 2: 10}
    assert schedule.version == 2
    assert schedule.clamp(1, 0, 10) == 5
    assert schedule.version == 2


class Deliveries(RuleBasedStateMachine):
    """Sends, time, deliveries, refusals and restarts in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.queues: dict[int, list[int]] = {1: [], 2: [], BEYOND: []}
        self.delivered: dict[int, list[int]] = {level: [] for level in self.queues}
        self.latest = NOW
        self.saved: dict[int, int] = {}
        self.schedule = Schedule(LEVELS)

    def wait_of(self, level: int) -> int:
        return LEVELS[level - 1] if level <= len(LEVELS) else 7000

    @rule(level=st.sampled_from([1, 2, BEYOND]))
    def send(self, level: int) -> None:
        due = self.now + self.wait_of(level)
        self.queues[level].append(due)
        self.schedule.arrived(level, due, self.now)

    @rule(ms=st.integers(1, 8000))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        self.latest = max(self.latest, self.now)

    @rule(ms=st.integers(1, 100_000))
    def the_clock_is_set_back(self, ms: int) -> None:
        self.now -= ms

    @rule(window=st.integers(1, 3), refused_after=st.none() | st.integers(0, 5))
    def deliver(self, window: int, refused_after: int | None) -> None:
        """Deliver as the deliverer does, until nothing is due."""
        while (level := self.schedule.level_due(self.now)) is not None:
            queue = self.queues[level]
            offset = self.schedule.clamp(level, 0, len(queue))
            count, later = self.schedule.split(level, queue[offset : offset + window], self.now)
            if refused_after is not None and count > refused_after:
                self.take(level, offset, refused_after)
                self.schedule.settle(level, self.now + 1000)
                refused_after = 0
                continue
            self.take(level, offset, count)
            drained = offset + count == len(queue)
            self.schedule.settle(level, None if drained else self.now if later is None else later)

    def take(self, level: int, offset: int, count: int) -> None:
        for number in range(offset, offset + count):
            due = self.queues[level][number]
            assert due <= self.now or (
                level <= len(LEVELS) and due > self.now + LEVELS[level - 1]
            ), "delivered too early"
            self.delivered[level].append(number)
        self.schedule.advance(level, offset + count)

    @rule()
    def save(self) -> None:
        self.saved = self.schedule.offsets.copy()

    @rule(kept=st.booleans())
    def restart(self, kept: bool) -> None:
        """Restart the broker, after a clean stop or a kill."""
        offsets = self.schedule.offsets.copy() if kept else self.saved
        self.schedule = Schedule(LEVELS, offsets)
        for level, queue in self.queues.items():
            start = self.schedule.clamp(level, 0, len(queue))
            del self.delivered[level][start:]
            if start < len(queue):
                self.schedule.settle(level, self.now)
        self.saved = self.schedule.offsets.copy()

    @precondition(lambda self: any(self.queues.values()))
    @rule()
    def after_a_long_time_everything_is_delivered(self) -> None:
        last = max(max(queue, default=0) for queue in self.queues.values())
        self.latest = self.now = max(last, self.latest) + 1000
        self.deliver(window=2, refused_after=None)
        assert self.schedule.next_check(self.now) is None
        assert [len(self.delivered[level]) for level in self.queues] == [
            len(queue) for queue in self.queues.values()
        ]

    @invariant()
    def each_is_delivered_once_and_in_order(self) -> None:
        for level, numbers in self.delivered.items():
            assert numbers == list(range(self.schedule.offsets.get(level, 0)))

    @invariant()
    def whoever_waits_is_watched(self) -> None:
        for level, queue in self.queues.items():
            if self.schedule.offsets.get(level, 0) < len(queue):
                check = self.schedule.next_check(self.now)
                assert check is not None
                # A level missing from the table has no maximum delay.
                assert level == BEYOND or check <= self.now + self.wait_of(level)


TestDeliveries = Deliveries.TestCase
