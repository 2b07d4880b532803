"""``pocketmq doctor``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Final

import click

from pocketmq import output
from pocketmq.cli.options import json_option, nameserver_option
from pocketmq.doctor import Case, Verdict, examine
from pocketmq.probe import addresses

COLOURS: Final[dict[object, str]] = {
    Verdict.OK: "",
    Verdict.WARNING: "yellow",
    Verdict.FAILED: "red",
}


@click.command(epilog="Example: pocketmq doctor --topic orders --group billing")
@click.option("--topic", help="Look at this topic's route and permission too.")
@click.option("--group", help="Look at this consumer group too.")
@nameserver_option
@json_option
def doctor(topic: str | None, group: str | None, nameserver: str, as_json: bool) -> None:
    """Find out what is wrong, and what to do; exit code 1 if something is.

    Looks at this machine, the name servers, and every broker at the address it advertises.
    """
    findings = list(examine(Case(name_servers=addresses(nameserver), topic=topic, group=group)))
    failed = sum(finding.verdict is Verdict.FAILED for finding in findings)
    warnings = sum(finding.verdict is Verdict.WARNING for finding in findings)
    rows = [asdict(finding) for finding in findings]
    if as_json:
        output.show_json({"healthy": not failed, "findings": rows})
    else:
        columns = ["verdict", "check", "found", "remedy"]
        output.show_rows(rows, columns, as_json=False, colour=lambda row: COLOURS[row["verdict"]])
        click.echo(f"{failed} failed, {warnings} warnings, {len(findings)} checks", err=True)
    sys.exit(1 if failed else 0)
