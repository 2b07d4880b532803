"""Checks of a cluster, each problem with a remedy.

A check is a function that takes the case and yields results; later checks use what earlier ones
stored in the case, such as the addresses of brokers. Nothing is changed anywhere. Nearly all
requests are RocketMQ's own, so Apache clusters can be checked too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from pocketmq.doctor.case import Case, CheckResult, CheckVerdict
from pocketmq.doctor.groups import all_groups, group
from pocketmq.doctor.servers import brokers, here, name_servers
from pocketmq.doctor.topics import spread, topic

__all__ = ["Case", "CheckResult", "CheckVerdict", "examine"]

CHECKS: Final[tuple[Callable[[Case], Iterator[CheckResult]], ...]] = (
    here,
    name_servers,
    brokers,
    topic,
    spread,
    all_groups,
    group,
)


def examine(case: Case) -> Iterator[CheckResult]:
    """Yield the results of all checks, in order."""
    for check in CHECKS:
        yield from check(case)
