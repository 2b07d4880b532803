"""``pocketmq message export``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

import client
from broker.store.results import StoreError
from pocketmq import output
from pocketmq.cli.completion import topic_names
from pocketmq.cli.running import (
    PLACE,
    choose_queues,
    end_on_broken_pipe,
    nameserver_option,
    queues_option,
    run,
    wanted_messages,
)
from pocketmq.export.from_cluster import ClusterSource
from pocketmq.export.from_store import StoreSource
from pocketmq.export.writers import (
    BODIES,
    STDOUT,
    ExportError,
    ExportSelection,
    ExportWriter,
    JsonLines,
    Parquet,
    Portion,
    output_file,
)
from remoting.protocol.message.tags import TagExpression
from remoting.runtime.tasks import stop_signal

MAX_REPORTED: Final = 20
"""Damaged messages that are reported one by one; the others are only counted."""


def _parse_tags(_: click.Context, __: click.Parameter, text: str) -> TagExpression:
    try:
        return TagExpression.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(epilog="Example: pocketmq message export orders --out orders.jsonl --from -1d")
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "--out",
    "path",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The output file; - for stdout. It is replaced when the export is complete.",
)
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Read this store's directory, without a broker.",
)
@click.option("--commit-log", metavar="PATH", help="Where the log is, if not in DIR/commitlog.")
@queues_option
@click.option(
    "--from",
    "begin",
    type=PLACE,
    default="begin",
    show_default=True,
    help="In each queue: begin, an offset, a time (2026-01-31T12:00) or how long ago (-1h).",
)
@click.option(
    "--to",
    "end",
    type=PLACE,
    default="end",
    show_default=True,
    help="Where to stop, in the same forms; exclusive.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "parquet"]),
    help="[default: parquet for FILE.parquet, else jsonl]",
)
@click.option(
    "--tag",
    "tags",
    default="*",
    show_default=True,
    callback=_parse_tags,
    help="Only messages with these tags, e.g. 'A || B'.",
)
@click.option(
    "--sql",
    metavar="EXPRESSION",
    help='Only messages whose properties match, e.g. "amount > 100"; the broker decides.',
)
@click.option("--key", help="Only messages with this key or id.")
@click.option(
    "--body",
    type=click.Choice(list(BODIES)),
    help="The form of bodies in JSON; auto is text if it is UTF-8, else base64.  [default: auto]",
)
@nameserver_option
def export(
    path: Path,
    store: Path | None,
    commit_log: str | None,
    form: str | None,
    body: str | None,
    nameserver: str,
    **options: Any,
) -> None:
    """Write the messages of TOPIC to a file: each once, queue by queue, with all its fields.

    Messages stored after the start are not exported. A damaged message is reported and left out,
    and the exit code is 1.
    """
    selection = ExportSelection(**options)
    form = form or ("parquet" if path.suffix == ".parquet" else "jsonl")
    if form == "parquet" and path == STDOUT:
        raise click.UsageError("a Parquet file can't be written to stdout: give --out a name")
    if form == "parquet" and body is not None:
        raise click.UsageError("in Parquet bodies are bytes: --body is for --format jsonl")
    if commit_log is not None and store is None:
        raise click.UsageError("--commit-log is for --store")
    if selection.sql is not None and store is not None:
        raise click.UsageError("--sql is applied by a broker: with --store give --tag or --key")
    wanted_messages(selection.tags.text, selection.sql)
    exporting = _Exporting(selection, shown=path != STDOUT)
    try:
        with end_on_broken_pipe(), output_file(path) as stream:
            writer: ExportWriter = (
                Parquet(stream, of_store=store is not None)
                if form == "parquet"
                else JsonLines(stream, body or "auto")
            )
            try:
                if store is None:
                    run(exporting.from_cluster(nameserver, writer))
                else:
                    run(exporting.from_store(store, commit_log, writer))
            except BaseException:
                writer.abandon()
                raise
    except (ExportError, StoreError) as problem:
        raise click.ClickException(str(problem)) from problem
    except OSError as problem:
        raise click.ClickException(f"{path}: {problem.strerror or problem}") from problem
    exporting.report(path)


class _Exporting:
    """Copies messages from a source to a writer, and counts them."""

    def __init__(self, selection: ExportSelection, *, shown: bool) -> None:
        self._selection = selection
        self._shown = shown
        self._messages = 0
        self._damaged = 0

    async def from_cluster(self, nameserver: str, writer: ExportWriter) -> None:
        async with client.Instance(nameserver) as instance:
            selection = self._selection
            there = await instance.admin().queues(selection.topic)
            queues = choose_queues(there, selection.queues, selection.topic)
            source = ClusterSource(instance, selection, queues, _report_line)
            await source.open()
            await self._write(source.portions(), source.total, writer)

    async def from_store(self, root: Path, commit_log: str | None, writer: ExportWriter) -> None:
        source = StoreSource(root, commit_log, self._selection)

        async def portions() -> AsyncIterator[Portion]:
            for portion in source.portions():
                yield portion
                # Let the loop run its signal handlers.
                await asyncio.sleep(0)

        await self._write(portions(), source.total, writer)

    async def _write(
        self, portions: AsyncIterator[Portion], total: int, writer: ExportWriter
    ) -> None:
        stop = stop_signal()
        label = f"exporting {self._selection.topic}"
        with output.progress(label, total, shown=self._shown) as advance:
            async for portion in portions:
                if stop.is_set():
                    raise click.Abort
                with _written():
                    await asyncio.to_thread(writer.write, portion)
                self._count(portion)
                advance(portion.passed)
        with _written():
            await asyncio.to_thread(writer.close)

    def _count(self, portion: Portion) -> None:
        self._messages += len(portion.messages)
        for sentence in portion.damage:
            self._damaged += 1
            if self._damaged <= MAX_REPORTED:
                _report_line(sentence)

    def report(self, path: Path) -> None:
        """Report the result; exit with code 1 if a message was left out."""
        if self._damaged > MAX_REPORTED:
            _report_line(f"left out {self._damaged - MAX_REPORTED} more")
        where = "" if path == STDOUT else f" to {path}"
        if path != STDOUT or sys.stderr.isatty():
            _report_line(f"exported {output.count(self._messages, 'message')}{where}")
        if self._damaged:
            raise click.exceptions.Exit(1)


@contextmanager
def _written() -> Iterator[None]:
    """Turn write errors into ``ExportError``, to distinguish them from network errors."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise ExportError(
            f"the messages can't be written ({problem.strerror or problem}): check the disk that"
            " --out names"
        ) from problem


def _report_line(text: str) -> None:
    click.echo(text, err=True)
