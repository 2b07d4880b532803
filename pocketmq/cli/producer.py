"""``pocketmq producer``."""

from __future__ import annotations

import click

from pocketmq.cli.running import Call, call_options
from pocketmq.formats import iso_of_ms
from remoting.protocol.codes import name_of


@click.group(epilog="Example: pocketmq producer list")
def producer() -> None:
    """Show the producers that are connected."""


@producer.command(name="list", epilog="Example: pocketmq producer list --json")
@click.option("--group", help="Only this producer group.")
@call_options
def list_(group: str | None, call: Call) -> None:
    """List the producers of each group, as brokers know them from their heartbeats."""
    found = call.ask(lambda admin: admin.producers())
    rows = [
        {
            "group": name,
            "client_id": one.client_id,
            "address": one.remote_ip.removeprefix("/"),
            "language": one.language,
            "version": name_of(one.version),
            "last_heartbeat": iso_of_ms(one.last_update_timestamp),
        }
        for name, producers in found.items()
        if group in {None, name}
        for one in producers
    ]
    columns = ["group", "client_id", "address", "language", "version", "last_heartbeat"]
    spare = ["version", "last_heartbeat", "language"]
    call.show_rows(rows, columns, spare=spare)
