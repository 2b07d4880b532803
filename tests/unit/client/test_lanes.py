"""Which messages are sent together, and when: a state machine under arbitrary events."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from client.producer.columns import ELEMENT_BYTES, MessageColumns
from client.producer.send_buffer import SendLanes
from remoting.protocol.queue import MessageQueue
from tests.support.sizes import size

QUEUES = [MessageQueue("T", "a", number) for number in range(3)]


def made(*, linger: float = 0.0, messages: int = 5, size: int = 1000) -> SendLanes:
    return SendLanes(linger=linger, max_batch_messages=messages, max_batch_bytes=size)


def item(number: int = 0, *, queue: MessageQueue | None = None, body: int = 10) -> MessageColumns:
    columns = MessageColumns("T", queue or "T", math.inf, 0)
    columns.bodies, columns.texts, columns.ids = [bytes(body)], [b""], [str(number)]
    columns.size = ELEMENT_BYTES + body
    return columns


def add(lanes: SendLanes, columns: MessageColumns, now: float = 0.0, spread: int = 1) -> bool:
    columns.spread = spread
    return lanes.add(columns, now)


def ids(requests: list[MessageColumns]) -> list[list[int]]:
    return [[int(one) for one in request.ids] for request in requests]


def test_messages_of_one_loop_iteration_are_sent_as_one_batch():
    lanes = made()
    for number in range(3):
        add(lanes, item(number))
    assert ids(lanes.take(0.0)) == [[0, 1, 2]]
    assert lanes.take(0.0) == []


def test_a_batch_is_cut_at_its_number_of_messages():
    lanes = made(messages=2)
    for number in range(5):
        add(lanes, item(number, queue=QUEUES[0]))
    [request] = lanes.take(0.0)
    assert request.count == 2


def test_a_batch_is_cut_at_its_bytes_but_holds_at_least_one_message():
    lanes = made(size=100)
    for number, body in enumerate([40, 40, 500, 10]):
        add(lanes, item(number, body=body, queue=QUEUES[0]))
    taken = []
    while requests := lanes.take(0.0):
        taken += ids(requests)
        lanes.finished(requests[0])
    assert taken == [[0], [1], [2], [3]]


def test_a_burst_is_spread_over_the_queues_in_batches_of_useful_size():
    lanes = made(messages=1000, size=10**6)
    for number in range(2400):
        add(lanes, item(number), spread=4)
    assert [request.count for request in lanes.take(0.0)] == [600] * 4
    for number in range(300):
        add(lanes, item(number), spread=50)
    assert [request.count for request in lanes.take(0.0)] == [256, 44]


def test_linger_waits_for_more_messages_and_a_full_batch_does_not():
    lanes = made(linger=0.5, messages=2)
    assert not add(lanes, item(0), now=1.0)
    assert lanes.take(1.4) == []
    assert lanes.next_take() == 1.5
    assert ids(lanes.take(1.5)) == [[0]]
    add(lanes, item(1), now=2.0)
    assert add(lanes, item(2), now=2.0)
    assert ids(lanes.take(2.0)) == [[1, 2]]


def test_flushing_does_not_wait_for_linger():
    lanes = made(linger=5.0)
    add(lanes, item(0))
    assert ids(lanes.take(0.0, everything=True)) == [[0]]


def test_a_queue_has_one_batch_in_flight_and_free_messages_have_many():
    lanes = made(messages=1)
    for number in range(2):
        add(lanes, item(number, queue=QUEUES[0]))
        add(lanes, item(10 + number))
    first = lanes.take(0.0)
    assert sorted(ids(first)) == [[0], [10], [11]]
    assert lanes.take(0.0) == []
    ordered = next(request for request in first if request.queue is not None)
    assert lanes.finished(ordered)
    assert ids(lanes.take(0.0)) == [[1]]


def test_a_blocked_lane_wakes_when_its_first_message_expires():
    lanes = made(messages=1)
    add(lanes, item(0, queue=QUEUES[0]))
    lanes.take(0.0)
    late = item(1, queue=QUEUES[0])
    late.deadline = 3.0
    add(lanes, late)
    assert lanes.next_take() == 3.0
    assert lanes.expire(2.9) == []
    assert lanes.expire(3.0) == [late]
    assert not lanes.waiting


def test_a_message_behind_others_expires_at_its_own_deadline() -> None:
    lanes = made(messages=1)
    add(lanes, item(0, queue=QUEUES[0]))
    lanes.take(0.0)
    waiting = [item(number, queue=QUEUES[0]) for number in (1, 2, 3)]
    for columns, deadline in zip(waiting, (30.0, 1.0, 31.0), strict=True):
        columns.deadline = deadline
        add(lanes, columns)
    assert lanes.next_take() == 1.0
    assert lanes.expire(1.0) == [waiting[1]]
    assert lanes.next_take() == 30.0
    assert lanes.expire(31.0) == [waiting[0], waiting[2]]


def test_a_single_request_is_sent_alone_and_keeps_its_order():
    lanes = made()
    for number in range(4):
        columns = item(number, queue=QUEUES[0])
        columns.fixed = number == 2
        add(lanes, columns)
    taken = []
    while requests := lanes.take(0.0):
        taken += ids(requests)
        lanes.finished(requests[0])
    assert taken == [[0, 1], [2], [3]]


def test_a_fixed_batch_is_sent_as_exactly_one_request():
    lanes = made(messages=2)
    group = item(1)
    for number in range(2, 5):
        group.join(item(number))
    group.fixed = True
    for columns in (item(0), group, item(5)):
        add(lanes, columns)
    assert ids(lanes.take(0.0)) == [[0], [1, 2, 3, 4], [5]]


class Traffic(RuleBasedStateMachine):
    """Adds, takes, finishes and expires messages in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes = made(linger=1.0, messages=4, size=200)
        self.now = 0.0
        self.number = 0
        self.sent: dict[object, list[int]] = {}
        self.left: dict[object, list[int]] = {}
        self.flying: list[MessageColumns] = []
        self.gone: set[int] = set()
        self.fixed: set[int] = set()

    @rule(
        lane=st.sampled_from([None, *QUEUES]),
        body=st.integers(1, 150),
        fixed=st.booleans(),
        patience=st.sampled_from([0.5, 5.0, math.inf]),
    )
    def send(self, lane: MessageQueue | None, body: int, fixed: bool, patience: float) -> None:
        columns = item(self.number, queue=lane, body=body)
        columns.fixed = fixed
        columns.deadline = self.now + patience
        if fixed:
            self.fixed.add(self.number)
        add(self.lanes, columns, self.now, spread=2)
        self.sent.setdefault(columns.lane, []).append(self.number)
        self.number += 1

    @rule(everything=st.booleans())
    def take(self, everything: bool) -> None:
        for request in self.lanes.take(self.now, everything=everything):
            [numbers] = ids([request])
            self.left.setdefault(request.lane, []).extend(numbers)
            self.flying.append(request)
            assert request.size == sum(ELEMENT_BYTES + len(body) for body in request.bodies)
            assert len(numbers) == 1 or (request.size <= 200 and len(numbers) <= 4)
            assert len(numbers) == 1 or not self.fixed & set(numbers)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        request = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        self.lanes.finished(request)

    @rule(seconds=st.sampled_from([0.3, 1.0, 4.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for columns in self.lanes.expire(self.now):
            assert columns.deadline <= self.now
            self.gone.update(map(int, columns.ids))

    @invariant()
    def order_is_kept_and_nothing_is_doubled(self) -> None:
        for key, left in self.left.items():
            assert left == [n for n in self.sent[key] if n in set(left)]
            assert len(left) == len(set(left))
            assert not self.gone & set(left)

    @invariant()
    def one_request_per_queue_flies(self) -> None:
        ordered = [request.queue for request in self.flying if request.queue is not None]
        assert len(ordered) == len(set(ordered))

    def teardown(self) -> None:
        """Check that everything was sent or expired, and nothing is left."""
        while self.flying or self.lanes.waiting:
            for request in self.flying:
                self.lanes.finished(request)
            self.flying.clear()
            self.take(everything=True)
        everything = {n for numbers in self.sent.values() for n in numbers}
        assert {n for left in self.left.values() for n in left} | self.gone == everything
        assert self.lanes.next_take() is None


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(
    max_examples=size(test=40, ci=150, soak=2000), stateful_step_count=40, deadline=None
)


@given(st.lists(st.tuples(st.sampled_from([None, *QUEUES]), st.integers(1, 90)), max_size=60))
def test_every_message_is_sent_once_in_the_order_of_its_lane(
    sends: list[tuple[MessageQueue | None, int]],
) -> None:
    lanes = made(messages=7, size=300)
    for number, (lane, body) in enumerate(sends):
        add(lanes, item(number, queue=lane, body=body))
    left: list[int] = []
    while requests := lanes.take(0.0):
        for request in requests:
            left += map(int, request.ids)
            lanes.finished(request)
    assert sorted(left) == list(range(len(sends)))
    for lane in (None, *QUEUES):
        mine = [n for n in left if sends[n][0] == lane]
        assert mine == sorted(mine)
