"""``pocketmq store``."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from broker.config import DEFAULT_LEVELS, parse_levels
from broker.store.results import StoreError
from broker.storetools.copy.copying import CopyReport, copy_store
from broker.storetools.verify.check import CheckOptions, Report, check
from broker.storetools.verify.findings import Finding, Severity
from broker.storetools.verify.overview import Overview, overview
from broker.storetools.verify.repair import Repair, repair
from broker.storetools.view import log_directories
from pocketmq import output
from pocketmq.cli.running import json_option
from pocketmq.formats import iso_of_ms


def _levels(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return parse_levels(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_levels_option = click.option(
    "--delay-levels",
    metavar="LEVELS",
    default=DEFAULT_LEVELS,
    callback=_levels,
    help="The broker's messageDelayLevel, if it is not the default.",
)


@click.command(epilog="Example: pocketmq store copy /var/lib/pocketmq /backup/monday")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("target", metavar="TARGET", type=click.Path(path_type=Path))
@click.option("--commit-log", metavar="PATH", help="Where the log is, if not in DIR/commitlog.")
@click.option(
    "--until", type=click.IntRange(0), metavar="OFFSET", help="Copy the log only up to this offset."
)
@_levels_option
@json_option
def copy(
    directory: Path,
    target: Path,
    commit_log: str | None,
    until: int | None,
    delay_levels: tuple[int, ...],
    as_json: bool,
) -> None:
    """Copy the store at DIR to the new directory TARGET; its broker may be running.

    The copy is the store at the moment in which it began. Every record of it is checked; if one is
    damaged, the copy is completed nevertheless, and the exit code is 1.
    """
    begun = time.monotonic()
    try:
        report = copy_store(
            directory,
            target,
            show=output.progress,
            commit_log=commit_log,
            until=until,
            levels_ms=delay_levels,
        )
    except StoreError as problem:
        raise click.ClickException(str(problem)) from problem
    if as_json:
        output.show_json(_copy_facts(report, time.monotonic() - begun))
    else:
        _show_copy(report)
    if not report.sound:
        raise click.exceptions.Exit(1)


def _copy_facts(report: CopyReport, seconds: float) -> dict[str, object]:
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
            {"begin": fault.begin, "end": fault.end, "reason": fault.reason}
            for fault in faults.shown
        ],
        "notes": report.notes,
        "seconds": round(seconds, 3),
    }


def _show_copy(report: CopyReport) -> None:
    for note in report.notes:
        click.echo(note, err=True)
    for fault in report.faults.shown:
        click.echo(f"damaged from {fault.begin} to {fault.end}: {fault.reason}", err=True)
    if (more := report.faults.count - len(report.faults.shown)) > 0:
        click.echo(f"and {more} more damaged places", err=True)
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


_COLUMNS = ["severity", "kind", "path", "place", "sentence"]
_SPARE = ["kind", "severity"]
_COLOURS = {Severity.DAMAGE: "red", Severity.DERIVED: "yellow", Severity.NOTE: "dim"}
_UNREADABLE = 2


@click.group(epilog="Example: pocketmq store verify ./data")
def store() -> None:
    """Inspect, verify and copy a store's directory, without a broker."""


store.add_command(copy)


class _Unreadable(click.ClickException):
    exit_code = _UNREADABLE


@store.command(epilog="Example: pocketmq store verify /var/lib/pocketmq --repair")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--repair", "wants_repair", is_flag=True, help="Rebuild what can be rebuilt from the log."
)
@click.option("--commit-log", metavar="PATH", help="Where the log is, if not in DIR/commitlog.")
@_levels_option
@click.option(
    "--jobs", type=click.IntRange(1, 64), help="Processes to use.  [default: one per core]"
)
@json_option
def verify(
    directory: Path,
    wants_repair: bool,
    commit_log: str | None,
    delay_levels: tuple[int, ...],
    jobs: int | None,
    as_json: bool,
) -> None:
    """Check all data of the store at DIR; its broker may be running.

    Checks each record of the log, each entry of the queues and of the index, and the small files.
    --repair rebuilds queues, index files and checkpoint that are wrong; the broker must be stopped.
    It never writes to the log, and moves the files it replaces to a separate directory.

    The exit code is 0 if the store is sound, 1 if something is wrong, 2 if it can't be read.
    """
    options = CheckOptions(commit_log, delay_levels, jobs or os.cpu_count() or 1)
    repaired: Repair | None = None
    try:
        with output.progress("checking", _size(directory, commit_log)) as advance:
            if wants_repair:
                repaired = repair(directory, options, advance)
                report = repaired.after
            else:
                report = check(directory, options, advance)
    except StoreError as problem:
        raise _Unreadable(str(problem)) from problem
    if as_json:
        output.show_json(_facts(report, repaired))
    else:
        _show_report(report, repaired)
    if not report.findings.is_sound:
        raise click.exceptions.Exit(1)


def _size(directory: Path, commit_log: str | None) -> int | None:
    directories = log_directories(directory, commit_log)
    try:
        return sum(path.stat().st_size for log in directories for path in log.iterdir())
    except OSError:
        return None


def _sorted(report: Report) -> list[Finding]:
    order = list(Severity)
    return sorted(
        report.findings.shown,
        key=lambda finding: (order.index(finding.severity), finding.path, finding.place or 0),
    )


def _facts(report: Report, repaired: Repair | None) -> dict[str, object]:
    findings = report.findings
    size = report.log_end - report.log_start
    facts: dict[str, object] = {
        "sound": findings.is_sound,
        "running": report.running,
        "begin": report.log_start,
        "end": report.log_end,
        "records": report.records,
        "queues": report.queues,
        "queue_entries": report.entries,
        "keys": report.keys,
        "index_entries": report.index_entries,
        "seconds": round(report.seconds, 3),
        "megabytes_per_second": round(size / 1e6 / max(report.seconds, 1e-9), 1),
        "counts": {severity.value: findings.counts[severity] for severity in Severity},
        "kinds": {str(kind): count for kind, count in sorted(findings.kinds.items())},
        "left_out": findings.left_out,
        "findings": [finding._asdict() for finding in _sorted(report)],
    }
    if repaired is not None:
        facts["repaired"] = repaired.done
        facts["moved_to"] = None if repaired.moved is None else str(repaired.moved)
        facts["found_before"] = [finding._asdict() for finding in _sorted(repaired.before)]
    return facts


def _show_report(report: Report, repaired: Repair | None) -> None:
    # Findings go to stdout, so that they can be piped; the summary goes to stderr.
    if repaired is not None:
        for sentence in repaired.done:
            click.echo(sentence, err=True)
        if repaired.moved is not None:
            click.echo(f"the replaced files are in {repaired.moved}", err=True)
        if not repaired.done:
            click.echo("there was nothing to repair", err=True)
    rows = [finding._asdict() for finding in _sorted(report)]
    if rows:
        output.show_rows(
            rows,
            _COLUMNS,
            as_json=False,
            spare=_SPARE,
            colour=lambda row: _COLOURS[Severity(str(row["severity"]))],
        )
    findings = report.findings
    if findings.left_out:
        click.echo(f"and {findings.left_out} more", err=True)
    size = (report.log_end - report.log_start) / 1e6
    click.echo(
        f"checked {output.count(report.records, 'record')} ({size:.0f} MB), {report.entries}"
        f" entries of {output.count(report.queues, 'queue')} and {report.index_entries} of the"
        f" index in {report.seconds:.1f} s"
        f" ({size / max(report.seconds, 1e-9):.0f} MB/s)",
        err=True,
    )
    damage, derived = findings.counts[Severity.DAMAGE], findings.counts[Severity.DERIVED]
    if findings.is_sound:
        click.echo("the store is sound", err=True)
    else:
        hint = "; --repair rebuilds the latter" if derived and repaired is None else ""
        click.echo(f"{damage} places are damaged, {derived} derived ones are wrong{hint}", err=True)


@store.command(epilog="Example: pocketmq store info /var/lib/pocketmq --json")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--commit-log", metavar="PATH", help="Where the log is, if not in DIR/commitlog.")
@json_option
def info(directory: Path, commit_log: str | None, as_json: bool) -> None:
    """Show the contents of the store at DIR, of PocketMQ or Apache RocketMQ, running or not."""
    try:
        contents = overview(directory, commit_log)
    except StoreError as problem:
        raise _Unreadable(str(problem)) from problem
    facts = _store_facts(contents)
    topics = [
        {**row._asdict(), "last_stored": iso_of_ms(row.last_stored_ms)} for row in contents.topics
    ]
    groups = [row._asdict() for row in contents.groups]
    index = [
        {
            **row._asdict(),
            "first_stored": iso_of_ms(row.begin_ms),
            "last_stored": iso_of_ms(row.end_ms),
        }
        for row in contents.index_files
    ]
    if as_json:
        output.show_json({**facts, "topics": topics, "groups": groups, "index": index})
        return
    output.show_facts(facts, as_json=False)
    columns = ["topic", "queues", "min_offset", "max_offset", "messages", "last_stored"]
    for rows, shown in (
        (topics, columns),
        (groups, ["group", "topic", "queues", "lag"]),
        (index, ["name", "keys", "begin_offset", "end_offset", "first_stored", "last_stored"]),
    ):
        if rows:
            click.echo()
            output.show_rows(rows, shown, as_json=False, spare=shown[3:])


def _store_facts(contents: Overview) -> dict[str, object]:
    return {
        "written_by": contents.writer,
        "broker": contents.broker_name,
        "running": contents.running,
        "abort": contents.abort,
        "first_offset": contents.begin,
        "end_offset": contents.end,
        "log_bytes": contents.log_bytes,
        "log_files": contents.log_files,
        "first_stored": iso_of_ms(contents.first_ms),
        "last_stored": iso_of_ms(contents.last_ms),
        "torn": contents.torn,
        "free_bytes": contents.free_bytes,
    }
