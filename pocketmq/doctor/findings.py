"""What the doctor's checks share: what is examined, what was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from remoting.clock import Clock, SystemClock


class CheckVerdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the report.

    Attributes:
        check: what was looked at.
        verdict: how bad it is.
        found: what was seen.
        remedy: what to do; empty when nothing is to be done.
    """

    check: str
    verdict: CheckVerdict
    found: str
    remedy: str = ""


@dataclass(slots=True, kw_only=True)
class Case:
    """What is to be examined, and what is known by now.

    Attributes:
        name_servers: their addresses.
        topic, group: are examined as well when given.
        clock: this machine's.
        brokers: broker name -> id -> address, of all name servers that answered.
        answering: the addresses of name servers and brokers that answered.
    """

    name_servers: list[str]
    topic: str | None = None
    group: str | None = None
    clock: Clock = field(default_factory=SystemClock)
    brokers: dict[str, dict[int, str]] = field(default_factory=dict)
    answering: list[str] = field(default_factory=list)

    @property
    def masters(self) -> dict[str, str]:
        """Name and address of each master broker that answered."""
        return {
            name: members[0]
            for name, members in sorted(self.brokers.items())
            if members.get(0) in self.answering
        }


def ok(check: str, found: str) -> CheckResult:
    """Nothing to do."""
    return CheckResult(check, CheckVerdict.OK, found)


def warning(check: str, found: str, remedy: str) -> CheckResult:
    """It works, but not as it should."""
    return CheckResult(check, CheckVerdict.WARNING, found, remedy)


def failed(check: str, found: str, remedy: str) -> CheckResult:
    """It doesn't work."""
    return CheckResult(check, CheckVerdict.FAILED, found, remedy)
