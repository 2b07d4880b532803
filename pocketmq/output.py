"""What the commands print: a table at a terminal, plain text in a pipe, JSON when asked for it.

At a terminal a table has a title row and is painted by rich. In a pipe each row is one line of
values separated by tabs, without a title row, for ``cut``, ``while read`` and the like. JSON is one
document: a list of objects, or one object. rich is imported only when something is painted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import click

from remoting.protocol.accelerated import json_dumps

Row = Mapping[str, object]


class Progress(Protocol):
    """Is told how far something is."""

    def advance(self, count: int) -> None:
        """So many more are done."""


class _NoProgress:
    def advance(self, count: int) -> None:
        """Nobody looks."""


def show_json(value: object) -> None:
    """Print a value as one line of JSON."""
    click.echo(json_dumps(value))


def show_rows(
    rows: Sequence[Row],
    columns: Sequence[str],
    *,
    as_json: bool,
    colour: Callable[[Row], str] | None = None,
) -> None:
    """Print rows.

    Args:
        rows: each a value per column; more than the columns' are only seen in JSON.
        columns: what to show, in this order.
        as_json: a list of objects.
        colour: of a row at a terminal, in rich's words; empty for none.
    """
    if as_json:
        show_json([dict(row) for row in rows])
    elif sys.stdout.isatty():
        _paint(rows, columns, colour)
    else:
        for row in rows:
            click.echo("\t".join(plain(row.get(column)) for column in columns))


def show_facts(facts: Row, *, as_json: bool) -> None:
    """Print one thing's facts, one a line."""
    if as_json:
        show_json(dict(facts))
    elif sys.stdout.isatty():
        _paint_facts(facts)
    else:
        for name, value in facts.items():
            click.echo(f"{name}\t{plain(value)}")


def done(text: str, facts: Row, *, as_json: bool) -> None:
    """Say in one sentence, or one object, what was done."""
    if as_json:
        show_json(dict(facts))
    else:
        click.echo(text)


def plain(value: object) -> str:
    """A value as text of one line, without tabs."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(plain(part) for part in value) or "-"
    return " ".join(str(value).split()) or "-"


@contextmanager
def progress(label: str, total: int | None, *, shown: bool = True) -> Iterator[Progress]:
    """A progress bar on stderr if that is a terminal, else nothing.

    Args:
        label: what is going on.
        total: of how many; None: unknown.
        shown: False: nothing in any case.
    """
    if not shown or not sys.stderr.isatty():
        yield _NoProgress()
        return
    with _bar(label, total) as bar:
        yield bar


@contextmanager
def _bar(label: str, total: int | None) -> Iterator[Progress]:
    from rich import progress as rich_progress  # noqa: PLC0415 - 40 ms, and only at a terminal
    from rich.console import Console  # noqa: PLC0415 - as above

    class Bar:
        def advance(self, count: int) -> None:
            """Move on."""
            display.advance(task, count)

    with rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as display:
        task = display.add_task(label, total=total)
        yield Bar()


def _paint(
    rows: Sequence[Row], columns: Sequence[str], colour: Callable[[Row], str] | None
) -> None:
    from rich.console import Console  # noqa: PLC0415 - 40 ms, and only at a terminal
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(
            column.replace("_", " "),
            justify="right" if rows and numeric else "left",
            # A narrow terminal breaks values over lines instead of cutting them off.
            overflow="fold",
        )
    for row in rows:
        style = colour(row) if colour is not None else ""
        table.add_row(*(Text(_pretty(row.get(column)), style=style) for column in columns))
    Console().print(table)


def _paint_facts(facts: Row) -> None:
    from rich.console import Console  # noqa: PLC0415 - 40 ms, and only at a terminal
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        table.add_row(Text(name.replace("_", " "), style="bold"), Text(_pretty(value)))
    Console().print(table)


def _pretty(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return plain(value)
