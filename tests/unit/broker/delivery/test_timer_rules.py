"""When a timer message is due, and in which slot it waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.delivery import timer_rules as rules

_times = st.integers(1_000_000, 2**42)


@given(_times)
def test_a_slot_begins_before_its_message_is_due_and_ends_then_or_later(due_ms: int) -> None:
    slot_ms = rules.slot_of(due_ms)
    assert slot_ms % 1000 == 0
    assert slot_ms < due_ms <= slot_ms + 1000


@given(_times, st.integers(0, 50 * 86_400_000), st.integers(2, 604_740))
def test_a_message_waits_within_the_window_and_never_behind_its_own_slot(
    now_ms: int, wait_ms: int, window: int
) -> None:
    slot_ms = rules.slot_of(now_ms + wait_ms + 1)
    placed_ms, rolls = rules.placed(slot_ms, now_ms, window)
    assert placed_ms <= slot_ms
    assert placed_ms - now_ms <= window * 1000
    assert rolls or placed_ms == slot_ms
    assert not rolls or placed_ms > now_ms


@given(_times, st.integers(0, 400_000_000), st.integers(2, 200))
def test_a_message_is_rolled_until_its_own_slot_is_near(
    now_ms: int, wait_ms: int, window: int
) -> None:
    slot_ms = rules.slot_of(now_ms + wait_ms + 1)
    rounds, rolls = 0, True
    while rolls and rounds < 50:
        placed_ms, rolls = rules.placed(slot_ms, now_ms, window)
        assert placed_ms >= now_ms // 1000 * 1000
        now_ms, rounds = placed_ms + 1, rounds + 1
    assert not rolls or wait_ms > 40 * window * 500


@given(_times, st.integers(1, 3 * 86_400_000), st.booleans())
def test_a_message_is_due_at_the_time_that_it_asks_for(
    stored_ms: int, wait_ms: int, relative: bool
) -> None:
    due_ms = stored_ms + wait_ms
    text = b"TIMER_DELAY_MS\x01%d" % wait_ms if relative else b"TIMER_DELIVER_MS\x01%d" % due_ms
    assert rules.asked_ms(text, stored_ms) == due_ms
    assert rules.due_ms(text, stored_ms, rules.slot_of(due_ms)) == due_ms


@given(st.binary(max_size=60), _times, _times)
def test_whatever_a_message_says_it_is_due_after_its_slot_begins(
    text: bytes, stored_ms: int, slot_ms: int
) -> None:
    slot_ms = slot_ms // 1000 * 1000
    for name in (b"TIMER_DELIVER_MS", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS"):
        due_ms = rules.due_ms(name + b"\x01" + text, stored_ms, slot_ms)
        assert slot_ms < due_ms < slot_ms + rules.LONGEST_SLOT_MS
