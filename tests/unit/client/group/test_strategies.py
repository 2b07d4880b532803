"""Properties of every strategy for any members and queues, and those of Sticky only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.group.strategies import (
    Averagely,
    AveragelyByCircle,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    Sticky,
    Strategy,
)
from remoting.protocol.queue import MessageQueue


def room(name: str) -> str:
    return name.partition("@")[0]


ALL: list[Strategy] = [
    Averagely(),
    AveragelyByCircle(),
    ConsistentHash(),
    ByMachineRoom(["r0", "r1", "r2"]),
    MachineRoomNearby(Averagely(), room, room),
    MachineRoomNearby(ConsistentHash(3), room, room),
    Sticky(),
]

names = st.builds("r{}@{}".format, st.integers(0, 2), st.integers(0, 30))
members = st.lists(names, min_size=1, max_size=12, unique=True)
queues = st.lists(
    st.builds(MessageQueue, st.sampled_from(["A", "B", "C"]), names, st.integers(0, 15)),
    min_size=1,
    max_size=40,
    unique=True,
)
of_one_topic = queues.map(
    lambda some: sorted({MessageQueue("T", one.broker_name, one.queue_id) for one in some})
)


@pytest.mark.parametrize("strategy", ALL, ids=lambda one: one.name)
@given(of_one_topic, members)
def test_each_queue_has_exactly_one_owner(
    strategy: Strategy, some: list[MessageQueue], everybody: list[str]
):
    everybody = sorted(everybody)
    shares = [strategy.allocate(one, some, everybody, group="g") for one in everybody]
    assert sorted(queue for share in shares for queue in share) == some


@pytest.mark.parametrize("strategy", ALL, ids=lambda one: one.name)
@given(of_one_topic, members, st.randoms(use_true_random=False))
def test_allocations_depend_only_on_their_arguments(
    strategy: Strategy, some: list[MessageQueue], everybody: list[str], choose: object
):
    everybody = sorted(everybody)
    for one in everybody:
        first = strategy.allocate(one, some, everybody, group="g")
        again = strategy.allocate(one, tuple(some), tuple(everybody), group="g")
        assert first == again


@pytest.mark.parametrize("strategy", ALL, ids=lambda one: one.name)
@given(of_one_topic, members)
def test_a_non_member_gets_nothing(
    strategy: Strategy, some: list[MessageQueue], everybody: list[str]
):
    assert strategy.allocate("r0@stranger", some, sorted(everybody), group="g") == []


@given(of_one_topic, members)
def test_the_ring_moves_only_the_queues_of_a_leaving_member(
    some: list[MessageQueue], everybody: list[str]
):
    everybody = sorted([*everybody, "r9@leaver"])
    ring = ConsistentHash()
    for one in everybody[:-1]:
        before = set(ring.allocate(one, some, everybody, group="g"))
        after = set(ring.allocate(one, some, everybody[:-1], group="g"))
        assert before <= after


# Sticky

owners = st.dictionaries(st.integers(0, 39), st.integers(0, 14))


def owned(
    some: list[MessageQueue], everybody: list[str], drawn: dict[int, int]
) -> dict[MessageQueue, str]:
    """Some queues have owners, some of which have left."""
    people = [*everybody, "gone-1", "gone-2"]
    return {some[at % len(some)]: people[who % len(people)] for at, who in drawn.items()}


def fewest_moves(
    some: list[MessageQueue], everybody: list[str], held: Mapping[MessageQueue, str]
) -> int:
    """Compute the fewest moves by trying every even assignment."""
    least = len(some) // len(everybody)
    return min(
        sum(held.get(queue) != owner for queue, owner in zip(some, shared, strict=True))
        for shared in product(everybody, repeat=len(some))
        if all(least <= shared.count(one) <= least + 1 for one in everybody)
    )


@given(queues, members, owners)
def test_sticky_gives_each_queue_one_owner_and_even_shares(
    some: list[MessageQueue], everybody: list[str], drawn: dict[int, int]
):
    shares = Sticky().share_out(some, everybody, owned(some, everybody, drawn))
    assert shares.keys() == set(some)
    loads = Counter(shares.values())
    assert max(loads.values()) - min(loads.get(one, 0) for one in everybody) <= 1


@given(queues.map(lambda some: some[:5]), members.map(lambda everybody: everybody[:3]), owners)
def test_sticky_makes_the_fewest_moves_that_even_shares_allow(
    some: list[MessageQueue], everybody: list[str], drawn: dict[int, int]
):
    held = owned(some, everybody, drawn)
    shares = Sticky().share_out(some, everybody, held)
    moves = sum(held.get(queue) != owner for queue, owner in shares.items())
    assert moves == fewest_moves(some, everybody, held)


@given(queues, members, owners)
def test_sticky_is_stable(some: list[MessageQueue], everybody: list[str], drawn: dict[int, int]):
    shares = Sticky().share_out(some, everybody, owned(some, everybody, drawn))
    assert Sticky().share_out(some, everybody, shares) == shares


@given(queues, members, owners, st.randoms(use_true_random=False))
def test_members_that_see_different_moments_of_a_handover_agree(
    some: list[MessageQueue], everybody: list[str], drawn: dict[int, int], choose: object
):
    held = owned(some, everybody, drawn)
    shares = Sticky().share_out(some, everybody, held)
    moving = [queue for queue in some if held.get(queue) != shares[queue]]
    choose.shuffle(moving)  # type: ignore[attr-defined] # a random.Random
    for queue in moving:
        held.pop(queue, None)
        assert Sticky().share_out(some, everybody, held) == shares
        if choose.random() < 0.5:  # type: ignore[attr-defined] # as above
            held[queue] = shares[queue]
            assert Sticky().share_out(some, everybody, held) == shares


@given(queues, members)
def test_joining_and_leaving_move_only_queues_of_that_member(
    some: list[MessageQueue], everybody: list[str]
):
    before = Sticky().share_out(some, everybody, {})
    joined = Sticky().share_out(some, [*everybody, "newcomer"], before)
    moved = {queue for queue in some if joined[queue] != before[queue]}
    assert {joined[queue] for queue in moved} <= {"newcomer"}
    assert len(moved) == len(some) // (len(everybody) + 1)
    left = Sticky().share_out(some, everybody, joined)
    assert {queue for queue in some if left[queue] != joined[queue]} == moved


def test_topics_of_one_queue_each_are_spread_over_the_members():
    topics = [MessageQueue(f"T{number}", "b", 0) for number in range(6)]
    shares = Sticky().share_out(topics, ["a", "b", "c"], {})
    assert Counter(shares.values()) == {"a": 2, "b": 2, "c": 2}


def test_every_member_reads_every_topic_if_possible():
    some = [MessageQueue(topic, "b", number) for topic in "AB" for number in range(4)]
    shares = Sticky().share_out(some, ["a", "b", "c", "d"], {})
    for one in "abcd":
        assert {queue.topic for queue, owner in shares.items() if owner == one} == {"A", "B"}


def test_without_members_nothing_is_assigned():
    assert Sticky().share_out([MessageQueue("T", "b", 0)], [], {}) == {}
