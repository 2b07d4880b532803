"""What is wrong with consumer groups at the moment, since when, and what of it is worth a log line.

A finding is either a state, which holds until somebody looks again and no longer sees it, or an
event, which is kept for ten minutes. It is worth a line when it begins, and every five minutes as
long as it lasts. Pure: time comes in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from broker.groups.conflicts import CONFLICTS
from broker.limits import MAX_FINDINGS
from remoting.protocol.bodies.description import FindingKind, GroupFinding

EVENT_LIFE_MS: Final = 600_000
REMIND_MS: Final = 300_000

EVENTS: Final = frozenset({FindingKind.OFFSET_BACKWARDS, FindingKind.QUEUES_CHANGED})
STATES: Final = frozenset(FindingKind) - EVENTS

_Key = tuple[str, str | None, int | None]


@dataclass(slots=True)
class _Known:
    finding: GroupFinding
    said_ms: int
    ends_ms: int | None


class Findings:
    """The findings of all groups.

    Args:
        limit: how many are kept; others are not reported until there is room.

    Attributes:
        begun: how many there ever were, by kind.
    """

    __slots__ = ("_count", "_groups", "_limit", "begun")

    def __init__(self, *, limit: int = MAX_FINDINGS) -> None:
        self._groups: dict[str, dict[_Key, _Known]] = {}
        self._count = 0
        self._limit = limit
        self.begun: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._count

    def update(
        self, group: str, kinds: Container[str], found: Iterable[GroupFinding], now_ms: int
    ) -> list[GroupFinding]:
        """Somebody looked for states of these kinds; what is worth a line."""
        seen: set[_Key] = set()
        worth = []
        for finding in found:
            seen.add(_key(finding))
            if self._note(group, finding, now_ms, None):
                worth.append(finding)
        known = self._groups.get(group, {})
        gone = [key for key in known if key[0] in kinds and key not in seen]
        self._drop(group, gone)
        return worth

    def event(self, group: str, finding: GroupFinding, now_ms: int) -> bool:
        """Something happened; whether it is worth a line."""
        return self._note(group, finding, now_ms, now_ms + EVENT_LIFE_MS)

    def of(self, group: str) -> list[GroupFinding]:
        """What is wrong with a group."""
        return [known.finding for known in self._groups.get(group, {}).values()]

    def groups(self) -> list[str]:
        """The groups that something is wrong with."""
        return list(self._groups)

    def counts(self) -> Iterator[tuple[str, str, int, int]]:
        """Group, kind, how many findings of it there are, and since when the oldest, ms."""
        for group, known in self._groups.items():
            since: dict[str, list[int]] = {}
            for one in known.values():
                since.setdefault(one.finding.kind, []).append(one.finding.since_ms)
            for kind, times in since.items():
                yield group, kind, len(times), min(times)

    def sweep(self, group: str, now_ms: int) -> None:
        """Forget a group's events that are long ago."""
        known = self._groups.get(group, {})
        gone = [
            key for key, one in known.items() if one.ends_ms is not None and one.ends_ms < now_ms
        ]
        self._drop(group, gone)

    def _note(self, group: str, finding: GroupFinding, now_ms: int, ends_ms: int | None) -> bool:
        key = _key(finding)
        known = self._groups.get(group, {}).get(key)
        if known is None:
            if self._count >= self._limit:
                return False
            self._count += 1
            self.begun[finding.kind] += 1
            finding.since_ms = finding.since_ms or now_ms
            self._groups.setdefault(group, {})[key] = _Known(finding, now_ms, ends_ms)
            return True
        finding.since_ms = known.finding.since_ms if ends_ms is None else now_ms
        known.finding, known.ends_ms = finding, ends_ms
        if now_ms - known.said_ms < REMIND_MS:
            return False
        known.said_ms = now_ms
        return True

    def _drop(self, group: str, keys: list[_Key]) -> None:
        if not keys:
            return
        known = self._groups[group]
        for key in keys:
            del known[key]
        self._count -= len(keys)
        if not known:
            del self._groups[group]


def is_conflict(finding: GroupFinding) -> bool:
    """Whether a finding is between members."""
    return finding.kind in CONFLICTS


def _key(finding: GroupFinding) -> _Key:
    return finding.kind, finding.topic, finding.queue_id
