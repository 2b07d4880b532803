"""What is shown while the group works.

At a terminal a table of who owns what stands below what is told, and changes in its place. In a
pipe each thing told is a line of two columns, and so is the group's state when its owners change,
or each second. rich is imported only for a terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import click

if TYPE_CHECKING:
    from rich.table import Table

LINE_PERIOD: Final = 1.0
"""Seconds between lines about a group whose owners stay."""


class Row(NamedTuple):
    """One queue: who owns it, its end, and how far its group is behind."""

    queue: int
    owner: str
    end: int
    lag: int


class Stage(Protocol):
    """Where a group is shown."""

    def tell(self, text: str) -> None:
        """Something happened."""

    def show(self, group: str, rows: Sequence[Row]) -> None:
        """How things are."""


class Silence:
    """Nobody looks."""

    def tell(self, text: str) -> None:
        """Say nothing."""

    def show(self, group: str, rows: Sequence[Row]) -> None:
        """Show nothing."""


class Lines:
    """A line for each thing, on stdout: seconds or group, tab, text."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._owners: list[str] = []
        self._shown = float("-inf")

    def tell(self, text: str) -> None:
        """Print it with the time."""
        click.echo(f"{time.monotonic() - self._began:.1f} s\t{text}")

    def show(self, group: str, rows: Sequence[Row]) -> None:
        """Print it if it has changed, or after a while."""
        now, owners = time.monotonic(), [row.owner for row in rows]
        if owners == self._owners and now - self._shown < LINE_PERIOD:
            return
        self._owners, self._shown = owners, now
        of_each = ", ".join(f"queue {row.queue} {row.owner} lag {row.lag}" for row in rows)
        click.echo(f"{group}\t{of_each}")


class _Live:
    """A table that changes, below what is told."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - 40 ms, and only at a terminal
        from rich.live import Live  # noqa: PLC0415 - as above

        self.display = Live(console=Console(), refresh_per_second=8, transient=True)

    def tell(self, text: str) -> None:
        """Print it above the table."""
        self.display.console.print(text, highlight=False)

    def show(self, group: str, rows: Sequence[Row]) -> None:
        """Change the table."""
        self.display.update(_table(group, rows))


def _table(group: str, rows: Sequence[Row]) -> Table:
    from rich.table import Table  # noqa: PLC0415 - 40 ms, and only at a terminal

    table = Table(title=f"group {group}", title_justify="left", box=None, header_style="bold")
    for name in ("queue", "owner", "messages", "lag"):
        table.add_column(name, justify="left" if name == "owner" else "right", min_width=9)
    for row in rows:
        style = "red" if row.owner == NOBODY else ""
        table.add_row(str(row.queue), row.owner, f"{row.end:,}", f"{row.lag:,}", style=style)
    return table


NOBODY: Final = "nobody"


@contextmanager
def stage(*, silent: bool) -> Iterator[Stage]:
    """The stage that fits where the output goes."""
    if silent:
        yield Silence()
    elif sys.stdout.isatty():
        live = _Live()
        with live.display:
            yield live
    else:
        yield Lines()
