"""Queue locks as a state machine: what is requested when, and what counts as held."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from client.group.locks import Leases
from remoting.protocol.queue import MessageQueue

A, B = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_a_wanted_lock_is_requested_at_once_and_renewed_every_20_s():
    leases = Leases()
    leases.want(A, 100.0)
    assert leases.due(100.0) == [A]
    assert leases.answered([A], [A], 100.0) == {A: True}
    assert leases.holds(A, 100.0)
    assert leases.due(119.9) == []
    assert leases.next_due() == 120.0
    assert leases.due(120.0) == [A]
    assert leases.answered([A], [A], 120.0) == {}


def test_a_refused_lock_is_requested_often_at_first_and_every_second_later():
    leases = Leases()
    leases.want(A, 0.0)
    now, asked = 0.0, []
    while now < 9.0:
        asked.append(now)
        assert leases.answered(leases.due(now), [], now) == {}
        now = leases.next_due()
    pauses = [round(b - a, 6) for a, b in pairwise(asked)]
    assert pauses[:50] == [0.1] * 50
    assert set(pauses[51:]) == {1.0}


def test_a_refused_renewal_is_a_loss_and_requested_again_soon():
    leases = Leases()
    leases.want(A, 0.0)
    leases.answered([A], [A], 0.0)
    assert leases.answered([A], [], 20.0) == {A: False}
    assert not leases.holds(A, 20.0)
    assert leases.next_due() == 20.1
    assert leases.answered([A], [A], 20.1) == {A: True}


def test_a_lock_that_was_not_renewed_counts_as_lost_after_30_s():
    leases = Leases()
    leases.want(A, 0.0)
    leases.answered([A], [A], 0.0)
    leases.failed([A], 20.5)
    assert leases.expire(29.9) == []
    assert leases.holds(A, 29.9)
    assert not leases.holds(A, 30.0)
    assert leases.expire(30.0) == [A]
    assert leases.expire(30.0) == []


def test_when_one_is_renewed_all_are():
    leases = Leases()
    leases.want(A, 0.0)
    leases.answered([A], [A], 0.0)
    leases.want(B, 5.0)
    assert leases.due(5.0) == [B]
    leases.answered([B], [B], 5.0)
    assert leases.due(20.0) == [A, B]


def test_an_unwanted_lock_is_forgotten_even_if_its_answer_comes_later():
    leases = Leases()
    leases.want(A, 0.0)
    leases.drop(A)
    assert leases.answered([A], [A], 0.0) == {}
    leases.failed([A], 0.0)
    assert len(leases) == 0
    assert A not in leases
    assert leases.next_due() == float("inf")


@given(
    st.lists(
        st.tuples(st.floats(0.0, 15.0), st.sampled_from(["grant", "refuse", "fail", "nothing"]))
    )
)
def test_no_lock_is_held_longer_than_30_s_after_its_request(
    steps: list[tuple[float, str]],
):
    leases = Leases()
    leases.want(A, 0.0)
    now, granted_at = 0.0, float("-inf")
    for pause, what in steps:
        now += pause
        leases.expire(now)
        due = leases.due(now)
        if what == "fail":
            leases.failed(due, now)
        elif what != "nothing":
            leases.answered(due, [A] if what == "grant" else [], now)
            if due and what == "grant":
                granted_at = now
        if leases.holds(A, now):
            assert now - granted_at < 30.0
