"""Nothing acknowledged is lost, whatever fails: thousands of seeds; and the tests can fail."""

from __future__ import annotations

import re

import pytest

from tests.simulation import broken
from tests.simulation.world import Broker, Violation, run
from tests.support.sizes import SIZE, size

BLOCK = size(test=100, ci=500, soak=10_000)
"""Seeds of one test, so that several processes share them."""

BLOCKS = size(test=5, ci=20, soak=100)

FEW = size(ci=1500, soak=30_000)
"""Seeds that are enough to find a fault."""

RARE = [] if SIZE != "soak" else [(broken.WithRefusals, "I2"), (broken.LeadsAgain, "I2")]
"""Faults that one of thousands of seeds finds."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_group_keeps_its_promises(block: int) -> None:
    acknowledged = elections = crashes = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        world = run(seed)
        acknowledged += world.acknowledged_count
        elections += world.elections
        crashes += sum(broker.life - 1 for broker in world.brokers)
    assert acknowledged > 10 * BLOCK
    assert elections > BLOCK, "the seeds have more than their first elections"
    assert crashes > BLOCK


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("broker", "broken_promise"),
    [
        (broken.WithoutUnion, "I2"),
        (broken.WithoutTruncation, "I[12]"),
        (broken.AcknowledgesReceived, "I2"),
        (broken.AcknowledgesUnsynced, "I2"),
        (broken.CountsForeign, "I2"),
        (broken.ShowsUnconfirmed, "I4"),
        (broken.ConfirmsAllAtStart, "I1"),
        (broken.KeepsEmptyEpoch, "I[12]"),
        (broken.SavesEpochsLate, "I1"),
        (broken.ForgetsRequests, "I2"),
        *RARE,
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_a_fault_is_found(broker: type[Broker], broken_promise: str) -> None:
    first, *steps = first_loss(broker).splitlines()
    assert re.fullmatch(rf"seed \d+: Violation\('{broken_promise}: .*", first)
    assert "begin(broker" in steps[0], "the seed's steps are shown, from the first one on"


def first_loss(broker: type[Broker]) -> str:
    """Return what the first seed says that finds more than a group that doesn't heal."""
    for seed in range(FEW):
        try:
            run(seed, broker)
        except Violation as violation:
            if "liveness" not in str(violation).partition("\n")[0]:
                return str(violation)
    raise AssertionError(f"{FEW} seeds find nothing")


def test_a_seed_repeats_exactly() -> None:
    def outcome(seed: int) -> tuple[float, int, int, list[bytes]]:
        world = run(seed)
        logs = [bytes(broker.log) for broker in world.brokers]
        return world.now, world.acknowledged_count, world.elections, logs

    assert outcome(7) == outcome(7)
    assert outcome(7) != outcome(8)
