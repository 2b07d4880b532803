"""Which pulls are in flight, and the order of their answers."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connector.source.read_ahead import PullPart, PullWindow, ReadAhead


@dataclass
class Simulation:
    """A broker, and a task that reads a range from it.

    Attributes:
        cap: messages a pull may bring.
        sizes: of messages, repeated; a pull brings one message, or as many as take ``most_bytes``.
        matching: every so manieth message matches the filter.
        scan: entries that a filtered pull looks through at most.
    """

    start: int
    end: int
    width: int = 1024
    depth: int = 4
    cap: int = 1024
    sizes: tuple[int, ...] = (1,)
    most_bytes: int = 1 << 20
    matching: int = 1
    scan: int = 800
    order: list[int] = field(default_factory=list)
    losses: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ahead = ReadAhead(self.start, self.end, width=self.width, depth=self.depth)
        self.asked: list[tuple[int, int]] = []
        self.in_flight: list[PullWindow] = []

    def brought(self, start: int, count: int) -> int:
        """Return the end of the answer to a pull."""
        offset = start
        matched = size = 0
        while matched < min(count, self.cap) and offset - start < max(self.scan, count):
            if offset % self.matching == 0:
                size += self.sizes[offset % len(self.sizes)]
                if matched and size > self.most_bytes:
                    break
                matched += 1
            offset += 1
        return offset

    def send(self) -> None:
        while (window := self.ahead.next_pull()) is not None:
            self.ahead.sent(window, len(self.asked))
            self.asked.append((window.start, window.end))
            self.in_flight.append(window)

    def answer(self) -> None:
        choice = self.order.pop() if self.order else 0
        window = self.in_flight.pop(choice % len(self.in_flight))
        assert self.ahead.find(window.opaque) is window
        most = window.end - window.start
        self.ahead.answered(window, self.brought(window.start, min(most, self.width)))

    def run(self) -> list[PullPart]:
        parts = []
        turns = 0
        while not self.ahead.done:
            self.send()
            assert self.ahead.in_flight == len(self.in_flight) > 0
            assert self.ahead.in_flight <= self.depth
            if self.losses and turns == self.losses[-1]:
                self.losses.pop()
                self.in_flight.clear()
                self.ahead.restart()
            else:
                self.answer()
            while (part := self.ahead.next_part()) is not None:
                parts.append(part)
            turns += 1
        return parts


def covered(parts: list[PullPart], end: int) -> list[tuple[int, int]]:
    return [(part.first, min(part.next_offset, end)) for part in parts]


def test_nothing_is_guessed_before_the_first_answer() -> None:
    ahead = ReadAhead(0, 10_000, width=1024, depth=4)
    first = ahead.next_pull()
    assert first is not None
    assert (first.start, first.end) == (0, 1024)
    ahead.sent(first, 0)
    assert ahead.next_pull() is None
    ahead.answered(first, 1024)
    assert ahead.next_part() == PullPart(0, 1024, None, is_lost=False)
    assert sum(1 for _ in iter(lambda: _send(ahead), None)) == 4


def _send(ahead: ReadAhead) -> PullWindow | None:
    window = ahead.next_pull()
    if window is not None:
        ahead.sent(window, window.start)
    return window


def test_a_short_range_takes_one_pull() -> None:
    simulation = Simulation(100, 500)
    assert covered(simulation.run(), 500) == [(100, 500)]
    assert simulation.asked == [(100, 500)]


def test_an_empty_range_takes_none() -> None:
    assert ReadAhead(7, 7, width=10, depth=2).done
    assert ReadAhead(7, 3, width=10, depth=2).done


def test_a_broker_that_returns_32_is_asked_for_32_from_then_on() -> None:
    simulation = Simulation(0, 32 * 200, cap=32)
    simulation.run()
    assert simulation.asked[0] == (0, 1024)
    assert simulation.asked[1] == (32, 64)
    in_vain = [asked for asked in simulation.asked[1:] if asked[1] - asked[0] > 32]
    # What is tried after 8, 16, 32 ... full answers brings 32 all the same.
    assert len(in_vain) <= 8 * simulation.depth
    assert len(simulation.asked) < 200 + 2 * len(in_vain) + 5


def test_a_broker_that_gives_all_is_asked_once_for_each() -> None:
    simulation = Simulation(0, 100_000)
    simulation.run()
    assert len(simulation.asked) == 98


def test_large_messages_make_pulls_smaller_and_small_ones_larger_again() -> None:
    sizes = (1000,) * 3000 + (1,) * 7000
    simulation = Simulation(0, 10_000, sizes=sizes, most_bytes=100_000)
    simulation.run()
    widths = [end - start for start, end in simulation.asked]
    assert 100 in widths
    assert simulation.ahead.width > 400


def test_answers_that_skip_far_make_windows_wider() -> None:
    simulation = Simulation(0, 100_000, width=32, matching=1000, scan=800)
    simulation.run()
    assert simulation.ahead.width >= 800
    assert len(simulation.asked) < 200


def test_messages_in_other_answers_are_not_requested_again() -> None:
    ahead = ReadAhead(0, 100, width=10, depth=2)
    first = _send(ahead)
    assert first is not None
    ahead.answered(first, 5)
    assert ahead.next_part() == PullPart(0, 5, None, is_lost=False)
    rest, later = _send(ahead), _send(ahead)
    assert rest is not None
    assert later is not None
    assert (rest.start, rest.end, later.start, later.end) == (5, 10, 10, 15)
    ahead.answered(rest, 40)
    assert ahead.next_part() == PullPart(5, 40, None, is_lost=False)
    following = _send(ahead)
    assert following is not None
    assert following.start == 40
    ahead.answered(later, 15)
    assert ahead.next_part() is None
    assert ahead.position == 40


def test_a_remainder_in_another_answer_is_not_requested() -> None:
    ahead = ReadAhead(0, 100, width=10, depth=2)
    first = _send(ahead)
    assert first is not None
    ahead.answered(first, 10)
    assert ahead.next_part() is not None
    head, later = _send(ahead), _send(ahead)
    assert head is not None
    assert later is not None
    ahead.answered(later, 25)
    ahead.answered(head, 60)
    assert ahead.next_part() == PullPart(10, 60, None, is_lost=False)
    assert ahead.next_part() is None
    after = _send(ahead)
    assert after is not None
    assert after.start == 60


def test_what_is_lost_says_nothing_about_the_broker() -> None:
    ahead = ReadAhead(0, 10_000, width=100, depth=2)
    window = _send(ahead)
    assert window is not None
    ahead.answered(window, 5_000, is_lost=True)
    assert ahead.next_part() == PullPart(0, 5_000, None, is_lost=True)
    assert ahead.width == 100
    after = _send(ahead)
    assert after is not None
    assert (after.start, after.end) == (5_000, 5_100)


def test_a_range_can_be_cut_short() -> None:
    ahead = ReadAhead(0, 10_000, width=100, depth=2)
    window = _send(ahead)
    assert window is not None
    ahead.answered(window, 100)
    assert ahead.next_part() is not None
    ahead.cut(50)
    assert (ahead.end, ahead.done) == (100, True)


@pytest.mark.parametrize("depth", [1, 2, 4, 16])
def test_answers_waiting_for_delivery_are_bounded(depth: int) -> None:
    ahead = ReadAhead(0, 10_000, width=10, depth=depth)
    first = _send(ahead)
    assert first is not None
    ahead.answered(first, 10)
    assert ahead.next_part() is not None
    while _send(ahead) is not None:
        pass
    answered = 0
    for start in range(20, 10_000, 10):
        window = ahead.find(start)
        if window is None:
            break
        ahead.answered(window, window.end)
        answered += 1
        while _send(ahead) is not None:
            pass
    assert answered == depth - 1


ranges = st.tuples(st.integers(0, 50), st.integers(0, 3000)).map(lambda r: (r[0], r[0] + r[1]))


@given(
    reach=ranges,
    width=st.integers(1, 1100),
    depth=st.integers(1, 6),
    cap=st.integers(1, 1100),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=5),
    most_bytes=st.integers(1, 2000),
    matching=st.integers(1, 50),
    scan=st.integers(1, 900),
    order=st.lists(st.integers(0, 10), max_size=50),
    losses=st.lists(st.integers(0, 60), unique=True, max_size=5).map(
        lambda turns: sorted(turns, reverse=True)
    ),
)
def test_every_offset_is_returned_once_and_in_order(
    reach: tuple[int, int],
    width: int,
    depth: int,
    cap: int,
    sizes: list[int],
    most_bytes: int,
    matching: int,
    scan: int,
    order: list[int],
    losses: list[int],
) -> None:
    start, end = reach
    simulation = Simulation(
        start,
        end,
        width=width,
        depth=depth,
        cap=cap,
        sizes=tuple(sizes),
        most_bytes=most_bytes,
        matching=matching,
        scan=scan,
        order=order,
        losses=losses,
    )
    at = start
    for first, after in covered(simulation.run(), end):
        assert first == at
        assert after > first
        at = after
    assert at == end
