"""Compares the rate of sends to 10,000 queues with that to four queues."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import client
from benchmarks.figures import Figures, spread
from benchmarks.scenarios import KIB, Scenario
from benchmarks.servers import HERE, directory, ours
from benchmarks.tools import Target, fill, load

FEW: Final = 4
MANY: Final = 10_000
LEAST: Final = 0.5
"""The bar: the least ratio of the rate with many queues to that with few."""


def scenario(queues: int) -> Scenario:
    """Return a scenario that sends 1 KiB to ``queues`` queues of a topic."""
    return Scenario(
        name=f"queues-{queues}",
        text=f"send 1 KiB, 4 x 64, {queues} queues",
        mode="send",
        options={"conns": 4, "inflight": 64, "size": KIB, "queues": queues},
        bars={},
    )


@dataclass(slots=True)
class Queues:
    """The figures of each round, with few queues and with many."""

    few: list[Figures] = field(default_factory=list)
    many: list[Figures] = field(default_factory=list)

    def text(self) -> str:
        """Return a line for the report."""
        pairs = zip(self.few, self.many, strict=True)
        rate = spread([many["per_s"] / few["per_s"] for few, many in pairs])
        verdict = "met" if rate.median >= LEAST else "missed"
        return (
            f"send-queues: {MANY:,} queues beside {FEW}: "
            f"{rate.median:.2f} ({rate.low:.2f}-{rate.high:.2f}) times the rate "
            f">= {LEAST}: {verdict}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return all results for the JSON file."""
        return {"name": "send-queues", "few": self.few, "many": self.many}


def create(target: Target, loads: tuple[Scenario, ...]) -> None:
    """Create the topics of the loads; a send would create at most eight queues."""

    async def create_all() -> None:
        async with client.Admin(target.nameserver) as admin:
            for each in loads:
                await admin.create_topic(each.name, queues=each.options["queues"])

    asyncio.run(create_all())


def measure(
    rounds: int, seconds: float, where: Path | None, python: Path = HERE, many: int = MANY
) -> Queues:
    """Alternate both loads on one broker."""
    result = Queues()
    loads = (scenario(FEW), scenario(many))
    with ExitStack() as stack:
        home = stack.enter_context(directory(where))
        target = stack.enter_context(ours(home / "pocketmq", sync_flush=False, python=python))
        create(target, loads)
        for each in loads:
            # The first message of a queue creates its file, which is not to be measured.
            count = each.options["queues"]
            fill(target, each.name, 2 * count, queues=count)
        for number in range(rounds):
            for each in loads if number % 2 == 0 else reversed(loads):
                made = result.few if each is loads[0] else result.many
                made.append(load(each, target, seconds=seconds, warm=1.0))
    return result
