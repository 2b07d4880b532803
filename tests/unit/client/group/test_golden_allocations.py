"""Every allocation captured from RocketMQ is reproduced."""

from __future__ import annotations

import json
from typing import Any

import pytest

from client.errors import UsageError
from client.group.strategies import (
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    Strategy,
    strategy_named,
)
from remoting.protocol.queue import MessageQueue
from tests.conftest import GOLDEN

CASES: list[dict[str, Any]] = json.loads((GOLDEN / "allocations.json").read_text())["cases"]


def room(name: str) -> str:
    return name.partition("-")[0]


def strategy_of(case: dict[str, Any]) -> Strategy:
    name, _, argument = case["strategy"].partition(":")
    if name == "CONSISTENT_HASH" and argument:
        return ConsistentHash(int(argument))
    if name == "CONFIG":
        return ByConfig(queues_of(case["config"]))
    if name == "MACHINE_ROOM":
        return ByMachineRoom(case["consumeridcs"])
    if name.startswith("MACHINE_ROOM_NEARBY-"):
        return MachineRoomNearby(strategy_named(case["inner"]), room, room)
    return strategy_named(name)


def queues_of(rows: list[Any]) -> list[MessageQueue]:
    return [MessageQueue(*row) for row in rows]


def test_the_capture_has_all_its_cases():
    assert len(CASES) == 175


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["strategy"]))
def test_allocations_are_those_of_rocketmq(case: dict[str, Any]):
    strategy = strategy_of(case)
    assert strategy.name == case["strategy_name"]
    queues = queues_of(case["queues"])
    expected = case.get("allocation") or {case.get("current"): case.get("result")}
    for member, share in expected.items():
        if case.get("throws"):
            with pytest.raises(UsageError, match="nothing can be allocated"):
                strategy.allocate(member, queues, case["consumers"], group="g")
        else:
            given = strategy.allocate(member, queues, case["consumers"], group="g")
            assert given == queues_of(share), member


def test_strategies_are_chosen_by_rocketmqs_names_and_ours():
    assert isinstance(strategy_named("AVG"), Averagely)
    assert isinstance(strategy_named("averagely"), Averagely)
    assert isinstance(strategy_named("AVG_BY_CIRCLE"), AveragelyByCircle)
    assert isinstance(strategy_named("CONSISTENT_HASH"), ConsistentHash)
    assert strategy_named("STICKY").name == "STICKY"
    given = ByConfig([])
    assert strategy_named(given) is given


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("AVGG", "did you mean 'AVG'"),
        ("", "no allocation strategy ''"),
        ("CONFIG", r"ByConfig\(queues\)"),
        ("MACHINE_ROOM", r"ByMachineRoom\(rooms\)"),
        (7, "7 is no allocation strategy"),
        (Averagely, "is no allocation strategy"),
    ],
)
def test_an_invalid_strategy_is_refused_with_a_remedy(wrong: Any, sentence: str):
    with pytest.raises(UsageError, match=sentence):
        strategy_named(wrong)


def test_an_unknown_machine_room_is_an_error():
    strategy = MachineRoomNearby(Averagely(), lambda _: "", room)
    with pytest.raises(UsageError, match="machine room of the broker 'b'"):
        strategy.allocate("a", [MessageQueue("T", "b", 0)], ["a"], group="g")


def test_a_ring_without_places_gives_nothing_and_a_negative_one_is_refused():
    assert ConsistentHash(0).allocate("a", [MessageQueue("T", "b", 0)], ["a"], group="g") == []
    with pytest.raises(UsageError, match="virtual_nodes can't be -1"):
        ConsistentHash(-1)
