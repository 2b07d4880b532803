"""What the doctor looks at, and what it says to do about what it finds.

Each check is a function that takes what is known so far and gives its findings; a later one uses
what an earlier one learnt (which brokers there are). Nothing is changed anywhere. Nearly everything
asked is RocketMQ's own, so an Apache cluster can be examined as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from pocketmq.doctor.findings import Case, CheckResult, CheckVerdict
from pocketmq.doctor.groups import all_groups, group
from pocketmq.doctor.servers import brokers, here, name_servers
from pocketmq.doctor.topics import topic

__all__ = ["Case", "CheckResult", "CheckVerdict", "examine"]

CHECKS: Final[tuple[Callable[[Case], Iterator[CheckResult]], ...]] = (
    here,
    name_servers,
    brokers,
    topic,
    all_groups,
    group,
)


def examine(case: Case) -> Iterator[CheckResult]:
    """All findings, one after the other."""
    for check in CHECKS:
        yield from check(case)
