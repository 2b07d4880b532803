"""How a limit in bytes is divided among queues."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.byte_range import ByteAnswer, ByteQuestion
from remoting.protocol.queue import MessageQueue
from spark_connector.planning.byte_shares import SAMPLED_QUEUES, UNSEEN_BYTES, ByteShares
from spark_connector.planning.offsets import Offsets


def queue(number: int) -> MessageQueue:
    return MessageQueue("T", "broker-a", number)


class Stored:
    """Brokers that hold messages of these sizes.

    Attributes:
        looks: messages that one answer looks at.
        deaf: queues whose brokers can't tell.
        down: queues whose brokers can't be asked.
        asked: the questions of each round.
    """

    def __init__(self, *sizes: list[int], looks: int = 10**9) -> None:
        self.sizes = {queue(number): list(own) for number, own in enumerate(sizes)}
        self.looks = looks
        self.deaf: set[MessageQueue] = set()
        self.down: set[MessageQueue] = set()
        self.asked: list[dict[MessageQueue, ByteQuestion]] = []
        self.sampled: list[MessageQueue] = []

    @property
    def begins(self) -> Offsets:
        return dict.fromkeys(self.sizes, 0)

    @property
    def ends(self) -> Offsets:
        return {name: len(own) for name, own in self.sizes.items()}

    def measure(
        self, questions: Mapping[MessageQueue, ByteQuestion]
    ) -> dict[MessageQueue, ByteAnswer | None]:
        self.asked.append(dict(questions))
        return {
            name: None if name in self.deaf else self._answer(name, question)
            for name, question in questions.items()
            if name not in self.down
        }

    def _answer(self, name: MessageQueue, question: ByteQuestion) -> ByteAnswer:
        assert question.limit is not None
        at, size = question.begin, 0
        assert at < question.end <= len(self.sizes[name])
        while at < min(question.end, question.begin + self.looks):
            if size + self.sizes[name][at] > question.limit:
                return ByteAnswer(size, at, self.sizes[name][at])
            size += self.sizes[name][at]
            at += 1
        return ByteAnswer(size, at)

    def mean_size(self, name: MessageQueue, offset: int) -> float | None:
        self.sampled.append(name)
        some = self.sizes[name][offset : offset + 32]
        return sum(some) / len(some) if some else None

    def taken(self, begins: Offsets, ends: Offsets) -> dict[MessageQueue, list[int]]:
        """Sizes of the messages of a batch."""
        return {name: self.sizes[name][begins[name] : ends[name]] for name in ends}

    def questions(self, name: MessageQueue) -> int:
        return sum(name in asked for asked in self.asked)


def in_all(taken: Mapping[MessageQueue, list[int]]) -> int:
    return sum(map(sum, taken.values()))


def counts(taken: Mapping[MessageQueue, list[int]]) -> list[int]:
    return [len(own) for own in taken.values()]


def batches(stored: Stored, shares: ByteShares) -> list[dict[MessageQueue, list[int]]]:
    """All batches until everything is read."""
    at, found = stored.begins, []
    while at != stored.ends:
        following = shares.ends(at, stored.ends, stored)
        found.append(stored.taken(at, following))
        assert all(at[name] <= following[name] <= stored.ends[name] for name in at)
        at = following
    return found


def test_what_the_limit_has_room_for_is_taken_at_once_after_one_question():
    stored = Stored([10] * 5, [20] * 5)
    shares = ByteShares(1000)
    assert shares.ends(stored.begins, stored.ends, stored) == stored.ends
    assert len(stored.asked) == 1


def test_parts_are_in_proportion_to_what_there_is_to_read():
    stored = Stored([10] * 900, [10] * 100)
    (first, *_) = batches(stored, ByteShares(1000))
    assert counts(first) == [90, 10]
    assert len(stored.asked) == 10
    # By messages first, and by bytes once the sizes are known: both come to their end together.
    stored = Stored([10] * 1000, [30] * 1000)
    first, second, *_, last = batches(stored, ByteShares(4000))
    assert counts(first) == [201, 66]
    assert counts(second) == [88, 104]
    assert min(counts(last)) > 0


def test_what_a_queue_has_no_use_for_is_for_the_others():
    stored = Stored([10] * 50, [1000] * 50)
    shares = ByteShares(20_500)
    ends = shares.ends(stored.begins, stored.ends, stored)
    assert ends == {queue(0): 50, queue(1): 20}
    assert [stored.questions(name) for name in stored.sizes] == [1, 2]


def test_of_one_queue_as_many_whole_messages_are_taken_as_there_is_room_for():
    stored = Stored([400, 500, 200, 100])
    assert [batch[queue(0)] for batch in batches(stored, ByteShares(1000))] == [
        [400, 500],
        [200, 100],
    ]


def test_a_message_larger_than_the_limit_goes_alone():
    stored = Stored([10, 5000, 10], [10] * 30)
    found = batches(stored, ByteShares(100))
    alone = [batch for batch in found if in_all(batch) > 100]
    assert [counts(batch) for batch in alone] == [[1, 0]]
    assert max(in_all(batch) for batch in found if batch not in alone) <= 100


def test_large_messages_have_their_turn_beside_a_queue_that_has_always_more():
    stored = Stored([90] * 3, [10] * 100_000, [5000] * 2)
    shares = ByteShares(100)
    at = stored.begins
    for _ in range(15):
        at = shares.ends(at, stored.ends, stored)
    assert at[queue(0)] == 3
    assert at[queue(2)] == 2
    assert at[queue(1)] > 50


def test_who_waits_for_long_is_served_first():
    stored = Stored(*([60] * 3 for _ in range(4)))
    order = [
        next(name.queue_id for name, own in batch.items() if own)
        for batch in batches(stored, ByteShares(100))
    ]
    assert order == [0, 1, 2, 3] * 3


def test_a_queue_is_asked_further_if_an_answer_did_not_look_far_enough():
    stored = Stored([1] * 1000, looks=100)
    assert [counts(batch) for batch in batches(stored, ByteShares(500))] == [[200]] * 5


def test_who_can_not_tell_is_estimated_from_samples():
    stored = Stored(*([100] * 50 for _ in range(5)))
    stored.deaf = set(stored.sizes)
    shares = ByteShares(1000)
    ends = shares.ends(stored.begins, stored.ends, stored)
    assert sum(ends.values()) == 10
    assert len(stored.sampled) == SAMPLED_QUEUES
    assert shares.mean_bytes == pytest.approx(100.0)


def test_what_can_not_even_be_sampled_has_a_usual_size():
    stored = Stored([])
    stored.deaf = set(stored.sizes)
    ends = ByteShares(10 * UNSEEN_BYTES).ends(stored.begins, {queue(0): 99}, stored)
    assert ends == {queue(0): 10}


def test_samples_are_averaged():
    shares = ByteShares(1000)
    shares.learn_size(100.0)
    shares.learn_size(200.0)
    assert shares.mean_bytes == pytest.approx(130.0)


def test_in_mixed_clusters_each_queue_is_taken_as_far_as_is_known():
    stored = Stored([100] * 50, [100] * 50)
    stored.deaf = {queue(1)}
    ends = ByteShares(1000).ends(stored.begins, stored.ends, stored)
    assert ends == {queue(0): 5, queue(1): 5}
    assert stored.sampled == [queue(1)]


def test_a_queue_that_can_not_be_asked_stays_where_it_is():
    stored = Stored([100] * 50, [100] * 50)
    stored.down = {queue(1)}
    shares = ByteShares(1000)
    ends = shares.ends(stored.begins, stored.ends, stored)
    assert ends == {queue(0): 10, queue(1): 0}
    stored.down = set(stored.sizes)
    assert shares.ends(ends, stored.ends, stored) == ends
    stored.down = set()
    assert sum(shares.ends(ends, stored.ends, stored).values()) == 20


QUEUES = st.lists(
    st.lists(st.integers(1, 60) | st.integers(500, 2000), max_size=40), min_size=1, max_size=5
)


@given(QUEUES, st.integers(1, 3000), st.sampled_from([1, 7, 10**9]))
def test_batch_after_batch_keeps_to_the_limit_and_takes_everything_once(
    sizes: list[list[int]], limit: int, looks: int
):
    stored = Stored(*sizes, looks=looks)
    found = []
    at = stored.begins
    shares = ByteShares(limit)
    waited = dict.fromkeys(at, 0)
    while at != stored.ends:
        stored.asked.clear()
        following = shares.ends(at, stored.ends, stored)
        batch = stored.taken(at, following)
        assert sum(counts(batch)) >= 1
        assert in_all(batch) <= limit or sum(counts(batch)) == 1
        assert all(stored.questions(name) <= 2 for name in at)
        for name, own in batch.items():
            open_still = at[name] < stored.ends[name]
            waited[name] = waited[name] + 1 if open_still and not own else 0
            # Of the others each may go before it once alone, and once in its turn.
            assert waited[name] <= 2 * len(sizes)
        found.append(batch)
        at = following
    for name, own in stored.sizes.items():
        assert [size for batch in found for size in batch[name]] == own


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.integers(1, 5000))
def test_of_one_queue_no_further_message_has_room(sizes: list[int], limit: int):
    stored = Stored(sizes)
    at = 0
    for batch in batches(stored, ByteShares(limit)):
        (own,) = batch.values()
        at += len(own)
        assert at == len(sizes) or sum(own) + sizes[at] > limit


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 900)), min_size=1, max_size=6),
    st.integers(1, 5000),
)
def test_what_is_left_is_less_than_a_message(uniform: list[tuple[int, int]], limit: int):
    stored = Stored(*([size] * count for count, size in uniform))
    left_over = stored.begins
    for batch in batches(stored, ByteShares(limit)):
        left_over = {name: left_over[name] + len(own) for name, own in batch.items()}
        lacking = [
            stored.sizes[name][at] for name, at in left_over.items() if at < stored.ends[name]
        ]
        assert not lacking or in_all(batch) + max(lacking) > limit


@given(QUEUES, st.integers(1, 3000), st.data())
def test_estimates_and_exact_answers_lead_to_the_end_together(
    sizes: list[list[int]], limit: int, data: st.DataObject
):
    stored = Stored(*sizes)
    stored.deaf = data.draw(st.sets(st.sampled_from(sorted(stored.sizes))))
    found = batches(stored, ByteShares(limit))
    assert sum(map(sum, (counts(batch) for batch in found))) == sum(map(len, sizes))
    told = stored.sizes.keys() - stored.deaf
    for batch in found:
        exact = sum(sum(batch[name]) for name in told)
        assert exact <= limit or sum(len(batch[name]) for name in told) == 1


def test_many_queues_are_asked_together():
    stored = Stored(*([7] * 20 for _ in range(500)))
    found = batches(stored, ByteShares(35_000))
    assert [sum(counts(batch)) for batch in found] == [5000, 5000]
    assert len(stored.asked) == 2
