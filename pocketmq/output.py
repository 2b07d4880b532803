"""Output of the commands: a table at a terminal, plain text in a pipe, JSON with ``--json``.

At a terminal a table has a title row, is drawn by rich and fits the width; values without spaces,
such as ids and times, are never broken. In a pipe each row is one line of tab-separated values
without a title row, for ``cut``, ``while read`` and the like. JSON output is one document: a list
of objects, or one object. rich is imported only when it is used.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import click

from remoting.protocol.accelerated import json_dumps

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

Row = Mapping[str, object]

_GAP: Final = 2
"""Spaces between the columns of a table at a terminal."""

_INSTANT: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d{3}\+00:00")
"""A UTC time as it is in rows; at a terminal it is shown without milliseconds."""


class StandardStream(io.FileIO):
    """The file below a standard stream; its errors name the stream.

    After an error stdout drops what is written, so the error occurs once. stderr never fails: there
    is nowhere to report it, and a server's log goes on when a full disk has space again.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w" if descriptor else "r", closefd=False)
        self.name = ("stdin", "stdout", "stderr")[descriptor]
        self._failed = False

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        """Read into the buffer."""
        with self._named():
            return super().readinto(buffer)

    def readall(self) -> bytes:
        """Return the rest."""
        with self._named():
            return super().readall()

    def write(self, data: ReadableBuffer, /) -> int:
        """Write the data, or drop it."""
        if not self._failed:
            try:
                with self._named():
                    return super().write(data)
            except OSError:
                if self.name == "stdout":
                    self._failed = True
                    raise
        return memoryview(data).nbytes

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            problem.filename = self.name
            raise


def adopt_standard_streams() -> None:
    """Make this process handle closed and failing standard streams, and narrow encodings.

    A closed stream is opened: else the next file or socket would get its number. Using it fails, as
    before. Characters that the encoding of stdout or stderr doesn't have are written as escapes.
    """
    usable_otherwise = (os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)
    for descriptor, access in enumerate(usable_otherwise):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, access), True)
        raw = StandardStream(descriptor)
        usual: io.TextIOWrapper | None = getattr(sys, raw.name)
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw) if descriptor else io.BufferedReader(raw),
            encoding=usual.encoding if usual is not None else "utf-8",
            errors="backslashreplace" if descriptor else "surrogateescape",
            line_buffering=descriptor > 0 and (raw.isatty() or raw.name == "stderr"),
            write_through=usual is not None and usual.write_through,
        )
        setattr(sys, raw.name, stream)


def os_error(problem: OSError) -> str:
    """Return what went wrong, with the name of the file or stream."""
    where = f"{problem.filename}: " if problem.filename else ""
    return f"{where}{problem.strerror or problem}"


Advance = Callable[[int], None]
"""Adds to the number of items done."""


def show_json(value: object) -> None:
    """Print a value as one line of JSON."""
    click.echo(json_dumps(value))


def show_rows(
    rows: Sequence[Row],
    columns: Sequence[str],
    *,
    as_json: bool,
    spare: Sequence[str] = (),
    colour: Callable[[Row], str] | None = None,
) -> None:
    """Print rows.

    Args:
        rows: a value per column; further values appear only in JSON.
        columns: the columns to show, in this order.
        as_json: print a list of objects.
        spare: columns omitted at a narrow terminal, in this order.
        colour: returns a row's style at a terminal, in rich's syntax; empty for none.
    """
    if as_json:
        show_json([dict(row) for row in rows])
    elif sys.stdout.isatty():
        _paint(rows, columns, spare, colour)
    else:
        for row in rows:
            click.echo("\t".join(plain(row.get(column)) for column in columns))


def show_facts(facts: Row, *, as_json: bool) -> None:
    """Print the facts about one object, one per line."""
    if as_json:
        show_json(dict(facts))
    elif sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415 - 40 ms, and only at a terminal
        from rich.table import Table  # noqa: PLC0415 - as above
        from rich.text import Text  # noqa: PLC0415 - as above

        table = Table(box=None, show_header=False, pad_edge=False)
        for name, value in facts.items():
            table.add_row(Text(name.replace("_", " "), style="bold"), Text(_pretty(value)))
        Console().print(table)
    else:
        for name, value in facts.items():
            click.echo(f"{name}\t{plain(value)}")


def done(text: str, facts: Row, *, as_json: bool) -> None:
    """Print what was done, as a sentence or as a JSON object."""
    if as_json:
        show_json(dict(facts))
    else:
        click.echo(text)


def plain(value: object) -> str:
    """Return a value as one line of text without tabs.

    What can't be printed is written as an escape: in a message it could control the terminal.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(plain(part) for part in value) or "-"
    text = " ".join(str(value).split()) or "-"
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def count(number: int, noun: str) -> str:
    """Return a number with its noun, e.g. ``1 message`` or ``2 messages``; the plural ends in s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def progress(label: str, total: int | None, *, shown: bool = True) -> Iterator[Advance]:
    """Show a progress bar on stderr if that is a terminal; yield what advances it.

    Args:
        label: the text beside the bar.
        total: the number of items; None if unknown.
        shown: False: show nothing.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import progress as rich_progress  # noqa: PLC0415 - 40 ms, and only at a terminal
    from rich.console import Console  # noqa: PLC0415 - as above

    with rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as display:
        yield partial(display.advance, display.add_task(label, total=total))


class _Column:
    """One column of a table at a terminal.

    Attributes:
        least: width of its longest word; a narrower column would break values.
        width: current width, initially that of its longest value or title; ``_shrink`` lowers it.
    """

    def __init__(self, name: str, rows: Sequence[Row]) -> None:
        self.name = name
        self.cells = [_pretty(row.get(name)) for row in rows]
        self.numeric = bool(rows) and all(
            isinstance(row.get(name), int | float | None) for row in rows
        )
        self.title = name.replace("_", " ")
        texts = [self.title, *self.cells]
        self.least = max(len(word) for text in texts for word in text.split())
        self.width = max(map(len, texts))


def _shrink(columns: Sequence[_Column], width: int) -> bool:
    """Narrow the widest text columns until all fit; False if words would be broken."""
    excess = sum(column.width + _GAP for column in columns) - _GAP - width
    for _ in range(excess):
        wrappable = [column for column in columns if column.width > column.least]
        if not wrappable:
            return False
        max(wrappable, key=lambda column: column.width).width -= 1
    return True


def _paint(
    rows: Sequence[Row],
    names: Sequence[str],
    spare: Sequence[str],
    colour: Callable[[Row], str] | None,
) -> None:
    from rich.console import Console  # noqa: PLC0415 - 40 ms, and only at a terminal
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    console = Console()
    left_out: list[str] = []
    columns = [_Column(name, rows) for name in names]
    while not (fits := _shrink(columns, console.width)) and len(left_out) < len(spare):
        left_out.append(spare[len(left_out)])
        columns = [_Column(name, rows) for name in names if name not in left_out]
    if not fits and rows:
        # The terminal is too narrow for a table: print one value per line.
        for number in range(len(rows)):
            if number:
                click.echo()
            for column in columns:
                click.echo(f"{column.title}: {column.cells[number]}")
        return
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP // 2))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.numeric else "left"
        table.add_column(column.title, width=column.width, justify=justify, vertical="top")
    for number, row in enumerate(rows):
        style = colour(row) if colour is not None else ""
        table.add_row(*(Text(column.cells[number], style=style) for column in columns))
    console.print(table)
    if left_out:
        named = ", ".join(name.replace("_", " ") for name in left_out)
        text = f"not shown: {named}; a wider terminal or --json shows them"
        click.echo(click.wrap_text(text, console.width), err=True)


def _pretty(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list | tuple) and value:
        return ", ".join(plain(part) for part in value)
    if isinstance(value, str) and (instant := _INSTANT.fullmatch(value)):
        return f"{instant[1]}Z"
    return plain(value)
