"""``pocketmq message``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

import click

import client
from pocketmq import output
from pocketmq.cli import message_export, message_import, message_trace
from pocketmq.cli.completion import group_names, topic_names
from pocketmq.cli.read import POLL_SECONDS, PORTION, ends_of, has_read
from pocketmq.cli.running import (
    PLACE,
    PLACE_HELP,
    Call,
    call_options,
    choose_queues,
    confirm,
    dry_run_option,
    end_on_broken_pipe,
    filter_options,
    queues_option,
    run,
    wanted_messages,
    yes_option,
)
from pocketmq.formats import Writer, body_text, facts, iso, writer
from remoting.runtime.tasks import stop_signal

F = TypeVar("F", bound=Callable[..., Any])

GROUP: Final = "pocketmq-tail"
"""The consumer group of ``tail``; it never commits."""

_TIME_HELP: Final = "a time (2026-01-31T12:00) or how long ago (-1h)."
_COLUMNS: Final = ("broker", "queue", "offset", "id", "tag", "keys", "stored_at", "body")
_SPARE: Final = ("tag", "keys", "body", "broker", "queue")


@click.group(epilog="Example: pocketmq message find orders o-4711")
def message() -> None:
    """Find, trace, export and import messages, and handle dead letters."""


def parse_instant(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> datetime | None:
    """Parse an option that is a time, or a time ago."""
    where = None if text is None else PLACE.convert(text, parameter, context)
    if where is None or isinstance(where, datetime):
        return where
    raise click.BadParameter(f"{text!r} is no time such as 2026-01-31T12:00, nor -1h")


def limit_option(default: int | None = None, text: str = "At most this many.") -> Callable[[F], F]:
    """Add ``--max``."""
    return click.option(
        "--max",
        "limit",
        type=click.IntRange(1),
        default=default,
        show_default=default is not None,
        help=text,
    )


@message.command(epilog="Example: pocketmq message get 7F0000010AF818B4AAC2 --topic orders")
@click.argument("message_id", metavar="ID")
@click.option(
    "--topic",
    shell_complete=topic_names,
    help="Its topic; needed for an id that a producer assigned.",
)
@call_options
def get(message_id: str, topic: str | None, call: Call) -> None:
    """Show the message with an ID: the broker's, or with --topic also its producer's."""

    found = call.ask(lambda admin: admin.message(message_id, topic=topic))
    call.show_facts(facts(found))


@message.command(epilog="Example: pocketmq message find orders o-4711 --from -1d")
@click.argument("topic", shell_complete=topic_names)
@click.argument("key")
@click.option("--from", "begin", callback=parse_instant, help=f"Stored since: {_TIME_HELP}")
@click.option("--to", "end", callback=parse_instant, help=f"Stored until: {_TIME_HELP}")
@limit_option(64, "At most this many, the newest.")
@call_options
def find(
    topic: str, key: str, begin: datetime | None, end: datetime | None, limit: int, call: Call
) -> None:
    """List the messages of TOPIC that have KEY, the oldest first.

    KEY is one of the keys given at the send, or the message's id. --json shows properties too.
    """
    messages = call.ask(
        lambda admin: admin.find_messages(topic, key, limit=limit, begin=begin, end=end),
    )
    rows = [facts(message) for message in messages]
    call.show_rows(rows, _COLUMNS, spare=_SPARE)


@message.command(epilog="Example: pocketmq message tail orders -n 5 --follow")
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "-n",
    "--max",
    "count",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="How many messages.",
)
@click.option("--follow", "-f", is_flag=True, help="Then write new messages as they arrive.")
@filter_options
@call_options
def tail(topic: str, count: int, follow: bool, tags: str, sql: str | None, call: Call) -> None:
    """Write the newest messages of TOPIC, in the order in which they were stored.

    With --tags or --sql, those among the newest of each queue. --json writes one JSON object per
    line.
    """
    write = writer("jsonl" if call.as_json else "text", sys.stdout.buffer)
    with end_on_broken_pipe():
        run(_tail(call.nameserver, topic, count, wanted_messages(tags, sql), write, follow=follow))


async def _tail(
    nameserver: str,
    topic: str,
    count: int,
    wanted: str | client.Sql,
    write: Writer,
    *,
    follow: bool,
) -> None:
    stop = stop_signal()
    async with client.Instance(nameserver) as instance:
        consumer = instance.pull_consumer(group=GROUP)
        queues = await consumer.queues(topic)
        consumer.assign(queues, tags=wanted)
        admin = instance.admin()
        ends = await ends_of(admin, queues)
        begins = await asyncio.gather(*(admin.min_offset(queue) for queue in queues))
        for queue, begin in zip(queues, begins, strict=True):
            await consumer.seek(queue, max(begin, ends[queue] - count))
        newest: list[client.ReceivedMessage[bytes]] = []
        while not stop.is_set() and not await has_read(consumer, ends):
            newest += await consumer.get_many(PORTION, timeout=POLL_SECONDS)
            newest = sorted(newest, key=lambda message: message.store_timestamp_ms)[-count:]
        await asyncio.to_thread(write, newest)
        while follow and not stop.is_set():
            messages = await consumer.get_many(PORTION, timeout=POLL_SECONDS)
            if messages:
                await asyncio.to_thread(write, messages)


@message.command(epilog="Example: pocketmq message browse orders --from -1h --tags paid")
@click.argument("topic", shell_complete=topic_names)
@click.option("--from", "start", type=PLACE, help=PLACE_HELP + "  [default: begin]")
@click.option("--cursor", help="Go on where a page ended, which printed this.")
@limit_option(20)
@click.option(
    "--scan",
    "scan_limit",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Let brokers look at this many messages at most.",
)
@filter_options
@queues_option
@call_options
def browse(
    topic: str,
    start: client.Place | datetime | int | None,
    cursor: str | None,
    limit: int,
    scan_limit: int,
    tags: str,
    sql: str | None,
    queues: tuple[str, ...],
    call: Call,
) -> None:
    """Show a page of the messages of TOPIC in the order in which they were stored.

    It commits nothing. --json shows properties too.
    """
    if cursor is not None and (start is not None or queues):
        raise click.UsageError("--cursor says where to go on: give no --from and no --queue")

    async def ask(admin: client.Admin) -> client.BrowsePage:
        chosen = choose_queues(await admin.queues(topic), queues, topic) if queues else None
        return await admin.browse(
            topic,
            cursor or (client.BEGIN if start is None else start),
            limit=limit,
            scan_limit=scan_limit,
            tags=wanted_messages(tags, sql),
            queues=chosen,
        )

    page = call.ask(ask)
    rows = [facts(message) for message in page.messages]
    if call.as_json:
        output.show_json(
            {
                "messages": rows,
                "cursor": page.cursor,
                "complete": page.complete,
                "scanned": page.scanned,
                "unreachable": {name: str(error) for name, error in page.unreachable.items()},
            }
        )
        return
    call.show_rows(rows, _COLUMNS, spare=_SPARE)
    for name, error in page.unreachable.items():
        click.echo(f"without {name}: {error}", err=True)
    if not page.complete:
        looked_at = output.count(page.scanned, "message")
        click.echo(f"looked at {looked_at}; go on with --cursor {page.cursor}", err=True)


@message.command(epilog="Example: pocketmq message consume 7F00000100002A9F --group billing")
@click.argument("message_id", metavar="ID")
@click.option("--group", required=True, shell_complete=group_names, help="Whose member handles it.")
@click.option("--client", "client_id", help="The member's client id.  [default: the first member]")
@click.option(
    "--topic", shell_complete=topic_names, help="Its topic; needed for an id of a producer."
)
@call_options
def consume(
    message_id: str, group: str, client_id: str | None, topic: str | None, call: Call
) -> None:
    """Have a member of a group handle the message with an ID now, and show the outcome.

    Nothing is committed, and the message is not retried. The exit code is 1 unless it succeeded.
    """

    async def ask(admin: client.Admin) -> tuple[str, client.ConsumeMessageDirectlyResult]:
        member = client_id
        if member is None:
            online = await admin.members(group)
            if not online:
                raise client.UsageError("no member is online", group=group, hint="start one")
            member = online[0].client_id
        return member, await admin.consume_directly(group, member, message_id, topic=topic)

    member, done = call.ask(ask)
    call.show_facts(
        {
            "client_id": member,
            "outcome": done.consume_result,
            "remark": done.remark,
            "spent_ms": done.spent_time_mills,
        }
    )
    if done.consume_result not in {"CR_SUCCESS", "CR_COMMIT"}:
        raise click.exceptions.Exit(1)


@message.command(epilog="Example: pocketmq message recall djEgb3JkZXJzIGJyb2tlci1hIDE3ODAwMDAw")
@click.argument("handle")
@call_options
def recall(handle: str, call: Call) -> None:
    """Take back a message that waits for its time; `send --delay … --json` prints its HANDLE.

    The broker doesn't say whether the message still waited: recall it a second before its time.
    """

    async def ask() -> str:
        async with client.Producer(call.nameserver) as producer:
            return await producer.recall(handle)

    message_id = run(ask())
    call.done(f"recalled message {message_id}", {"id": message_id})


message.add_command(message_export.export)
message.add_command(message_import.import_)
message.add_command(message_trace.trace)


@message.group(epilog="Example: pocketmq message dlq redrive billing --dry-run")
def dlq() -> None:
    """List a group's dead letters, and send them back."""


@dlq.command(name="list", epilog="Example: pocketmq message dlq list billing --json")
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@limit_option(1000)
@click.option("--all", "redriven", is_flag=True, help="Include those that were sent back already.")
@call_options
def list_(name: str, limit: int, redriven: bool, call: Call) -> None:
    """List the dead letters of GROUP. --json shows bodies and properties too."""

    async def ask(admin: client.Admin) -> list[client.DeadMessage]:
        letters = await admin.dead_letters(name, limit=limit, redriven=redriven)
        if not letters:
            await admin.group_config(name)  # raises an error if there is no such group
        return letters

    found = call.ask(ask)
    rows = [_row(letter) for letter in found]
    columns = ["broker", "offset", "topic", "id", "retries", "tag", "keys", "died_at", "redriven"]
    columns.append("reason")
    spare = ["redriven", "keys", "tag", "retries", "broker", "died_at", "topic"]
    call.show_rows(rows, columns, spare=spare, colour=lambda row: "dim" if row["redriven"] else "")


@dlq.command(epilog="Example: pocketmq message dlq redrive billing --max 10")
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@limit_option()
@click.option(
    "--to",
    "topic",
    shell_complete=topic_names,
    metavar="TOPIC",
    help="Send all to this topic instead.",
)
@click.option(
    "--id", "ids", multiple=True, metavar="ID", help="Only the letter with this id; repeatable."
)
@dry_run_option
@yes_option
@call_options
def redrive(
    name: str,
    limit: int | None,
    topic: str | None,
    ids: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    call: Call,
) -> None:
    """Send the dead letters of GROUP back to the topics they came from.

    They keep body, tag, keys and id, and every group that subscribes to such a topic gets them. The
    progress is stored at the broker, so that no call sends a letter that was sent already.
    """
    confirm(f"Send the dead letters of {name} back?", yes=yes or dry_run)

    async def send_back(admin: client.Admin) -> client.Redrive:
        done = await admin.redrive(name, limit=limit, topic=topic, ids=ids or None, dry_run=dry_run)
        if not done.sent:
            await admin.group_config(name)  # as in list
        return done

    done = call.ask(send_back)
    rows = [
        {
            **_row(one.message),
            "to": topic or one.message.topic,
            "to_queue": None if one.queue is None else str(one.queue),
            "to_offset": one.offset,
        }
        for one in done.sent
    ]
    if call.as_json:
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
