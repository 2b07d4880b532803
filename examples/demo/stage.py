"""The display of the demo while the group works.

At a terminal messages scroll above a table of the queues and their owners, which is updated in
place. In a pipe each message is a line of two columns, and so is the state of the group, printed
when owners change and otherwise once a second. rich is imported only at a terminal.
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
"""Seconds between lines about a group whose owners don't change."""


class Row(NamedTuple):
    """One queue: its owner, its end offset, and the lag of the group in messages."""

    queue: int
    owner: str
    end: int
    lag: int


class Stage(Protocol):
    """A display of messages and of the state of a group."""

    def tell(self, text: str) -> None:
        """Show a message."""

    def show(self, group: str, rows: Sequence[Row]) -> None:
        """Show the state of a group."""


class Silence:
    """A display that shows nothing."""

    def tell(self, text: str) -> None:
        """Do nothing."""

    def show(self, group: str, rows: Sequence[Row]) -> None:
        """Do nothing."""


class Lines:
    """A display that prints lines to stdout: seconds or group, tab, text."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._owners: list[str] = []
        self._shown = float("-inf")

    def tell(self, text: str) -> None:
        """Print a message with the seconds since the start."""
        click.echo(f"{time.monotonic() - self._began:.1f} s\t{text}")

    def show(self, group: str, rows: Sequence[Row]) -> None:
        """Print the state if an owner has changed, or after ``LINE_PERIOD``."""
        now, owners = time.monotonic(), [row.owner for row in rows]
        if owners == self._owners and now - self._shown < LINE_PERIOD:
            return
        self._owners, self._shown = owners, now
        of_each = ", ".join(f"queue {row.queue} {row.owner} lag {row.lag}" for row in rows)
        click.echo(f"{group}\t{of_each}")


class _Live:
    """A display with messages above a table that is updated in place."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - 40 ms, and only at a terminal
        from rich.live import Live  # noqa: PLC0415 - as above

        self.display = Live(console=Console(), refresh_per_second=8, transient=True)

    def tell(self, text: str) -> None:
        """Print a message above the table."""
        self.display.console.print(text, highlight=False)

    def show(self, group: str, rows: Sequence[Row]) -> None:
        """Update the table."""
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
    """Return the display for a terminal, a pipe, or silence."""
    if silent:
        yield Silence()
    elif sys.stdout.isatty():
        live = _Live()
        with live.display:
            yield live
    else:
        yield Lines()
