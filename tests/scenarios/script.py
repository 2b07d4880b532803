"""The text of a scenario: steps, and the expected outcome below each.

A line is a step, an expectation, a comment or empty. The comment ``# on: virtual processes apache``
lists the kinds of clusters on which the scenario runs. Expectations begin with ``->``; ``->
[ours]`` and ``-> [apache]`` apply to brokers of one kind only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
ARROW = "-> "
KINDS = ("ours", "apache")


@dataclass(slots=True)
class Step:
    """One step, and the expected lines below it, without the arrow."""

    line: int
    text: str
    expected: list[str] = field(default_factory=list)

    def at(self, kind: str) -> list[str]:
        """Return the outcome expected at brokers of one kind."""
        mine = f"[{kind}] "
        return [
            line.removeprefix(mine)
            for line in self.expected
            if line.startswith(mine) or not line.startswith("[")
        ]


@dataclass(slots=True)
class Script:
    """A scenario."""

    name: str
    lines: list[str]
    steps: list[Step]
    places: tuple[str, ...]

    @classmethod
    def load(cls, name: str) -> Script:
        """Load the scenario of this name."""
        return cls.parse(name, (SCRIPTS / f"{name}.txt").read_text())

    @classmethod
    def parse(cls, name: str, text: str) -> Script:
        """Parse a scenario's text."""
        lines = text.splitlines()
        steps: list[Step] = []
        places: tuple[str, ...] = ("virtual",)
        for number, line in enumerate(lines):
            if line.startswith("# on:"):
                places = tuple(line.removeprefix("# on:").split())
            elif line.startswith(ARROW):
                steps[-1].expected.append(line.removeprefix(ARROW))
            elif line and not line.startswith("#"):
                steps.append(Step(number, line))
        return cls(name, lines, steps, places)

    def with_outcomes(self, outputs: Mapping[int, list[str]], kind: str) -> str:
        """Return the text with the expectations replaced by the outcome at brokers of one kind."""
        steps = {step.line: step for step in self.steps}
        text: list[str] = []
        for number, line in enumerate(self.lines):
            if line.startswith(ARROW):
                continue
            text.append(line)
            if number in steps:
                text += [ARROW + line for line in _merged(steps[number], outputs[number], kind)]
        return "\n".join(text) + "\n"


def _merged(step: Step, output: list[str], kind: str) -> list[str]:
    """Return the outcome of one kind of brokers, with the expectations of the other kind."""
    if output == step.at(kind):
        return step.expected
    others = [line for line in step.expected if line.startswith("[") and f"[{kind}] " not in line]
    marked = {line for line in step.expected if line.startswith(f"[{kind}] ")}
    mine = [f"[{kind}] {line}" if f"[{kind}] {line}" in marked else line for line in output]
    return mine + others


def names(place: str) -> list[str]:
    """Return the scenarios that can run on one kind of cluster."""
    found = sorted(path.stem for path in SCRIPTS.glob("*.txt"))
    return [name for name in found if place in Script.load(name).places]
