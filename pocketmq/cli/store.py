"""``pocketmq store``: a store's directory, looked at without a broker."""

from __future__ import annotations

from pathlib import Path

import click

from broker.store.errors import StoreError
from broker.store.view import StoreView
from pocketmq import output
from pocketmq.cli import store_copy
from pocketmq.cli.options import json_option


@click.group(epilog="Example: pocketmq store info ./data")
def store() -> None:
    """Look at a store's directory: no broker is asked."""


store.add_command(store_copy.copy)


@store.command(epilog="Example: pocketmq store info /var/lib/pocketmq --json")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--commit-log", metavar="PATH", help="Where the log is, if not in DIR/commitlog.")
@json_option
def info(directory: Path, commit_log: str | None, as_json: bool) -> None:
    """Show what is in the store at DIR, stopped or running, PocketMQ's or Apache RocketMQ's."""
    try:
        view = StoreView(directory, commit_log=commit_log)
        start, end = view.log.start, view.log_end().position
    except StoreError as problem:
        raise click.ClickException(str(problem)) from problem
    output.show_facts({"first_offset": start, "end_offset": end}, as_json=as_json)
