"""The messages a consumer holds of a queue, and the lowest unsettled offset."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from client.consumer.process_queue import ProcessQueue, Run
from remoting.protocol.queue import MessageQueue

QUEUE = MessageQueue("T", "a", 0)


@dataclass(frozen=True)
class Numbered:
    offset: int


def numbered(*offsets: int) -> list[Numbered]:
    return [Numbered(offset) for offset in offsets]


def made(
    *, start: int = 0, messages: int = 100, size: int = 10_000, span: int | None = None
) -> ProcessQueue[Numbered]:
    queue: ProcessQueue[Numbered] = ProcessQueue(
        QUEUE, max_messages=messages, max_bytes=size, max_span=span
    )
    queue.start(start)
    return queue


def offsets(run: Run[Numbered]) -> list[int]:
    return [message.offset for message in run.messages]


def test_the_commit_point_is_the_lowest_unsettled_offset():
    queue = made()
    queue.put(numbered(0, 1, 2, 3), 100, 4)
    first, second, third = queue.take(1), queue.take(2), queue.take(1)
    assert queue.commit_point == 0
    queue.finish(second)
    queue.finish(third)
    assert queue.commit_point == 0
    queue.finish(first)
    assert queue.commit_point == 4


def test_the_commit_point_skips_filtered_messages_once_nothing_is_held():
    queue = made()
    queue.put(numbered(5), 10, 9)
    assert queue.commit_point == 5
    queue.put([], 0, 20)
    assert queue.commit_point == 5
    queue.finish(queue.take(1))
    assert queue.commit_point == 20


def test_messages_count_until_they_are_settled_not_until_they_are_taken():
    queue = made(messages=3)
    queue.put(numbered(0, 1, 2), 30, 3)
    assert queue.full
    run = queue.take(2)
    assert queue.full
    queue.cut(run, 1)
    assert not queue.full


def test_an_answers_bytes_count_until_its_last_message_is_settled():
    queue = made(size=30)
    queue.put(numbered(0, 1), 30, 2)
    first, second = queue.take(1), queue.take(1)
    queue.finish(first)
    assert queue.full
    queue.finish(second)
    assert (queue.full, queue.bytes, queue.messages) == (False, 0, 0)


def test_a_slow_message_stops_pulls_when_the_span_is_reached():
    queue = made(span=10)
    queue.put(numbered(0), 1, 1)
    stuck = queue.take(1)
    queue.put(numbered(*range(1, 12)), 1, 12)
    assert queue.full
    queue.finish(queue.take(20))
    assert queue.full
    queue.finish(stuck)
    assert not queue.full


def test_an_answer_that_one_handler_takes_whole_is_not_copied():
    queue = made()
    messages = numbered(1, 2, 3)
    queue.put(messages, 30, 4)
    assert queue.take(10).messages is messages


def test_a_run_returns_unhandled_messages_in_order():
    queue = made()
    queue.put(numbered(0, 1, 2, 3), 40, 4)
    run = queue.take(3)
    queue.cut(run, 1)
    queue.give_back(run, keep=1)
    assert offsets(run) == [1]
    assert [offsets(queue.take(5)) for _ in range(2)] == [[2], [3]]


def test_messages_returned_late_precede_newer_ones():
    queue = made()
    queue.put(numbered(0, 1, 2, 3), 40, 4)
    first, second = queue.take(1), queue.take(1)
    queue.give_back(second)
    queue.give_back(first)
    assert [offsets(queue.take(1)) for _ in range(4)] == [[0], [1], [2], [3]]


def test_messages_of_a_run_can_be_kept_while_the_others_are_settled():
    queue = made()
    queue.put(numbered(0, 1, 2, 3), 40, 4)
    kept = queue.keep_only(queue.take(4), {1, 3})
    assert [offsets(run) for run in kept] == [[1], [3]]
    assert (queue.commit_point, queue.messages, queue.bytes) == (1, 2, 40)
    queue.finish(kept[0])
    assert queue.commit_point == 3
    queue.give_back(kept[1])
    queue.finish(queue.take(1))
    assert (queue.commit_point, queue.messages, queue.bytes) == (4, 0, 0)


def test_a_message_is_found_in_the_run_that_has_it_until_it_is_settled():
    queue = made()
    queue.put(numbered(0, 1, 2), 40, 3)
    run = queue.take(3)
    assert queue.run_of(1) is run
    run.at = 2
    assert queue.run_of(1) is None
    queue.finish(run)
    assert queue.run_of(2) is None


def test_a_dropped_queue_discards_waiting_messages_and_lets_handlers_end():
    queue = made()
    queue.put(numbered(0, 1, 2), 30, 3)
    run = queue.take(1)
    queue.drop()
    assert not queue.ready
    assert queue.commit_point == 0
    queue.finish(run)
    assert (queue.messages, queue.bytes) == (0, 0)
    queue.put(numbered(3), 10, 4)
    assert not queue.ready


def test_a_dropped_queue_never_commits_discarded_messages():
    queue = made()
    queue.put(numbered(0, 1, 2, 3), 30, 4)
    first, second = queue.take(1), queue.take(1)
    queue.drop()
    queue.finish(first)
    assert queue.commit_point == 1
    queue.give_back(second)
    assert queue.commit_point == 1
    queue.put([], 0, 9)
    assert queue.commit_point == 1


def test_after_a_new_start_the_end_of_an_old_run_changes_nothing():
    queue = made()
    queue.put(numbered(0, 1, 2), 30, 3)
    old = queue.take(2)
    queue.start(70)
    queue.finish(old)
    queue.cut(old, 1)
    queue.give_back(old)
    assert (queue.messages, queue.bytes, queue.commit_point) == (0, 0, 70)
    assert queue.keep_only(old, {0}) == []


def test_a_paused_queue_is_not_ready():
    queue = made()
    queue.put(numbered(0), 1, 1)
    queue.paused = True
    assert not queue.ready


@given(st.data())
def test_whatever_handlers_do_nothing_unsettled_is_ever_committed(data: st.DataObject):
    queue = made(span=50)
    unsettled: list[int] = []
    runs: list[Run[Numbered]] = []
    end = 0
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(["put", "take", "cut", "finish", "back", "keep"]))
        run = data.draw(st.sampled_from(runs)) if runs and step not in {"put", "take"} else None
        if step == "put":
            count, gap = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 3))
            batch = [end + number * gap for number in range(count)]
            end += count * gap + data.draw(st.integers(0, 2))
            queue.put(numbered(*batch), count * 10, end)
            unsettled += batch
        elif step == "take" and queue.ready:
            runs.append(queue.take(data.draw(st.integers(1, 4))))
        elif run is not None:
            _end_somehow(queue, runs, run, unsettled, step, data)
        assert queue.messages == len(unsettled)
        assert queue.commit_point == min(unsettled, default=end)
    while queue.ready:
        runs.append(queue.take(3))
    for run in runs:
        queue.finish(run)
    assert (queue.messages, queue.bytes, queue.commit_point) == (0, 0, end)


def _end_somehow(
    queue: ProcessQueue[Numbered],
    runs: list[Run[Numbered]],
    run: Run[Numbered],
    unsettled: list[int],
    step: str,
    data: st.DataObject,
) -> None:
    mine = offsets(run)
    if step == "finish":
        queue.finish(run)
        runs.remove(run)
        settled = mine
    elif step == "cut":
        count = data.draw(st.integers(0, len(mine)))
        queue.cut(run, count)
        settled = mine[:count]
        if count == len(mine):
            runs.remove(run)
    elif step == "back":
        keep = data.draw(st.integers(0, len(mine)))
        queue.give_back(run, keep)
        settled = []
        if keep == 0:
            runs.remove(run)
    else:
        kept = data.draw(st.sets(st.sampled_from(mine)))
        runs.remove(run)
        runs += queue.keep_only(run, kept)
        settled = [offset for offset in mine if offset not in kept]
    for offset in settled:
        unsettled.remove(offset)
