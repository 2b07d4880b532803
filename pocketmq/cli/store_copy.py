"""``pocketmq store copy``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from broker.store.results import StoreError
from broker.storetools.copy.copying import CopyReport, copy_store
from pocketmq import output
from pocketmq.cli.options import json_option


@click.command(epilog="Example: pocketmq store copy /var/lib/pocketmq /backup/monday")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("target", metavar="TARGET", type=click.Path(path_type=Path))
@click.option("--commit-log", metavar="PATH", help="Where the log is, if not in DIR/commitlog.")
@click.option(
    "--until", type=click.IntRange(0), metavar="OFFSET", help="Only what lies before in the log."
)
@json_option
def copy(
    directory: Path, target: Path, commit_log: str | None, until: int | None, as_json: bool
) -> None:
    """Copy the store at DIR into the new directory TARGET, while its broker runs or not.

    The copy is true of the moment in which it began. Every record of it is checked; where one is
    damaged the copy is finished all the same, and the exit code is 1.
    """
    begun = time.monotonic()
    try:
        report = copy_store(
            directory, target, show=output.progress, commit_log=commit_log, until=until
        )
    except StoreError as problem:
        raise click.ClickException(str(problem)) from problem
    if as_json:
        output.show_json(_facts(report, time.monotonic() - begun))
    else:
        _tell(report)
    if not report.sound:
        raise click.exceptions.Exit(1)


def _facts(report: CopyReport, seconds: float) -> dict[str, object]:
    faults = report.faults
    return {
        "source": str(report.source),
        "target": str(report.target),
        "begin": report.begin,
        "end": report.end,
        "records": report.records,
        "topics": report.topics,
        "queues": report.queues,
        "index_files": report.index_files,
        "damaged": faults.count,
        "damage": [
            {"begin": one.begin, "end": one.end, "reason": one.reason} for one in faults.shown
        ],
        "notes": report.notes,
        "seconds": round(seconds, 3),
    }


def _tell(report: CopyReport) -> None:
    for note in report.notes:
        click.echo(note, err=True)
    for one in report.faults.shown:
        click.echo(f"damaged from {one.begin} to {one.end}: {one.reason}", err=True)
    if (more := report.faults.count - len(report.faults.shown)) > 0:
        click.echo(f"and {more} damaged places more", err=True)
    click.echo(
        f"copied {output.count(report.records, 'record')} and"
        f" {output.count(report.queues, 'queue')} to {report.target}: the log"
        f" from {report.begin} to {report.end}"
    )
    if not report.sound:
        click.echo(
            f"the source is damaged in {report.faults.count} places, and so is the copy: see"
            f" `pocketmq store verify {report.source}`, and keep an older backup",
            err=True,
        )
