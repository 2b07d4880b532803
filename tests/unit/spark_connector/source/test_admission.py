"""The end offsets of each micro-batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.queue import MessageQueue
from spark_connector.errors import DataLossError
from spark_connector.source.admission import CATCH_UP_OFFSETS, UNSEEN_BYTES, Admission
from spark_connector.source.offsets import Offsets
from spark_connector.source.options import Limits, OnDataLoss
from spark_connector.source.positions import QueueBounds


def queue(number: int) -> MessageQueue:
    return MessageQueue("T", "broker-a", number)


def bounds(*ends: tuple[int, int]) -> dict[MessageQueue, QueueBounds]:
    return {queue(number): QueueBounds(*pair) for number, pair in enumerate(ends)}


def offsets(*numbers: int) -> Offsets:
    return {queue(number): offset for number, offset in enumerate(numbers)}


def admission(policy: OnDataLoss = OnDataLoss.FAIL, **limits: int) -> Admission:
    return Admission(Limits(**limits), policy, started=0.0)  # type: ignore[arg-type] # delays are whole


def test_without_limits_everything_is_taken():
    assert admission().end(offsets(0, 5), bounds((0, 10), (0, 7)), 1.0) == offsets(10, 7)


def test_a_backlog_is_read_a_million_at_a_time():
    limited = admission()
    first = limited.end(offsets(0), bounds((0, 2_500_000)), 1.0)
    assert first == offsets(CATCH_UP_OFFSETS)
    second = limited.end(first, bounds((0, 2_500_000)), 2.0)
    assert second == offsets(2 * CATCH_UP_OFFSETS)
    assert limited.end(second, bounds((0, 2_500_000)), 3.0) == offsets(2_500_000)
    assert limited.end(offsets(2_500_000), bounds((0, 9_000_000)), 4.0) == offsets(9_000_000)


def test_a_limit_is_divided_in_proportion():
    limited = admission(max_offsets=100)
    assert limited.end(offsets(0, 0), bounds((0, 900), (0, 100)), 1.0) == offsets(90, 10)
    assert limited.end(offsets(0, 0), bounds((0, 9_999), (0, 1)), 1.0) == offsets(99, 1)


def test_a_trigger_that_takes_all_knows_no_limit():
    limited = admission(max_offsets=100, min_offsets=50)
    assert limited.end(offsets(0), bounds((0, 900)), 1.0, take_all=True) == offsets(900)
    assert limited.end(offsets(899), bounds((0, 900)), 1.0, take_all=True) == offsets(900)


def test_a_minimum_waits_until_there_is_enough_or_it_took_too_long():
    waiting = admission(min_offsets=50, max_delay=10)
    assert waiting.end(offsets(0), bounds((0, 49)), 9.0) == offsets(0)
    assert waiting.end(offsets(0), bounds((0, 50)), 9.0) == offsets(50)
    assert waiting.end(offsets(50), bounds((0, 60)), 18.0) == offsets(50)
    assert waiting.end(offsets(50), bounds((0, 60)), 19.0) == offsets(60)


def test_a_minimum_is_no_limit_for_a_query_that_ends_by_itself():
    ending = admission(min_offsets=50)
    ending.target = offsets(7)
    assert ending.end(offsets(0), bounds((0, 99)), 0.0) == offsets(7)


def test_a_limit_of_bytes_is_one_of_messages_by_their_average_size():
    limited = admission(max_bytes=1000)
    sampled = []

    def mean_size(queue: MessageQueue, offset: int) -> float:
        sampled.append((queue.queue_id, offset))
        return 50.0

    assert limited.end(offsets(3, 0), bounds((0, 33), (0, 90)), 1.0, mean_size=mean_size) == (
        offsets(8, 15)
    )
    assert sampled == [(1, 0)]


def test_each_broker_is_sampled_and_weighs_what_it_has_to_read():
    small, large = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
    sizes = {small: 100.0, large: 700.0}
    known = {queue: QueueBounds(0, 50) for queue in sizes}
    start = dict.fromkeys(sizes, 0)
    ends = admission(max_bytes=8000).end(start, known, 1.0, mean_size=lambda q, _: sizes[q])
    assert ends == {small: 10, large: 10}
    sizes[large] = None  # type: ignore[assignment] # its broker can't be asked
    ends = admission(max_bytes=8000).end(start, known, 1.0, mean_size=lambda q, _: sizes[q])
    assert ends == {small: 40, large: 40}


def test_limits_of_bytes_and_of_offsets_hold_together():
    known = bounds((0, 50), (0, 50))
    for max_bytes, end in ((1000, offsets(5, 5)), (10_000, offsets(15, 15))):
        limited = admission(max_bytes=max_bytes, max_offsets=30)
        assert limited.end(offsets(0, 0), known, 1.0, mean_size=lambda *_: 100.0) == end


def test_a_limit_of_bytes_alone_is_sufficient():
    backlog = 2 * CATCH_UP_OFFSETS
    limited = admission(max_bytes=2 * backlog)
    end = limited.end(offsets(0), bounds((0, backlog)), 1.0, mean_size=lambda *_: 1.0)
    assert end == offsets(backlog)


def test_messages_that_cannot_be_sampled_are_assumed_to_have_a_typical_size():
    limited = admission(max_bytes=10 * UNSEEN_BYTES)
    assert limited.end(offsets(0), bounds((0, 500)), 1.0) == offsets(10)


def test_a_limit_below_one_message_takes_one():
    limited = admission(max_bytes=10)
    assert limited.end(offsets(0), bounds((0, 9)), 1.0, mean_size=lambda *_: 99.0) == offsets(1)


def test_bytes_are_no_limit_for_a_trigger_that_takes_all():
    limited = admission(max_bytes=10)
    assert limited.end(offsets(0), bounds((0, 99)), 1.0, take_all=True) == offsets(99)


def test_a_query_with_a_limit_of_bytes_reaches_its_target():
    ending = admission(max_bytes=1000)
    ending.target = offsets(7, 9)
    at, steps = offsets(0, 0), 0
    known = bounds((0, 9), (0, 9))
    while (following := ending.end(at, known, 1.0, mean_size=lambda *_: 250.0)) != at:
        at, steps = following, steps + 1
    assert at == offsets(7, 9)
    assert steps == 4


def test_a_target_is_not_changed_by_later_messages():
    ending = admission(max_offsets=4)
    ending.target = offsets(10)
    known = bounds((0, 99), (0, 50))
    at = offsets(0)
    ends = []
    while (following := ending.end(at, known, 1.0)) != at:
        ends.append(following[queue(0)])
        at = following
    assert ends == [4, 8, 10]
    assert at == offsets(10)


def test_a_new_queue_is_read_from_its_earliest_offset():
    assert admission(max_offsets=3).end(offsets(5), bounds((0, 5), (40, 50)), 1.0) == offsets(5, 43)


def test_a_vanished_queue_keeps_its_offset():
    assert admission().end(offsets(5, 6), bounds((0, 9)), 1.0) == offsets(9, 6)


def test_lost_messages_are_an_error_that_says_which():
    with pytest.raises(DataLossError, match=r"T/broker-a/0 lost offsets \[5, 40\).*\[40, 90\)"):
        admission().end(offsets(5), bounds((40, 90)), 1.0)


def test_lost_messages_are_skipped_and_counted_on_request():
    skipping = admission(OnDataLoss.SKIP, max_offsets=10)
    assert skipping.end(offsets(5), bounds((40, 90)), 1.0) == offsets(50)
    assert skipping.lost == 35
    assert skipping.end(offsets(50), bounds((40, 90)), 1.0) == offsets(60)
    assert skipping.lost == 35


def test_a_recreated_topic_has_its_own_error():
    with pytest.raises(
        DataLossError, match=r"ends at offset 7, before the 50.*deleted and recreated"
    ):
        admission().end(offsets(50), bounds((0, 7)), 1.0)


def test_a_recreated_topic_continues_at_its_end_or_from_its_beginning():
    assert admission(OnDataLoss.SKIP).end(offsets(50), bounds((0, 7)), 1.0) == offsets(7)
    earliest = admission(OnDataLoss.EARLIEST, max_offsets=3)
    assert earliest.end(offsets(50), bounds((0, 7)), 1.0) == offsets(3)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=6),
    st.integers(1, 500),
)
def test_batch_after_batch_everything_is_read_once(ends: list[tuple[int, int]], limit: int):
    known = bounds(*((start, start + count) for start, count in ends))
    limited = admission(max_offsets=limit)
    at = {name: pair.minimum for name, pair in known.items()}
    taken = 0
    for _ in range(7000):
        following = limited.end(at, known, 1.0)
        if following == at:
            break
        step = sum(following[name] - at[name] for name in at)
        assert 0 < step <= max(limit, len(ends))
        taken += step
        at = following
    assert taken == sum(count for _, count in ends)
