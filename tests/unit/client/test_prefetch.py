"""What was prefetched of a queue, and how much of it was delivered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from client.consumer.reader import Prefetch
from remoting.protocol.queue import MessageQueue

QUEUE = MessageQueue("T", "a", 0)


def made(*, messages: int = 100, size: int = 10_000) -> Prefetch[int]:
    prefetch: Prefetch[int] = Prefetch(
        QUEUE, lambda offset: offset, max_messages=messages, max_bytes=size
    )
    prefetch.start(0)
    return prefetch


def test_the_position_follows_delivered_not_pulled_messages():
    prefetch = made()
    prefetch.put([0, 1, 2], 300, 3)
    assert (prefetch.position, prefetch.next_pull) == (0, 3)
    assert prefetch.take(2) == [0, 1]
    assert prefetch.position == 2
    assert prefetch.take(5) == [2]
    assert prefetch.position == 3


def test_a_chunk_that_is_taken_whole_is_not_copied():
    prefetch = made()
    messages = [1, 2, 3]
    prefetch.put(messages, 30, 3)
    assert prefetch.take(10) is messages


def test_the_position_skips_filtered_messages():
    prefetch = made()
    prefetch.put([5], 10, 9)
    prefetch.take(1)
    assert prefetch.position == 9
    prefetch.put([], 0, 20)
    assert prefetch.position == 20


def test_an_answer_without_matches_behind_waiting_messages_does_not_commit_them():
    prefetch = made()
    prefetch.put([0], 10, 1)
    prefetch.put([], 0, 50)
    assert prefetch.position == 0
    prefetch.take(1)
    assert prefetch.position == 50


def test_a_prefetch_buffer_is_full_by_messages_or_bytes_until_a_chunk_is_delivered():
    prefetch = made(messages=3, size=100)
    prefetch.put([1, 2, 3], 10, 3)
    assert prefetch.full
    prefetch.take(1)
    assert not prefetch.full
    prefetch.put([4], 95, 4)
    assert prefetch.full
    prefetch.take(2)
    assert not prefetch.full


def test_restarting_drops_waiting_messages():
    prefetch = made()
    prefetch.put([1, 2], 10, 2)
    prefetch.start(70)
    assert (prefetch.messages, prefetch.bytes, prefetch.ready) == (0, 0, False)
    assert (prefetch.position, prefetch.next_pull, prefetch.moved) == (70, 70, False)


def test_a_paused_queue_is_not_ready():
    prefetch = made()
    prefetch.put([1], 10, 1)
    prefetch.paused = True
    assert not prefetch.ready


def test_the_settled_offset_is_the_position_of_the_last_call():
    prefetch = made()
    prefetch.put([0, 1], 10, 2)
    prefetch.take(1)
    prefetch.settle()
    prefetch.take(1)
    assert (prefetch.settled, prefetch.position) == (1, 2)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=20),
    st.lists(st.integers(1, 7), max_size=60),
)
def test_messages_are_delivered_once_and_in_order(
    answers: list[tuple[int, int]], takes: list[int]
) -> None:
    prefetch = made(messages=10**6, size=10**9)
    pulled: list[int] = []
    for count, gap in answers:
        assert prefetch.next_pull is not None
        offsets = [prefetch.next_pull + n * gap for n in range(count)]
        end = (offsets[-1] if offsets else prefetch.next_pull) + gap
        prefetch.put(offsets, 10 * count, end)
        pulled += offsets
    out: list[int] = []
    for most in takes:
        if prefetch.ready:
            out += prefetch.take(most)
            assert prefetch.position is not None
            assert prefetch.position > out[-1]
            assert all(n >= prefetch.position for n in pulled[len(out) :])
    assert out == pulled[: len(out)]
    assert prefetch.messages == len(pulled) - len(out)
