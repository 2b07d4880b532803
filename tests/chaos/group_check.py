"""Checks that a group handled its messages correctly, from what its members logged.

Per queue, the offsets of the handlers' calls rise by one from the first to the last, over all
owners. There are two exceptions: the successor of a killed member may start earlier, at or after
the offset that the broker had from it; the successor of a foreign client, which releases queues
with unsettled messages, may repeat some of its latest. In an ordered group no call begins while
another one of the queue runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.group_log import Event

MAX_PROBLEMS: Final = 50
"""Maximum number reported: findings after the first ones are mostly their consequences."""


@dataclass(frozen=True)
class Kill:
    """A member that was killed.

    Attributes:
        member: which.
        at: when, on the events' clock.
        committed: the offsets the broker had then, per queue.
    """

    member: str
    at: int
    committed: Mapping[str, int]


@dataclass
class Findings:
    """The result of the check.

    Attributes:
        problems: what must not be; empty: all is well.
        handled: messages, each counted once.
        repeated: calls for messages that had been handled before; all excused, or a problem.
        rests: the longest time without a call of each queue, in nanoseconds, counted from the
            latest kill within it.
        numbers: which messages were handled, by their numbers.
    """

    problems: list[str] = field(default_factory=list)
    handled: int = 0
    repeated: int = 0
    rests: dict[str, int] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)

    def complain(self, problem: str) -> None:
        """Record a problem."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)


@dataclass
class _Queue:
    """The events of one queue so far."""

    next: int = 0
    highest: int = 0
    last: Event | None = None
    stretch_from: int = 0
    running: set[tuple[str, int]] = field(default_factory=set)


def check(
    events: Iterable[Event],
    stored: Mapping[str, int],
    *,
    ordered: bool,
    kills: Collection[Kill] = (),
    foreign: Collection[str] = (),
) -> Findings:
    """Judge what a group did.

    Args:
        events: in the order of their times.
        stored: queue -> how many messages it has, from offset 0.
        ordered: no two calls of a queue may run at once.
        kills: of members.
        foreign: the members that use another client.
    """
    findings = Findings()
    queues = {queue: _Queue() for queue in stored}
    killed = {kill.member: kill for kill in kills}
    for event in events:
        state = queues.get(event.queue)
        if state is None:
            findings.complain(f"{event.member} handled {event.queue}, which isn't the group's")
            continue
        if event.kind == "end":
            state.running.discard((event.member, event.offset))
            continue
        _rest(findings, state, event, kills)
        if ordered:
            _alone(findings, state, event, killed)
        _follows(findings, state, event, killed, foreign)
        if event.kind == "begin":
            state.running.add((event.member, event.offset))
    for queue, count in stored.items():
        if queues[queue].highest < count:
            findings.complain(
                f"lost: {queue} was handled up to {queues[queue].highest} of {count} messages"
            )
    return findings


def _rest(findings: Findings, state: _Queue, event: Event, kills: Collection[Kill]) -> None:
    if state.last is None:
        return
    since = max([state.last.at, *(kill.at for kill in kills if kill.at < event.at)])
    findings.rests[event.queue] = max(findings.rests.get(event.queue, 0), event.at - since)


def _alone(findings: Findings, state: _Queue, event: Event, killed: Mapping[str, Kill]) -> None:
    for member, offset in list(state.running):
        kill = killed.get(member)
        if kill is not None and kill.at <= event.at:
            state.running.discard((member, offset))
        else:
            findings.complain(
                f"two at once: {event.member} began {event.queue} {event.offset} while {member} "
                f"was at {offset}"
            )


def _follows(
    findings: Findings,
    state: _Queue,
    event: Event,
    killed: Mapping[str, Kill],
    foreign: Collection[str],
) -> None:
    last, offset = state.last, event.offset
    changed = last is None or last.member != event.member
    if offset > state.next:
        findings.complain(
            f"gap: {event.member} handled {event.queue} {offset}, expected {state.next}"
        )
    elif offset < state.next:
        findings.repeated += 1
        floor = _floor(state, event, killed, foreign) if changed else None
        if floor is None or offset < floor:
            findings.complain(_repeat(state, event, floor))
    if offset >= state.highest:
        findings.handled += 1
        state.highest = offset + 1
    elif offset == state.next:
        findings.repeated += 1
    findings.numbers.add(event.number)
    if changed:
        state.stretch_from = offset
    state.next = offset + 1
    state.last = event


def _floor(
    state: _Queue, event: Event, killed: Mapping[str, Kill], foreign: Collection[str]
) -> int | None:
    """Return the lowest offset at which a new owner may restart; None: no repeat is allowed."""
    assert state.last is not None
    before = state.last.member
    kill = killed.get(before)
    if kill is not None and kill.at <= event.at:
        return kill.committed.get(event.queue, 0)
    return state.stretch_from if before in foreign else None


def _repeat(state: _Queue, event: Event, floor: int | None) -> str:
    last = state.last
    assert last is not None
    excuse = "which nothing excuses" if floor is None else f"before the committed {floor}"
    return (
        f"repeated: {event.member} handled {event.queue} {event.offset} after {last.member} had "
        f"handled {last.offset} {(event.at - last.at) / 1e6:.0f} ms before, {excuse}"
    )
