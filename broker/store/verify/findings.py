"""What a check of a store has found.

``DAMAGE`` is of what exists but once: the log, or the broker's tables. ``DERIVED`` can be built
from the log again: queues, index, checkpoint. A ``NOTE`` is nothing wrong, but good to know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

MAX_FINDINGS: Final = 1000
"""Findings that are kept; the others are counted. Nobody reads more, and memory stays bounded."""


class Severity(StrEnum):
    """How bad a finding is."""

    DAMAGE = "damage"
    DERIVED = "derived"
    NOTE = "note"


class Finding(NamedTuple):
    """One thing that was found.

    Attributes:
        severity: how bad it is.
        kind: what it is, as a word for programs.
        path: the file or directory that it is in.
        place: of the log its physical offset; of other files the number of the byte; None for all
            of it.
        sentence: what it is.
    """

    severity: Severity
    kind: str
    path: str
    place: int | None
    sentence: str


class Findings:
    """Those of a check.

    Attributes:
        shown: the first of them.
        counts: how many there are of each severity.
        kinds: how many there are of each kind.
    """

    def __init__(self) -> None:
        self.shown: list[Finding] = []
        self.counts: Counter[Severity] = Counter()
        self.kinds: Counter[str] = Counter()

    def add(
        self, severity: Severity, kind: str, path: str, place: int | None, sentence: str
    ) -> None:
        """One more."""
        kind = str(kind)
        self.counts[severity] += 1
        self.kinds[kind] += 1
        if len(self.shown) < MAX_FINDINGS:
            self.shown.append(Finding(severity, kind, path, place, sentence))

    def damage(self, kind: str, path: str, place: int | None, sentence: str) -> None:
        """Something is wrong that exists but once."""
        self.add(Severity.DAMAGE, kind, path, place, sentence)

    def derived(self, kind: str, path: str, place: int | None, sentence: str) -> None:
        """Something is wrong that can be built anew."""
        self.add(Severity.DERIVED, kind, path, place, sentence)

    def note(self, kind: str, path: str, place: int | None, sentence: str) -> None:
        """Something is worth to be known."""
        self.add(Severity.NOTE, kind, path, place, sentence)

    def merge(self, other: Findings) -> None:
        """Those of a part of the check."""
        self.counts += other.counts
        self.kinds += other.kinds
        self.shown += other.shown[: MAX_FINDINGS - len(self.shown)]

    @property
    def is_sound(self) -> bool:
        """Whether there is nothing but notes."""
        return not self.counts[Severity.DAMAGE] and not self.counts[Severity.DERIVED]

    @property
    def left_out(self) -> int:
        """How many are counted, but not shown."""
        return self.counts.total() - len(self.shown)

    def of_kinds(self, kinds: Iterable[str]) -> int:
        """How many are of some kinds."""
        return sum(self.kinds[kind] for kind in kinds)
