"""``pocketmq group``."""

from __future__ import annotations

import sys

import click

import client
from pocketmq import output
from pocketmq.cli.options import json_option, nameserver_option, yes_option
from pocketmq.cli.running import run
from pocketmq.cli.topic import moment
from remoting.protocol.versions import name_of


@click.group(epilog="Example: pocketmq group status billing")
def group() -> None:
    """Look at consumer groups and their offsets."""


@group.command(name="list", epilog="Example: pocketmq group list")
@click.option("--all", "internal", is_flag=True, help="Also those of brokers and tools.")
@nameserver_option
@json_option
def list_(internal: bool, nameserver: str, as_json: bool) -> None:
    """List the consumer groups."""

    async def ask() -> list[str]:
        async with client.Admin(nameserver) as admin:
            return await admin.groups(internal=internal)

    output.show_rows([{"group": name} for name in run(ask())], ["group"], as_json=as_json)


@group.command(epilog="Example: pocketmq group create billing --max-retries 3")
@click.argument("name", metavar="GROUP")
@click.option(
    "--max-retries",
    type=click.IntRange(0),
    default=16,
    show_default=True,
    help="Deliveries again before a message is a dead letter.",
)
@nameserver_option
@json_option
def create(name: str, max_retries: int, nameserver: str, as_json: bool) -> None:
    """Create GROUP, or change it to be so, at every broker."""

    async def make() -> None:
        async with client.Admin(nameserver) as admin:
            await admin.create_group(name, max_retries=max_retries)

    run(make())
    output.done(f"created group {name}", {"group": name}, as_json=as_json)


@group.command(epilog="Example: pocketmq group delete billing --yes")
@click.argument("name", metavar="GROUP")
@click.option("--keep-offsets", is_flag=True, help="Don't forget how far it has come.")
@yes_option
@nameserver_option
@json_option
def delete(name: str, keep_offsets: bool, yes: bool, nameserver: str, as_json: bool) -> None:
    """Delete GROUP at every broker."""
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete group {name} and its offsets?", abort=True, err=True)

    async def remove() -> None:
        async with client.Admin(nameserver) as admin:
            await admin.group_config(name)
            await admin.delete_group(name, remove_offsets=not keep_offsets)

    run(remove())
    output.done(f"deleted group {name}", {"group": name}, as_json=as_json)


@group.command(epilog="Example: pocketmq group status billing --json")
@click.argument("name", metavar="GROUP")
@nameserver_option
@json_option
def status(name: str, nameserver: str, as_json: bool) -> None:
    """Show who is in GROUP and how far it is in each queue."""
    members, rows = run(_status(nameserver, name))
    lag = sum(int(str(row["lag"])) for row in rows)
    if as_json:
        output.show_json({"group": name, "members": members, "queues": rows, "lag": lag})
        return
    columns = ["topic", "broker", "queue", "committed", "next", "lag", "last_consumed"]
    output.show_rows(rows, columns, as_json=False)
    if members:
        output.show_rows(members, ["client_id", "address", "language", "version"], as_json=False)
    click.echo(f"{len(members)} members online, {lag} messages behind", err=True)


async def _status(
    nameserver: str, name: str
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    async with client.Admin(nameserver) as admin:
        stats = await admin.consume_stats(name)
        try:
            online = (await admin.consumer_connections(name)).connection_set
        except client.NotOnline:
            online = []
            if not stats:
                await admin.group_config(name)
    members: list[dict[str, object]] = [
        {
            "client_id": member.client_id,
            "address": member.client_addr,
            "language": member.language,
            "version": name_of(member.version),
        }
        for member in online
    ]
    rows: list[dict[str, object]] = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "committed": offsets.consumer_offset,
            "next": offsets.broker_offset,
            "lag": max(offsets.broker_offset - offsets.consumer_offset, 0),
            "last_consumed": moment(offsets.last_timestamp),
        }
        for queue, offsets in stats.items()
    ]
    return members, rows
