"""``pocketmq doctor``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Final

import click

from pocketmq import output
from pocketmq.cli.completion import group_names, topic_names
from pocketmq.cli.running import Call, call_options
from pocketmq.doctor import Case, CheckVerdict, examine
from pocketmq.server.probe import addresses

COLOURS: Final[dict[object, str]] = {
    CheckVerdict.OK: "",
    CheckVerdict.WARNING: "yellow",
    CheckVerdict.FAILED: "red",
}


@click.command(epilog="Example: pocketmq doctor --topic orders --group billing")
@click.option(
    "--topic", shell_complete=topic_names, help="Check the route and permissions of this topic too."
)
@click.option("--group", shell_complete=group_names, help="Check this consumer group too.")
@call_options
def doctor(topic: str | None, group: str | None, call: Call) -> None:
    """Check a cluster for problems and show remedies; exit code 1 if a check failed.

    Checks this machine, the name servers, and every broker at the address it advertises.
    """
    servers = addresses(call.nameserver)
    if not servers:
        raise click.UsageError("--nameserver names no server: give HOST:PORT")
    results = list(examine(Case(name_servers=servers, topic=topic, group=group)))
    failed = sum(result.verdict is CheckVerdict.FAILED for result in results)
    warnings = sum(result.verdict is CheckVerdict.WARNING for result in results)
    rows = [asdict(result) for result in results]
    if call.as_json:
        output.show_json({"healthy": not failed, "findings": rows})
    else:
        # At a terminal each remedy gets its own line, so that links in it are not wrapped.
        shown = ["verdict", "check", "found"]
        columns = shown if sys.stdout.isatty() else [*shown, "remedy"]
        output.show_rows(rows, columns, as_json=False, colour=lambda row: COLOURS[row["verdict"]])
        if sys.stdout.isatty():
            for result in results:
                if result.remedy:
                    click.echo(f"{result.check}: {result.remedy}")
        counts = output.count(warnings, "warning"), output.count(len(results), "check")
        click.echo(f"{failed} failed, {', '.join(counts)}", err=True)
    sys.exit(1 if failed else 0)
