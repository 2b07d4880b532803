"""From the state of a group to the queues lost and gained."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from client.group.rebalancer import Rebalancer, View
from client.group.strategies import Averagely, ByConfig, MachineRoomNearby, Sticky
from remoting.protocol.queue import MessageQueue


def queues(count: int, topic: str = "T", broker: str = "b") -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic, broker, number) for number in range(count))


def test_the_share_is_compared_with_what_is_held():
    four = queues(4)
    difference = Rebalancer(Averagely(), "y", "g").difference(
        {"T": View(four, ("x", "y"))}, {four[0], four[2]}
    )
    assert difference.lost == (four[0],)
    assert difference.gained == (four[3],)
    assert difference.wanted == {four[2], four[3]}


@given(
    st.lists(st.sampled_from(["a", "b", "c", "d", "me"]), unique=True).map(sorted),
    st.integers(0, 9),
    st.sets(st.integers(0, 12)),
)
def test_held_less_lost_plus_gained_is_what_is_wanted(
    members: list[str], count: int, numbers: set[int]
):
    held = {MessageQueue("T", "b", number) for number in numbers}
    difference = Rebalancer(Averagely(), "me", "g").difference(
        {"T": View(queues(count), tuple(members))}, held
    )
    assert (held - set(difference.lost)) | set(difference.gained) == difference.wanted
    assert set(difference.lost) <= held
    assert not held & set(difference.gained)


def test_queues_of_a_topic_with_unknown_members_are_kept():
    clear, unclear = queues(2), queues(2, "U")
    difference = Rebalancer(Averagely(), "x", "g").difference(
        {"T": View(clear, ("x",)), "U": None}, {unclear[1]}
    )
    assert difference.lost == ()
    assert difference.gained == clear


def test_queues_of_a_topic_no_longer_subscribed_are_lost():
    difference = Rebalancer(Averagely(), "x", "g").difference({}, queues(2))
    assert difference.lost == queues(2)


def test_deleted_queues_are_lost():
    difference = Rebalancer(Averagely(), "x", "g").difference(
        {"T": View((), ("x",))}, set(queues(2))
    )
    assert difference.lost == queues(2)


def test_a_strategy_that_fails_for_one_topic_leaves_the_others():
    near = MachineRoomNearby(
        Averagely(), lambda broker: "r" if broker == "b" else "", lambda _: "r"
    )
    strange = queues(1, "U", "strange")
    difference = Rebalancer(near, "x", "g").difference(
        {"T": View(queues(2), ("x",)), "U": View(strange, ("x",))}, {strange[0]}
    )
    assert difference.gained == queues(2)
    assert difference.lost == ()
    assert "machine room" in str(difference.failed["U"])


def test_queues_that_do_not_exist_are_named_and_not_wanted():
    named = [*queues(1), MessageQueue("T", "b", 7), MessageQueue("V", "b", 0)]
    difference = Rebalancer(ByConfig(named), "x", "g").difference(
        {"T": View(queues(2), ("x",)), "U": View(queues(1, "U"), ("x",))}, ()
    )
    assert difference.gained == queues(1)
    assert difference.unknown == (MessageQueue("T", "b", 7), MessageQueue("V", "b", 0))


def test_a_broadcasting_member_reads_all_queues():
    difference = Rebalancer(None, "x", "g").difference({"T": View(queues(3))}, ())
    assert difference.gained == queues(3)


def test_sticky_examines_all_topics_together():
    views = {name: View(queues(1, name), ("x", "y")) for name in ("A", "B")}
    x = Rebalancer(Sticky(), "x", "g").difference(views, ())
    y = Rebalancer(Sticky(), "y", "g").difference(views, ())
    assert [len(x.wanted), len(y.wanted)] == [1, 1]
    assert x.wanted | y.wanted == {*queues(1, "A"), *queues(1, "B")}


def test_sticky_keeps_queues_of_a_silent_broker():
    loud, silent = queues(2), queues(2, "T", "quiet")
    view = View((*loud, *silent), ("x", "y"), {loud[0]: "x", loud[1]: "x"}, frozenset({"quiet"}))
    difference = Rebalancer(Sticky(), "x", "g").difference({"T": view}, {*loud, silent[0]})
    assert difference.lost == (loud[1],)
    assert difference.gained == ()
