"""``group_check`` finds every violation, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.chaos.group_check import Findings, Kill, check
from tests.chaos.group_log import Event, events, line

Q = "T:0"


def calls(member: str, offsets: Iterable[int], first_at: int = 0, queue: str = Q) -> list[Event]:
    """Return calls, one per nanosecond."""
    return [
        Event(first_at + step, member, "call", queue, offset, offset, False)
        for step, offset in enumerate(offsets)
    ]


def judged(*parts: list[Event], count: int = 10, kills: Iterable[Kill] = ()) -> Findings:
    return check(
        sorted(event for part in parts for event in part),
        {Q: count},
        ordered=True,
        kills=list(kills),
        foreign={"java"},
    )


def test_offsets_that_rise_by_one_over_all_members_pass() -> None:
    findings = judged(calls("a", range(5)), calls("b", range(5, 10), 10))
    assert findings.problems == []
    assert (findings.handled, findings.repeated) == (10, 0)
    assert findings.numbers == set(range(10))


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: judged(calls("a", range(9))), "lost: T:0 was handled up to 9 of 10"),
        (lambda: judged([]), "lost: T:0 was handled up to 0 of 10"),
        (lambda: judged(calls("a", [0, 1, 3, 4, 5, 6, 7, 8, 9])), "gap: a handled T:0 3"),
        (lambda: judged(calls("a", range(1, 10))), "gap: a handled T:0 1, expected 0"),
        (lambda: judged(calls("a", [0, 2, 1, *range(3, 10)])), "repeated: a handled T:0 1"),
        (lambda: judged(calls("a", [0, 0, *range(1, 10)])), "repeated: a handled T:0 0"),
        (lambda: judged(calls("a", range(6)), calls("b", range(5, 10), 10)), "nothing excuses"),
        (lambda: judged(calls("a", range(10), queue="T:1")), "handled T:1, which isn't"),
    ],
)
def test_lost_skipped_and_repeated_offsets_are_found(
    made: Callable[[], Findings], text: str
) -> None:
    assert any(text in problem for problem in made().problems)


def killed(committed: int, at: int = 6) -> Kill:
    return Kill("a", at, {Q: committed})


def test_after_a_kill_the_queue_may_start_again_at_the_committed_offset() -> None:
    again = calls("b", range(3, 10), 10)
    findings = judged(calls("a", range(6)), again, kills=[killed(3)])
    assert findings.problems == []
    assert (findings.handled, findings.repeated) == (10, 3)


def test_after_a_kill_it_may_not_start_before_the_committed_offset() -> None:
    findings = judged(calls("a", range(6)), calls("b", range(2, 10), 10), kills=[killed(3)])
    assert "before the committed 3" in findings.problems[0]


def test_a_kill_excuses_no_gap() -> None:
    findings = judged(calls("a", range(6)), calls("b", range(7, 10), 10), kills=[killed(3)])
    assert "gap" in findings.problems[0]


def test_a_kill_excuses_nothing_for_the_other_members() -> None:
    parts = calls("a", range(3)), calls("b", range(3, 6), 10), calls("c", range(5, 10), 20)
    findings = judged(*parts, kills=[killed(2, at=4)])
    assert ["nothing excuses" in problem for problem in findings.problems] == [True]


def test_a_kill_excuses_one_start_again_and_not_a_second() -> None:
    parts = calls("a", range(6)), calls("b", [3, 4, 3, *range(4, 10)], 10)
    assert judged(*parts, kills=[killed(3)]).problems != []


def test_what_happened_before_the_kill_is_not_excused_by_it() -> None:
    parts = calls("a", range(6)), calls("b", range(5, 10), 10)
    assert judged(*parts, kills=[killed(3, at=99)]).problems != []


def test_the_successor_of_a_foreign_member_may_repeat_its_unsettled_messages() -> None:
    parts = calls("a", range(3)), calls("java", range(3, 6), 10), calls("b", range(5, 10), 20)
    assert judged(*parts).problems == []


def test_what_another_one_handled_before_a_foreign_member_is_not_repeated() -> None:
    parts = calls("a", range(3)), calls("java", range(3, 6), 10), calls("b", range(2, 10), 20)
    assert judged(*parts).problems != []


def waiting(member: str, offset: int, begin: int, end: int | None) -> list[Event]:
    begun = [Event(begin, member, "begin", Q, offset, offset, False)]
    return begun if end is None else [*begun, Event(end, member, "end", Q, offset, offset, False)]


def test_a_call_that_begins_while_another_runs_is_found_in_an_ordered_group_only() -> None:
    parts = [*waiting("a", 0, 1, 5), *calls("b", [1], 3)]
    assert "two at once" in check(sorted(parts), {Q: 2}, ordered=True).problems[0]
    assert check(sorted(parts), {Q: 2}, ordered=False).problems == []


def test_an_unfinished_call_overlaps_later_ones() -> None:
    parts = [*waiting("a", 0, 1, None), *calls("b", [1], 3)]
    assert "two at once" in check(parts, {Q: 2}, ordered=True).problems[0]


def test_a_call_of_a_killed_member_overlaps_nothing() -> None:
    parts = [*waiting("a", 0, 1, None), *calls("b", [0, 1], 3)]
    kills = [Kill("a", 2, {Q: 0})]
    assert check(parts, {Q: 2}, ordered=True, kills=kills).problems == []


def test_pauses_are_counted_from_the_latest_kill_within_them() -> None:
    parts = calls("a", [0]), calls("b", [1], 100), calls("b", range(2, 10), 110)
    assert judged(*parts).rests == {Q: 100}
    assert judged(*parts, kills=[killed(1, at=70)]).rests == {Q: 30}


def test_events_of_all_members_come_back_in_the_order_of_their_times(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(
        line("begin", 1, Q, 0, 7, failed=False) + line("end", 3, Q, 0, 7, failed=True)
    )
    (tmp_path / "b").write_bytes(line("call", 2, Q, 1, 8, failed=False))
    assert list(events({"a": tmp_path / "a", "b": tmp_path / "b"})) == [
        Event(1, "a", "begin", Q, 0, 7, False),
        Event(2, "b", "call", Q, 1, 8, False),
        Event(3, "a", "end", Q, 0, 7, True),
    ]
