"""``pocketmq message``."""

from __future__ import annotations

import click

import client
from pocketmq import output
from pocketmq.cli import message_export, message_find
from pocketmq.cli.completion import group_names, topic_names
from pocketmq.cli.running import (
    ask_admin,
    confirm,
    dry_run_option,
    json_option,
    nameserver_option,
    yes_option,
)
from pocketmq.formats import body_text, iso


@click.group(epilog="Example: pocketmq message find orders o-4711")
def message() -> None:
    """Look at single messages."""


message.add_command(message_find.get)
message.add_command(message_find.find)
message.add_command(message_find.tail)
message.add_command(message_export.export)


@message.group(epilog="Example: pocketmq message dlq redrive billing --dry-run")
def dlq() -> None:
    """Look at a group's dead letters, and send them back."""


@dlq.command(name="list", epilog="Example: pocketmq message dlq list billing --json")
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option(
    "--max", "limit", type=click.IntRange(1), default=1000, show_default=True, help="At most."
)
@click.option("--all", "redriven", is_flag=True, help="Also those that were sent back already.")
@nameserver_option
@json_option
def list_(name: str, limit: int, redriven: bool, nameserver: str, as_json: bool) -> None:
    """List the messages that GROUP has given up. --json shows bodies and properties too."""

    found = ask_admin(
        nameserver, lambda admin: admin.dead_letters(name, limit=limit, redriven=redriven)
    )
    rows = [_row(letter) for letter in found]
    columns = ["broker", "offset", "topic", "id", "retries", "tag", "keys", "died_at", "redriven"]
    columns.append("reason")
    spare = ["redriven", "keys", "tag", "retries", "broker", "reason"]
    output.show_rows(
        rows,
        columns,
        as_json=as_json,
        spare=spare,
        colour=lambda row: "dim" if row["redriven"] else "",
    )


@dlq.command(epilog="Example: pocketmq message dlq redrive billing --max 10")
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option("--max", "limit", type=click.IntRange(1), help="At most so many.")
@click.option(
    "--to",
    "topic",
    shell_complete=topic_names,
    metavar="TOPIC",
    help="Send them here, not to where they came from.",
)
@dry_run_option
@yes_option
@nameserver_option
@json_option
def redrive(
    name: str,
    limit: int | None,
    topic: str | None,
    dry_run: bool,
    yes: bool,
    nameserver: str,
    as_json: bool,
) -> None:
    """Send the dead letters of GROUP back to the topics they came from.

    They keep body, tag, keys and id, and every group of such a topic gets them. What was sent back
    is remembered, so calling this again goes on; killed in between, it may send one message twice.
    """
    confirm(f"Send the dead letters of {name} back?", yes=yes or dry_run)
    done = ask_admin(
        nameserver,
        lambda admin: admin.redrive(name, limit=limit, topic=topic, dry_run=dry_run),
    )
    rows = [
        {
            **_row(one.message),
            "to": topic or one.message.topic,
            "to_queue": None if one.queue is None else str(one.queue),
            "to_offset": one.offset,
        }
        for one in done.sent
    ]
    if as_json:
        output.show_json({"group": name, "applied": not dry_run, "sent": rows, "left": done.left})
        return
    columns = ["broker", "offset", "id", "to", "to_queue", "to_offset"]
    output.show_rows(rows, columns, as_json=False, spare=["broker", "offset"])
    verb = "would send" if dry_run else "sent"
    click.echo(f"{verb} {output.count(len(rows), 'dead letter')} back, {done.left} left", err=True)


def _row(letter: client.DeadMessage) -> dict[str, object]:
    text, encoding = body_text(letter.body)
    return {
        "broker": letter.queue.broker_name,
        "offset": letter.offset,
        "topic": letter.topic,
        "id": letter.id,
        "origin_id": letter.origin_id,
        "retries": letter.retries,
        "tag": letter.tag,
        "keys": list(letter.keys),
        "born_at": iso(letter.born_at),
        "died_at": iso(letter.died_at),
        "redriven": letter.redriven,
        "reason": letter.reason,
        "exception": letter.exception,
        "consumer": letter.consumer,
        "failed_at": iso(letter.failed_at),
        "properties": letter.properties,
        "body": text,
        "encoding": encoding,
    }
