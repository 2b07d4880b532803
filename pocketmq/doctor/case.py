"""Shared by the doctor's checks: the case and its results."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from typing import Final, NamedTuple, Protocol

from broker import fast_path
from pocketmq.server import probe
from pocketmq.server.probe import B, NoAnswer
from remoting.protocol.command import Header
from remoting.runtime.clock import Clock, SystemClock

ACCELERATORS: Final = {
    "uvloop": "a faster event loop",
    "orjson": "faster JSON headers",
    "isal": "faster checksums",
}


class CheckVerdict(StrEnum):
    """The severity of a result."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the report.

    Attributes:
        check: what was checked.
        verdict: its severity.
        found: the observation.
        remedy: what to do; empty if nothing.
    """

    check: str
    verdict: CheckVerdict
    found: str
    remedy: str = ""


class Machine(NamedTuple):
    """The machine that the doctor runs on.

    Attributes:
        why_not_compiled: why PocketMQ runs without its compiled core; empty if it uses the core.
        descriptors: hard limit of file descriptors; -1 if unlimited.
        accelerators: the packages of ``ACCELERATORS`` that are installed.
    """

    why_not_compiled: str
    descriptors: int
    accelerators: frozenset[str]


def this_machine() -> Machine:
    """Return the properties of this machine."""
    # A server raises its soft limit to the hard one when it starts.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return Machine(
        fast_path.WHY,
        -1 if hard == resource.RLIM_INFINITY else hard,
        frozenset(name for name in ACCELERATORS if find_spec(name) is not None),
    )


class Ask(Protocol):
    """Sends one request to one server: see ``probe.ask``."""

    def __call__(
        self, address: str, code: int, kind: type[B], header: Header | None = None
    ) -> B: ...


@dataclass(slots=True, kw_only=True)
class Case:
    """The cluster to check, and what checks have found so far.

    Attributes:
        name_servers: the name servers' addresses.
        topic, group: checked too if given.
        clock: this machine's clock.
        ask: sends a request to a server.
        machine: the machine that the doctor runs on.
        brokers: broker name -> broker id -> address, from all name servers that answered.
        clusters: broker name -> cluster.
        answering: the addresses of name servers and brokers that answered.
    """

    name_servers: list[str]
    topic: str | None = None
    group: str | None = None
    clock: Clock = field(default_factory=SystemClock)
    ask: Ask = probe.ask
    machine: Machine = field(default_factory=this_machine)
    brokers: dict[str, dict[int, str]] = field(default_factory=dict)
    clusters: dict[str, str] = field(default_factory=dict)
    answering: list[str] = field(default_factory=list)

    @property
    def masters(self) -> dict[str, str]:
        """The address of each master broker that answered, by broker name."""
        return {
            name: members[0]
            for name, members in sorted(self.brokers.items())
            if members.get(0) in self.answering
        }

    def ask_masters(self, code: int, kind: type[B], header: Header | None = None) -> Iterator[B]:
        """Yield the answer of each master broker; skip those that don't answer."""
        for address in self.masters.values():
            try:
                answer = self.ask(address, code, kind, header)
            except NoAnswer:
                continue
            yield answer


def ok(check: str, found: str) -> CheckResult:
    """Return a result that needs no action."""
    return CheckResult(check, CheckVerdict.OK, found)


def warning(check: str, found: str, remedy: str) -> CheckResult:
    """Return a result about something that works, but not as it should."""
    return CheckResult(check, CheckVerdict.WARNING, found, remedy)


def failed(check: str, found: str, remedy: str) -> CheckResult:
    """Return a result about something that doesn't work."""
    return CheckResult(check, CheckVerdict.FAILED, found, remedy)
