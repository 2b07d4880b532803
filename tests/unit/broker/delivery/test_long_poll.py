"""Parked pulls: what wakes them, what ends them, what they cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.delivery.long_poll import TICK_SECONDS, LongPolls, ParkedPull


def pull(*, topic="T", queue_id=0, offset=5, deadline=10.0, codes=None, owner="c1") -> ParkedPull:
    return ParkedPull(topic, queue_id, offset, deadline, codes, owner, request=object())


def test_a_message_at_the_offset_wakes_the_pull():
    polls = LongPolls(0.0, limit=10)
    parked = pull(offset=5)
    assert polls.park(parked)
    assert polls.arrived("T", 0, 6, 0) == [parked]
    assert len(polls) == 0


def test_a_message_below_the_offset_does_not():
    polls = LongPolls(0.0, limit=10)
    polls.park(pull(offset=5))
    assert polls.arrived("T", 0, 5, 0) == []
    assert len(polls) == 1


def test_messages_of_other_queues_and_topics_do_not():
    polls = LongPolls(0.0, limit=10)
    polls.park(pull())
    assert polls.arrived("T", 1, 9, 0) == []
    assert polls.arrived("U", 0, 9, 0) == []


def test_a_message_of_another_tag_does_not():
    polls = LongPolls(0.0, limit=10)
    parked = pull(codes=frozenset({7}))
    polls.park(parked)
    assert polls.arrived("T", 0, 6, 8) == []
    assert polls.arrived("T", 0, 7, 7) == [parked]


def test_an_unknown_tag_wakes_everyone():
    polls = LongPolls(0.0, limit=10)
    parked = pull(codes=frozenset({7}))
    polls.park(parked)
    assert polls.arrived("T", 0, 6, None) == [parked]


def test_a_woken_pull_does_not_expire_too():
    polls = LongPolls(0.0, limit=10)
    polls.park(pull(deadline=1.0))
    polls.arrived("T", 0, 6, 0)
    assert polls.expired(100.0) == []


def test_a_pull_expires_within_a_tick_of_its_deadline_and_not_before():
    polls = LongPolls(0.0, limit=10)
    parked = pull(deadline=3.0)
    polls.park(parked)
    assert polls.expired(3.0 - 0.001) == []
    assert polls.expired(3.0 + 2 * TICK_SECONDS) == [parked]
    assert polls.expired(99.0) == []


def test_a_deadline_in_the_past_ends_at_the_next_tick():
    polls = LongPolls(50.0, limit=10)
    parked = pull(deadline=1.0)
    polls.park(parked)
    assert polls.expired(50.0 + 2 * TICK_SECONDS) == [parked]


def test_a_deadline_far_in_the_future_is_handled():
    polls = LongPolls(0.0, limit=10)
    polls.park(pull(deadline=2.0**63 / 1000))
    assert polls.expired(1e9) == []
    assert len(polls) == 1


def test_a_full_table_refuses_more_pulls():
    polls = LongPolls(0.0, limit=2)
    assert polls.park(pull())
    assert polls.park(pull())
    assert not polls.park(pull())
    polls.arrived("T", 0, 6, 0)
    assert polls.park(pull())


def test_a_closed_connection_removes_its_pulls():
    polls = LongPolls(0.0, limit=10)
    polls.park(pull(owner="c1"))
    polls.park(pull(owner="c1", queue_id=1))
    other = pull(owner="c2")
    polls.park(other)
    assert polls.forget("c1") == 2
    assert polls.forget("c1") == 0
    assert polls.arrived("T", 0, 6, 0) == [other]
    assert polls.arrived("T", 1, 6, 0) == []


def test_draining_returns_all_pulls():
    polls = LongPolls(0.0, limit=10)
    pulls = [pull(queue_id=n) for n in range(3)]
    for one in pulls:
        polls.park(one)
    assert polls.drain() == pulls
    assert len(polls) == 0
    assert polls.expired(1000.0) == []


def test_tables_are_empty_when_nobody_waits():
    polls = LongPolls(0.0, limit=10)
    polls.park(pull())
    polls.arrived("T", 0, 6, 0)
    assert not polls.queues
    assert len(polls) == 0


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("park"), st.integers(0, 3), st.floats(0, 20), st.integers(0, 2)),
        st.tuples(st.just("arrive"), st.integers(0, 3)),
        st.tuples(st.just("time"), st.floats(0, 5)),
        st.tuples(st.just("close"), st.integers(0, 2)),
    ),
    max_size=60,
)


@given(EVENTS)
def test_each_pull_ends_exactly_once_and_in_time(events):
    now, polls = 0.0, LongPolls(0.0, limit=20)
    parked: list[ParkedPull] = []
    for event in events:
        gone: list[ParkedPull] = []
        match event:
            case ("park", queue_id, wait, owner):
                one = pull(queue_id=queue_id, deadline=now + wait, owner=owner)
                if polls.park(one):
                    parked.append(one)
                else:
                    assert len(parked) == 20
            case ("arrive", queue_id):
                gone = polls.arrived("T", queue_id, 6, 0)
                assert gone == [one for one in parked if one.queue_id == queue_id]
            case ("time", seconds):
                now += seconds
                gone = polls.expired(now)
                assert all(one.deadline <= now for one in gone)
                left = [one for one in parked if one not in gone]
                assert all(one.deadline > now - 2 * TICK_SECONDS for one in left)
            case ("close", owner):
                gone = [one for one in parked if one.owner == owner]
                assert polls.forget(owner) == len(gone)
        parked = [one for one in parked if one not in gone]
        assert len(polls) == len(parked)
    assert polls.drain().__len__() == len(parked)


def test_memory_of_parked_pulls_is_bounded_and_released():
    polls = LongPolls(0.0, limit=10, max_weight=100)
    light, heavy = pull(owner="c1"), pull(owner="c2")
    heavy.weight = 70
    assert polls.park(heavy)
    more = pull(owner="c3")
    more.weight = 31
    assert not polls.park(more)
    assert polls.park(light)
    polls.forget("c2")
    assert polls.park(more)
    assert len(polls.drain()) == 2
    more.weight = 100
    assert polls.park(more)
