"""What the doctor's checks share: what is examined, and what each of them finds."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from typing import Final, NamedTuple, Protocol

from broker import fast_path
from pocketmq import probe
from pocketmq.probe import B, NoAnswer
from remoting.clock import Clock, SystemClock
from remoting.protocol.command import Header

ACCELERATORS: Final = {
    "uvloop": "a faster event loop",
    "orjson": "faster JSON headers",
    "isal": "faster checksums",
}


class CheckVerdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the report.

    Attributes:
        check: what was checked.
        verdict: how bad it is.
        found: the observation.
        remedy: what to do; empty for nothing.
    """

    check: str
    verdict: CheckVerdict
    found: str
    remedy: str = ""


class Machine(NamedTuple):
    """The machine that the doctor runs on.

    Attributes:
        why_not_compiled: why PocketMQ runs without its compiled core; empty when it has it.
        descriptors: hard limit of file descriptors; -1 for none.
        accelerators: those of ``ACCELERATORS`` that are installed.
    """

    why_not_compiled: str
    descriptors: int
    accelerators: frozenset[str]


def this_machine() -> Machine:
    """Examine this machine."""
    # A server raises its soft limit to the hard one when it starts.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return Machine(
        fast_path.WHY,
        -1 if hard == resource.RLIM_INFINITY else hard,
        frozenset(name for name in ACCELERATORS if find_spec(name) is not None),
    )


class Ask(Protocol):
    """Asks one server: see ``probe.ask``."""

    def __call__(
        self, address: str, code: int, kind: type[B], header: Header | None = None
    ) -> B: ...


@dataclass(slots=True, kw_only=True)
class Case:
    """The subject of the examination, and the results so far that later checks need.

    Attributes:
        name_servers: their addresses.
        topic, group: are examined as well when given.
        clock: this machine's.
        ask: asks a server.
        machine: the machine that the doctor runs on.
        brokers: broker name -> id -> address, of all name servers that answered.
        answering: the addresses of name servers and brokers that answered.
    """

    name_servers: list[str]
    topic: str | None = None
    group: str | None = None
    clock: Clock = field(default_factory=SystemClock)
    ask: Ask = probe.ask
    machine: Machine = field(default_factory=this_machine)
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

    def ask_masters(self, code: int, kind: type[B], header: Header | None = None) -> Iterator[B]:
        """Ask each master broker that answered before; those that don't answer are left out."""
        for address in self.masters.values():
            try:
                answer = self.ask(address, code, kind, header)
            except NoAnswer:
                continue
            yield answer


def ok(check: str, found: str) -> CheckResult:
    """Nothing to do."""
    return CheckResult(check, CheckVerdict.OK, found)


def warning(check: str, found: str, remedy: str) -> CheckResult:
    """It works, but not as it should."""
    return CheckResult(check, CheckVerdict.WARNING, found, remedy)


def failed(check: str, found: str, remedy: str) -> CheckResult:
    """It doesn't work."""
    return CheckResult(check, CheckVerdict.FAILED, found, remedy)
