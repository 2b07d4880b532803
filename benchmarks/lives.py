"""Compares start and recovery: the time from a process's start to its first acknowledged send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import startup
from benchmarks.figures import spread
from benchmarks.servers import directory
from benchmarks.tools import Target, fill
from tests.support.ports import free_ports

RECOVERY_MESSAGES: Final = 900_000
"""Messages of 1 KiB: a commit log of about 1 GiB."""

Command = Callable[[int, Path], list[str]]
SIDES: Final = ("ours", "theirs")


def _makers(python: Path) -> dict[str, Command]:
    return {"ours": partial(startup.ours, python=python), "theirs": startup.theirs}


@dataclass(slots=True)
class Lives:
    """Seconds of each start, and private MB after the first acknowledgement."""

    name: str
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"ours": [], "theirs": []})
    megabytes: dict[str, list[float]] = field(default_factory=lambda: {"ours": [], "theirs": []})

    def add(self, whose: str, result: tuple[float, float]) -> None:
        """Add the result of a start."""
        self.seconds[whose].append(result[0])
        self.megabytes[whose].append(result[1])

    def text(self) -> str:
        """Return a line for the report."""
        ours, theirs = (spread(self.seconds[whose]) for whose in SIDES)
        memory = [spread(self.megabytes[whose]).median for whose in SIDES]
        ratio = spread(
            [b / a for a, b in zip(self.seconds["ours"], self.seconds["theirs"], strict=True)]
        )
        return (
            f"{self.name}: PocketMQ {ours.median:.3f} s, Apache {theirs.median:.3f} s; "
            f"{ratio.median:.1f} ({ratio.low:.1f}-{ratio.high:.1f}) times sooner; "
            f"then {memory[0]:.0f} and {memory[1]:.0f} MB private"
        )

    def as_json(self) -> dict[str, Any]:
        """Return all results for the JSON file."""
        return {"name": self.name, "seconds": self.seconds, "private_megabytes": self.megabytes}


def starts(rounds: int, where: Path | None, python: Path) -> Lives:
    """Measure starts of both brokers with empty stores."""
    lives = Lives("start to first acknowledged send")
    for _ in range(rounds):
        for whose, make in _makers(python).items():
            with directory(where) as home:
                port = free_ports(3)
                lives.add(whose, startup.start_once(make(port, home), port))
    return lives


def recoveries(rounds: int, where: Path | None, python: Path, messages: int) -> Lives:
    """Measure starts of both brokers after filling their logs and killing them."""
    lives = Lives(f"start after kill -9 with {messages:,} messages of 1 KiB")
    for _ in range(rounds):
        for whose, make in _makers(python).items():
            with directory(where) as home:
                port = free_ports(3)
                command = make(port, home)
                with startup.process(command) as (running, started):
                    startup.seconds_until_acknowledged(port, started)
                    fill(Target("", f"127.0.0.1:{port}", running.pid), "filled", messages)
                lives.add(whose, startup.start_once(command, port))
    return lives
