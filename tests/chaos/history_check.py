"""Judges a history in one pass over its events, and one over what they left.

What must not be:

lost         acknowledged, and the last reader did not get it: neither a message, nor one that was
             committed, nor one that was delayed
never sent   read, and no call sent it, or the call failed and nothing was stored
rolled back  read, and its transaction was rolled back
too early    read before its delay was over, by the broker's clock
two bodies   a place (queue, offset) had one message for one reader, and another for another; an
             acknowledgement counts as a reader
order        of two messages of one key, acknowledged one after the other, the later one has a lower
             place, or was read first
out of turn  a reader got an offset that does not follow its last one
went back    a group's committed offset is lower than one committed before, without a reset

There are exceptions, as RocketMQ's promises have them. After a crash, readers may have got messages
that were not acknowledged and die with the master, so their places may have other messages
afterwards; and of commits the last seconds may be lost. When the clock is set back, a broker
delivers at once what would wait for longer than its delay (cf. correctDeliverTimestamp). Copies are
counted, not judged: a producer repeats what is not acknowledged.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.history import NOWHERE, Event, Sent

MOST_PROBLEMS: Final = 50
"""Further ones are mostly consequences of the first ones."""

EARLY: Final = 0.002
"""How many seconds too early a message may seem: timestamps are whole milliseconds, and the wall
clock runs a little faster or slower than the monotonic one."""

NS: Final = 1_000_000_000
MS: Final = 1_000_000
"""Nanoseconds of a second, and of a millisecond."""

LATE_NS: Final = 5 * NS
"""How long after a crash, or a step of the clock, a reader may record what it got before."""


@dataclass
class Verdict:
    """The result.

    Attributes:
        problems: what must not be; empty: all is well.
        counts: of events and of problems by kind; ``copies`` read by the last reader, ``vanished``
            messages that were read and not acknowledged, and died with a master.
        found: the kinds of problems.
    """

    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    found: set[str] = field(default_factory=set)

    def complain(self, problem: str) -> None:
        kind, _, _ = problem.partition(":")
        self.found.add(kind)
        self.counts[kind] += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)


@dataclass(slots=True)
class _Call:
    """What the history says about one message."""

    sent: Sent
    at: int
    due: int
    outcome: str = "unknown"
    decided: str = ""
    queue: int = NOWHERE
    offset: int = NOWHERE


@dataclass
class _Group:
    """The commits of a group at one queue.

    Attributes:
        highest: of all.
        safe: the highest of those that no crash takes any more.
        recent: the others, with their times.
    """

    highest: int = NOWHERE
    safe: int = NOWHERE
    recent: deque[tuple[int, int]] = field(default_factory=deque)

    def age(self, until: int) -> None:
        """Make commits safe that are older."""
        while self.recent and self.recent[0][0] < until:
            self.safe = max(self.safe, self.recent.popleft()[1])


class Judge:
    """Judges events in the order of their times.

    Args:
        last_reader: who reads everything at the end.
        commits_lag: seconds of commits that a crash may take.
    """

    def __init__(self, *, last_reader: str = "last", commits_lag: float = 0.0) -> None:
        self.verdict = Verdict()
        self._last_reader = last_reader
        self._commits_lag = int(commits_lag * NS)
        self._calls: dict[int, _Call] = {}
        self._delayed: list[_Call] = []
        # By place: the message, and when it was seen there last.
        self._places: dict[tuple[int, int], tuple[int, int]] = {}
        self._replaced: list[tuple[tuple[int, int], int, int]] = []
        self._late_until = -1
        self._next: dict[tuple[str, int], tuple[int, int]] = {}
        self._reads_of_keys: dict[str, list[tuple[str, int]]] = {}
        self._last: Counter[int] = Counter()
        self._groups: dict[tuple[str, int], _Group] = {}
        # The broker's clock is ahead by one of these, in nanoseconds; and was until not long ago.
        self._ahead = [0]
        self._was_ahead: list[tuple[int, int]] = []

    def judge(self, history: Iterable[Event]) -> Verdict:
        """Return what a whole history deserves."""
        for event in history:
            self.verdict.counts[event.kind] += 1
            self._take(event)
        for number, call in self._calls.items():
            self._judge_call(number, call)
        for number in self._last:
            if self._last[number] > 1:
                self.verdict.counts["copies"] += self._last[number] - 1
        self._judge_places()
        self._judge_keys()
        return self.verdict

    def _take(self, event: Event) -> None:
        match event.kind:
            case "send":
                self._send(event)
            case "stored" | "failed" | "unknown":
                self._outcome(event)
            case "decided":
                self._calls[event.number].decided = event.detail
            case "read":
                self._read(event)
            case "crash":
                self._crash(event.at)
            case "clock" | "clock set":
                self._set_clock(event)
            case _:
                self._take_offset(event)

    def _take_offset(self, event: Event) -> None:
        match event.kind:
            case "committed":
                self._committed(event)
            case "found":
                self._found(event)
            case "reset":
                self._groups.pop((event.detail, event.queue), None)
            case kind:
                raise ValueError(f"a history has no events {kind!r}")

    # --- messages

    def _send(self, event: Event) -> None:
        sent = Sent.parse(event.detail)
        due = event.at + min(self._ahead) + sent.delay_ms * MS
        call = self._calls[event.number] = _Call(sent, event.at, due)
        if sent.delay_ms:
            self._delayed.append(call)

    def _outcome(self, event: Event) -> None:
        call = self._calls[event.number]
        call.outcome, call.queue, call.offset = event.kind, event.queue, event.offset
        if event.offset != NOWHERE:
            self._see(event)

    def _read(self, event: Event) -> None:
        call = self._calls.get(event.number)
        if call is None:
            self.verdict.complain(f"never sent: {_place(event)} was read by {event.who}")
            return
        if call.sent.delay_ms and (early := (call.due - self._latest(event.at)) / NS) > EARLY:
            self.verdict.complain(
                f"too early: {_place(event)} was read by {event.who} {early:.3f} s early"
            )
        if event.who == self._last_reader:
            self._last[event.number] += 1
        if call.sent.key:
            reads = self._reads_of_keys.setdefault(call.sent.key, [])
            reads.append((event.who, event.number))
        self._see(event)
        turn = (event.who, event.queue)
        expected, at = self._next.get(turn, (event.offset, event.at))
        went_back_after_crash = event.offset < expected and at < self._late_until
        if event.offset != expected and not went_back_after_crash:
            self.verdict.complain(
                f"out of turn: {event.who} read {_place(event)}, and expected {expected}"
            )
        self._next[turn] = event.offset + 1, event.at

    def _see(self, event: Event) -> None:
        """Compare what is at a place with what was there before."""
        place = event.queue, event.offset
        before, at = self._places.get(place, (event.number, event.at))
        if before != event.number:
            if at < self._late_until:
                self._replaced.append((place, before, event.number))
            else:
                self._two_bodies(place, before, event.number)
        self._places[place] = event.number, event.at

    def _two_bodies(self, place: tuple[int, int], one: int, other: int) -> None:
        self.verdict.complain(
            f"two bodies: queue {place[0]} offset {place[1]} has message {one} and message {other}"
        )

    def _judge_places(self) -> None:
        """What a crash replaced must not have been acknowledged at its place."""
        for place, before, after in self._replaced:
            call = self._calls[before]
            if (call.queue, call.offset) == place:
                self._two_bodies(place, before, after)
            else:
                self.verdict.counts["vanished"] += 1

    def _judge_call(self, number: int, call: _Call) -> None:
        is_read = number in self._last
        if call.outcome == "failed" and is_read:
            self.verdict.complain(f"never sent: message {number} was read, though its send failed")
        if call.decided == "rollback" and is_read:
            self.verdict.complain(f"rolled back: message {number} was read")
        is_open = call.sent.half and call.decided != "commit"
        if call.outcome == "stored" and not is_open and not is_read:
            self.verdict.complain(f"lost: message {number} ({call.sent}) was acknowledged")

    def _judge_keys(self) -> None:
        places: dict[str, tuple[int, int, int]] = {}
        for number, call in self._calls.items():
            if not call.sent.key or call.offset == NOWHERE:
                continue
            queue, offset, before = places.get(call.sent.key, (call.queue, -1, -1))
            if (call.queue, call.offset) <= (queue, offset) or call.queue != queue:
                self.verdict.complain(
                    f"order: message {number} is at queue {call.queue} offset {call.offset}, and"
                    f" the one before of its key, {before}, at queue {queue} offset {offset}"
                )
            places[call.sent.key] = call.queue, call.offset, number
        for key, reads in self._reads_of_keys.items():
            self._judge_reads(key, reads)

    def _judge_reads(self, key: str, reads: Iterable[tuple[str, int]]) -> None:
        """Each reader gets the acknowledged messages of a key first in the order of their sends."""
        highest: dict[str, int] = {}
        seen: set[tuple[str, int]] = set()
        for who, number in reads:
            if self._calls[number].outcome != "stored" or (who, number) in seen:
                continue
            seen.add((who, number))
            if number < highest.get(who, number):
                self.verdict.complain(
                    f"order: {who} read message {number} of key {key} after {highest[who]}"
                )
            highest[who] = max(number, highest.get(who, number))

    # --- committed offsets

    def _group(self, event: Event) -> _Group:
        return self._groups.setdefault((event.detail, event.queue), _Group())

    def _committed(self, event: Event) -> None:
        group = self._group(event)
        group.highest = max(group.highest, event.offset)
        group.recent.append((event.at, event.offset))
        group.age(event.at - self._commits_lag)

    def _found(self, event: Event) -> None:
        group = self._group(event)
        if event.offset < group.highest:
            self.verdict.complain(
                f"went back: group {event.detail} had committed {group.highest} of queue"
                f" {event.queue}, and now {event.offset}"
            )

    def _crash(self, at: int) -> None:
        self._late_until = at + LATE_NS
        for group in self._groups.values():
            group.age(at - self._commits_lag)
            group.recent.clear()
            group.highest = group.safe

    # --- the broker's clock

    def _latest(self, at: int) -> int:
        """Return the broker's time when it delivered what is recorded now, at the latest."""
        self._was_ahead = [entry for entry in self._was_ahead if at < entry[0] + LATE_NS]
        return at + max([*self._ahead, *(ahead for _, ahead in self._was_ahead)])

    def _set_clock(self, event: Event) -> None:
        if event.kind == "clock set":
            *before, now = self._ahead
            self._ahead = [now]
            self._was_ahead += [(event.at, ahead) for ahead in before]
            return
        ahead = int(event.detail)
        goes_back = ahead < max(self._ahead)
        self._ahead.append(ahead)
        now = event.at + max(self._ahead)
        self._delayed = [call for call in self._delayed if call.due > now]
        if goes_back:
            for call in self._delayed:
                call.due = 0


def _place(event: Event) -> str:
    return f"message {event.number} at queue {event.queue} offset {event.offset}"
