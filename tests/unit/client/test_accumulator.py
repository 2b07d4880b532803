"""Which messages leave together, and when: as a state machine under arbitrary events."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from client.producer.accumulator import Accumulator, Batch
from client.producer.outgoing import Outgoing
from remoting.protocol.queue import MessageQueue

QUEUES = [MessageQueue("T", "a", number) for number in range(3)]


def made(
    *, linger: float = 0.0, messages: int = 5, size: int = 1000, bound: int = 100
) -> Accumulator:
    return Accumulator(
        linger=linger,
        max_batch_messages=messages,
        max_batch_bytes=size,
        max_messages=bound,
        max_bytes=100_000,
    )


def item(number: int = 0, *, queue: MessageQueue | None = None, body: int = 10) -> Outgoing:
    outgoing = Outgoing("T", bytes(body), "", str(number))
    outgoing.deadline = math.inf
    if queue is not None:
        outgoing.lane = queue
    return outgoing


def add(accumulator: Accumulator, outgoing: Outgoing, now: float = 0.0, spread: int = 1) -> bool:
    accumulator.reserve(1, outgoing.size)
    return accumulator.add(outgoing, now, spread=spread)


def ids(batches: list[Batch]) -> list[list[int]]:
    return [[int(one.id) for one in batch.items] for batch in batches]


def test_messages_of_one_turn_leave_as_one_batch():
    accumulator = made()
    for number in range(3):
        add(accumulator, item(number))
    assert ids(accumulator.take(0.0)) == [[0, 1, 2]]
    assert accumulator.take(0.0) == []


def test_a_batch_is_cut_at_its_number_of_messages():
    accumulator = made(messages=2)
    for number in range(5):
        add(accumulator, item(number, queue=QUEUES[0]))
    [batch] = accumulator.take(0.0)
    assert len(batch.items) == 2


def test_a_batch_is_cut_at_its_bytes_but_holds_at_least_one_message():
    accumulator = made(size=100)
    for number, body in enumerate([40, 40, 500, 10]):
        add(accumulator, item(number, body=body, queue=QUEUES[0]))
    taken = []
    while batches := accumulator.take(0.0):
        taken += ids(batches)
        accumulator.finished(batches[0])
    assert taken == [[0], [1], [2], [3]]


def test_a_burst_is_spread_over_the_queues_in_batches_worth_their_while():
    accumulator = made(messages=1000, size=10**6, bound=10**4)
    for number in range(2400):
        add(accumulator, item(number), spread=4)
    assert [batch.count for batch in accumulator.take(0.0)] == [600] * 4
    for number in range(300):
        add(accumulator, item(number), spread=50)
    assert [batch.count for batch in accumulator.take(0.0)] == [256, 44]


def test_linger_waits_for_company_and_a_full_batch_does_not():
    accumulator = made(linger=0.5, messages=2)
    assert not add(accumulator, item(0), now=1.0)
    assert accumulator.take(1.4) == []
    assert accumulator.next_take() == 1.5
    assert ids(accumulator.take(1.5)) == [[0]]
    add(accumulator, item(1), now=2.0)
    assert add(accumulator, item(2), now=2.0)
    assert ids(accumulator.take(2.0)) == [[1, 2]]


def test_flushing_does_not_wait_for_linger():
    accumulator = made(linger=5.0)
    add(accumulator, item(0))
    assert ids(accumulator.take(0.0, everything=True)) == [[0]]


def test_a_queue_has_one_batch_in_flight_and_free_messages_have_many():
    accumulator = made(messages=1)
    for number in range(2):
        add(accumulator, item(number, queue=QUEUES[0]))
        add(accumulator, item(10 + number))
    first = accumulator.take(0.0)
    assert sorted(ids(first)) == [[0], [10], [11]]
    assert accumulator.take(0.0) == []
    ordered = next(batch for batch in first if batch.queue is not None)
    assert accumulator.finished(ordered)
    assert ids(accumulator.take(0.0)) == [[1]]


def test_a_blocked_lane_asks_to_be_looked_at_when_its_first_message_expires():
    accumulator = made(messages=1)
    add(accumulator, item(0, queue=QUEUES[0]))
    accumulator.take(0.0)
    late = item(1, queue=QUEUES[0])
    late.deadline = 3.0
    add(accumulator, late)
    assert accumulator.next_take() == 3.0
    assert accumulator.expire(2.9) == []
    assert accumulator.expire(3.0) == [late]
    assert accumulator.messages == 1
    assert not accumulator.waiting


def test_what_must_be_alone_is_alone_and_keeps_its_place():
    accumulator = made()
    for number in range(4):
        outgoing = item(number, queue=QUEUES[0])
        outgoing.alone = number == 2
        add(accumulator, outgoing)
    taken = []
    while batches := accumulator.take(0.0):
        taken += ids(batches)
        accumulator.finished(batches[0])
    assert taken == [[0, 1], [2], [3]]


def test_a_group_leaves_as_exactly_one_batch():
    accumulator = made(messages=2)
    group = object()
    for number in range(6):
        outgoing = item(number)
        outgoing.group = group if 1 <= number <= 4 else None
        add(accumulator, outgoing)
    assert ids(accumulator.take(0.0)) == [[0], [1, 2, 3, 4], [5]]


def test_room_is_bounded_and_one_message_of_any_size_fits_when_nothing_is_in_flight():
    accumulator = made(bound=2)
    assert accumulator.has_room(1, 10**9)
    accumulator.reserve(1, 10)
    assert accumulator.has_room(1, 10)
    assert not accumulator.has_room(2, 10)
    assert not accumulator.has_room(1, 10**9)
    accumulator.release(1, 10)
    assert accumulator.messages == accumulator.bytes == 0


class Traffic(RuleBasedStateMachine):
    """Any order of adding, taking, finishing and expiring."""

    def __init__(self) -> None:
        super().__init__()
        self.accumulator = made(linger=1.0, messages=4, size=200, bound=30)
        self.now = 0.0
        self.number = 0
        self.sent: dict[object, list[int]] = {}
        self.left: dict[object, list[int]] = {}
        self.flying: list[Batch] = []
        self.gone: set[int] = set()

    @rule(
        lane=st.sampled_from([None, *QUEUES]),
        body=st.integers(1, 150),
        alone=st.booleans(),
        patience=st.sampled_from([0.5, 5.0, math.inf]),
    )
    def send(self, lane: MessageQueue | None, body: int, alone: bool, patience: float) -> None:
        outgoing = item(self.number, queue=lane, body=body)
        outgoing.alone = alone
        outgoing.deadline = self.now + patience
        if not self.accumulator.has_room(1, outgoing.size):
            return
        add(self.accumulator, outgoing, self.now, spread=2)
        self.sent.setdefault(outgoing.lane, []).append(self.number)
        self.number += 1

    @rule(everything=st.booleans())
    def take(self, everything: bool) -> None:
        for batch in self.accumulator.take(self.now, everything=everything):
            key = batch.queue or "T"
            numbers = [int(one.id) for one in batch.items]
            self.left.setdefault(key, []).extend(numbers)
            self.flying.append(batch)
            assert batch.size == sum(one.size for one in batch.items)
            assert len(numbers) == 1 or (batch.size <= 200 and len(numbers) <= 4)
            assert len(numbers) == 1 or not any(one.alone for one in batch.items)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        batch = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        self.accumulator.finished(batch)

    @rule(seconds=st.sampled_from([0.3, 1.0, 4.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for outgoing in self.accumulator.expire(self.now):
            assert outgoing.deadline <= self.now
            self.gone.add(int(outgoing.id))

    @invariant()
    def order_is_kept_and_nothing_is_doubled(self) -> None:
        for key, left in self.left.items():
            assert left == [n for n in self.sent[key] if n in set(left)]
            assert len(left) == len(set(left))
            assert not self.gone & set(left)

    @invariant()
    def one_batch_per_queue_flies(self) -> None:
        ordered = [batch.queue for batch in self.flying if batch.queue is not None]
        assert len(ordered) == len(set(ordered))

    @invariant()
    def bounds_count_what_is_here(self) -> None:
        settled = sum(map(len, self.left.values())) - sum(len(b.items) for b in self.flying)
        assert self.accumulator.messages == self.number - settled - len(self.gone)
        assert self.accumulator.messages <= 30

    def teardown(self) -> None:
        """In the end everything has left or expired, and nothing is remembered."""
        while self.flying or self.accumulator.waiting:
            for batch in self.flying:
                self.accumulator.finished(batch)
            self.flying.clear()
            self.take(everything=True)
        everything = {n for numbers in self.sent.values() for n in numbers}
        assert {n for left in self.left.values() for n in left} | self.gone == everything
        assert self.accumulator.messages == self.accumulator.bytes == 0
        assert self.accumulator.next_take() is None


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.sampled_from([None, *QUEUES]), st.integers(1, 90)), max_size=60))
def test_every_message_leaves_once_in_the_order_of_its_lane(
    sends: list[tuple[MessageQueue | None, int]],
) -> None:
    accumulator = made(messages=7, size=300, bound=1000)
    for number, (lane, body) in enumerate(sends):
        add(accumulator, item(number, queue=lane, body=body))
    left: list[int] = []
    while batches := accumulator.take(0.0):
        for batch in batches:
            left += [int(one.id) for one in batch.items]
            accumulator.finished(batch)
    assert sorted(left) == list(range(len(sends)))
    for lane in (None, *QUEUES):
        mine = [n for n in left if sends[n][0] == lane]
        assert mine == sorted(mine)
