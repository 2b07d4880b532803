"""The replicas in sync, as their master knows them: what is confirmed, who joins and who leaves."""

from __future__ import annotations

import pytest

from broker.replication.in_sync import (
    ASK_SECONDS,
    LAG_SECONDS,
    LOST_SECONDS,
    InSyncRules,
    InSyncSet,
)

ALL = frozenset({1, 2, 3})
SAFE = InSyncRules()


def in_sync(
    *members: int, start: int = 100, confirmed: int = 100, rules: InSyncRules = SAFE
) -> InSyncSet:
    """The set of master 1, at epoch 5 of the set."""
    return InSyncSet(1, frozenset(members), 5, start=start, confirmed=confirmed, rules=rules)


def test_the_confirm_offset_is_where_the_log_is_in_all_of_the_set() -> None:
    group = in_sync(1, 2, 3)
    assert group.advance(150) == 100, "nobody is connected"
    second, third = group.connect(2, 0.0), group.connect(3, 0.0)
    second.count(140, 150, 0.0)
    assert group.advance(150) == 100
    third.count(120, 150, 0.0)
    assert group.advance(150) == 120
    second.count(150, 150, 0.0)
    third.count(150, 150, 0.0)
    assert group.advance(145) == 145, "the master counts, too: its log is on the disk up to there"
    assert group.advance(150) == 150


def test_the_confirm_offset_stays_while_one_of_the_set_has_no_connection() -> None:
    group = in_sync(1, 2)
    link = group.connect(2, 0.0)
    link.count(120, 120, 0.0)
    assert group.advance(120) == 120
    group.disconnect(link)
    assert group.advance(200) == 120
    again = group.connect(2, 1.0)
    assert group.advance(200) == 120, "what it acknowledged before it may have lost"
    again.count(110, 200, 1.0)
    assert group.advance(200) == 120, "the confirm offset never goes back"


def test_only_the_newest_connection_of_a_slave_counts() -> None:
    group = in_sync(1, 2)
    old, new = group.connect(2, 0.0), group.connect(2, 0.0)
    assert (old.is_void, new.is_void) == (True, False)
    old.count(200, 200, 0.0)
    assert group.advance(200) == 100
    group.disconnect(old)
    new.count(150, 200, 0.0)
    assert group.advance(200) == 150


def test_a_stranger_confirms_nothing() -> None:
    group = in_sync(1, 2)
    group.connect(9, 0.0).count(1 << 40, 200, 0.0)
    assert group.advance(200) == 100


def test_a_master_alone_in_its_set_confirms_all_it_has() -> None:
    assert in_sync(1).advance(300) == 300


def test_a_slave_joins_when_it_has_what_is_confirmed_and_some_of_the_epoch() -> None:
    group = in_sync(1, start=80, confirmed=100)
    link = group.connect(2, 0.0)
    assert group.ask(100, 0.0) is None
    link.count(99, 100, 0.0)
    assert group.ask(100, 0.0) is None
    link.count(100, 100, 0.0)
    assert group.ask(100, 0.0) == {1, 2}
    younger = in_sync(1, 3, start=80, confirmed=70)
    younger.connect(3, 0.0)
    younger.connect(2, 0.0).count(79, 90, 0.0)
    assert younger.ask(90, 0.0) is None


def test_a_learner_never_joins() -> None:
    group = in_sync(1)
    group.connect(2, 0.0, is_learner=True).count(100, 100, 0.0)
    assert group.ask(100, 0.0) is None


def test_from_the_request_on_the_acknowledgements_of_both_sets_are_needed() -> None:
    group = in_sync(1)
    link = group.connect(2, 0.0)
    link.count(100, 100, 0.0)
    assert group.ask(100, 0.0) == {1, 2}
    assert group.advance(200) == 100, "the controller may have the new set already"
    link.count(150, 200, 0.0)
    assert group.advance(200) == 150
    group.learn(frozenset({1, 2}), 6)
    assert group.advance(200) == 150


def test_a_slave_that_leaves_is_needed_until_the_controller_has_agreed() -> None:
    group = in_sync(1, 2, 3)
    for member in (2, 3):
        group.connect(member, 0.0).count(100, 100, 0.0)
    third = group.connect(3, 0.0)
    third.count(100, 100, 0.0)
    group.disconnect(third)
    assert group.ask(150, 0.0) == {1, 2}
    group.connect(2, 0.0).count(150, 150, 0.0)
    assert group.advance(150) == 100
    group.learn(frozenset({1, 2}), 6)
    assert group.advance(150) == 150


def test_an_answer_of_an_older_set_changes_nothing() -> None:
    group = in_sync(1)
    group.connect(2, 0.0).count(100, 100, 0.0)
    group.ask(100, 0.0)
    group.learn(frozenset({1}), 5)
    group.learn(ALL, 4)
    assert group.needed() == {1, 2}
    assert (group.members, group.epoch) == ({1}, 5)


def test_a_request_without_an_answer_is_repeated_and_stays_in_force() -> None:
    group = in_sync(1)
    link = group.connect(2, 0.0)
    link.count(100, 100, 0.0)
    assert group.ask(100, 0.0) == {1, 2}
    assert group.ask(100, ASK_SECONDS / 2) is None
    group.disconnect(link)
    assert group.ask(100, ASK_SECONDS) == {1, 2}, "the first one may be there, or still arrive"
    group.refused(ASK_SECONDS, is_unchanged=True)
    assert group.needed() == {1, 2}, "the first one has no answer"
    late = LOST_SECONDS + 1
    assert group.ask(100, late) == {1, 2}
    group.refused(late, is_unchanged=True)
    assert group.needed() == {1}, "and does not arrive any more"
    assert group.advance(200) == 200


def test_a_refusal_of_the_master_does_not_tell_what_became_of_earlier_requests() -> None:
    group = in_sync(1)
    group.connect(2, 0.0).count(100, 100, 0.0)
    group.ask(100, 0.0)
    late = LOST_SECONDS + 1
    group.ask(100, late)
    group.refused(late, is_unchanged=False)
    assert group.needed() == {1, 2}, "it may have been elected from the set of the first one"


def test_a_refusal_ends_a_request_at_once_if_it_was_the_only_one() -> None:
    group = in_sync(1)
    group.connect(9, 0.0).count(100, 100, 0.0)
    assert group.ask(100, 0.0) == {1, 9}
    group.refused(0.1, is_unchanged=True)
    assert group.needed() == {1}
    assert group.ask(100, 0.2) is None, "a stranger can't keep the controller busy"
    group.refused(0.2, is_unchanged=True)
    assert group.ask(100, ASK_SECONDS) == {1, 9}


@pytest.mark.parametrize(
    ("members", "connected", "dead", "becomes"),
    [
        ({1, 2}, {3}, {2, 3}, {1}),
        ({1, 2, 4}, {3, 4}, {2, 3}, {1, 4}),
        ({1, 2, 3, 4}, {3, 4}, {2, 3}, {1, 4}),
        ({1, 2, 3, 4}, {3, 4}, {2, 4}, {1, 3}),
        ({1, 2}, {2, 3, 4}, {3}, {1, 2, 4}),
        ({1, 2}, {2, 3}, {3}, {1, 2}),
        ({1, 2, 3}, {2, 3}, {3}, {1, 2, 3}),
    ],
)
def test_one_that_the_controller_takes_for_dead_keeps_no_other_from_leaving_and_joining(
    members: set[int], connected: set[int], dead: set[int], becomes: set[int]
) -> None:
    group = in_sync(*members)
    links = [group.connect(one, 0.0) for one in connected]
    for second in range(20, 40):
        for link in links:
            link.count(100, 100, float(second))
        wanted = group.ask(100, float(second))
        if wanted is not None and wanted & dead:
            group.refused(float(second), is_unchanged=True)
        elif wanted is not None:
            group.learn(wanted, group.epoch + 1)
    assert group.members == becomes


def test_a_slave_that_is_behind_for_long_leaves() -> None:
    group = in_sync(1, 2)
    link = group.connect(2, 0.0)
    link.count(100, 100, 0.0)
    link.count(100, 200, 1.0)
    assert group.ask(200, LAG_SECONDS) is None
    assert group.ask(200, LAG_SECONDS + 2) == {1}


def test_a_slave_that_is_always_a_little_behind_stays() -> None:
    group = in_sync(1, 2)
    link = group.connect(2, 0.0)
    for second in range(60):
        link.count(100 + 10 * second, 110 + 10 * second, float(second))
        assert group.ask(110 + 10 * second, float(second)) is None


def test_an_idle_slave_stays() -> None:
    group = in_sync(1, 2)
    group.connect(2, 0.0).count(100, 100, 0.0)
    assert group.ask(100, 1000.0) is None
    assert group.ask(100, 1001.0) is None


def test_sends_are_refused_while_too_few_are_in_sync() -> None:
    group = in_sync(1)
    refusal = group.refusal()
    assert refusal is not None
    assert "in-sync replicas not enough: 1 of at least 2" in refusal
    assert in_sync(1, 2).refusal() is None
    shrinking = in_sync(1, 2)
    assert shrinking.ask(100, 0.0) == {1}
    assert shrinking.refusal() is not None, "the controller may have the smaller set already"
    growing = in_sync(1)
    growing.connect(2, 0.0).count(100, 100, 0.0)
    assert growing.ask(100, 0.0) == {1, 2}
    assert growing.refusal() is not None, "the controller may still have the smaller set"
    assert in_sync(1, rules=InSyncRules(min_in_sync=1)).refusal() is None


@pytest.mark.parametrize(("needed", "acknowledged"), [(1, 300), (2, 250), (3, 200), (4, 0)])
def test_without_all_ack_a_number_of_replicas_is_enough(needed: int, acknowledged: int) -> None:
    group = in_sync(1, 2, 3, rules=InSyncRules(all_ack=False, in_sync=needed))
    group.connect(2, 0.0).count(250, 300, 0.0)
    group.connect(3, 0.0).count(200, 300, 0.0)
    assert group.acknowledged(300) == acknowledged
    assert group.advance(300) == 300, "consumers see what the master has"


def test_with_all_ack_a_send_is_acknowledged_when_it_is_confirmed() -> None:
    group = in_sync(1, 2)
    group.connect(2, 0.0).count(250, 300, 0.0)
    assert group.acknowledged(300) == group.confirmed == 250
