"""``pocketmq group reset`` and ``skip``: setting the offsets of a group."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

import click

import client
from client.positions import Position
from pocketmq import output
from pocketmq.cli.completion import group_names, topic_names
from pocketmq.cli.running import (
    PLACE,
    PLACE_HELP,
    Call,
    call_options,
    choose_queues,
    confirm,
    dry_run_option,
    parse_queue,
    queues_option,
    yes_option,
)


@click.command(epilog="Example: pocketmq group reset billing --topic orders --to -1h --dry-run")
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option("--topic", shell_complete=topic_names, required=True, help="The topic.")
@click.option("--to", "position", required=True, type=PLACE, help=PLACE_HELP)
@queues_option
@click.option("--missing-only", is_flag=True, help="Only queues without a committed offset.")
@dry_run_option
@yes_option
@call_options
def reset(
    name: str,
    topic: str,
    position: Position,
    queues: tuple[str, ...],
    missing_only: bool,
    dry_run: bool,
    yes: bool,
    call: Call,
) -> None:
    """Set the offsets of GROUP in a topic, whether its consumers run or not.

    Running consumers are notified; they may take ten seconds to continue.
    """

    async def move(admin: client.Admin, *, only_look: bool) -> client.Reset:
        chosen = choose_queues(await admin.queues(topic), queues, topic) if queues else None
        return await admin.reset(
            name, topic, to=position, queues=chosen, missing_only=missing_only, dry_run=only_look
        )

    if not dry_run and not yes and sys.stdin.isatty():
        planned = call.ask(partial(move, only_look=True))
        if not call.as_json:
            _show_steps(planned.steps)
        confirm(f"Move group {name} in {output.count(len(planned.steps), 'queue')}?", yes=False)
    _report(call.ask(partial(move, only_look=dry_run)), as_json=call.as_json)


@click.command(epilog="Example: pocketmq group skip billing orders/broker-a/3")
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.argument("queue", metavar="TOPIC/BROKER/QUEUE", callback=parse_queue)
@click.option(
    "--messages", type=click.IntRange(1), default=1, show_default=True, help="How many to skip."
)
@dry_run_option
@yes_option
@call_options
def skip(
    name: str, queue: client.MessageQueue, messages: int, dry_run: bool, yes: bool, call: Call
) -> None:
    """Move GROUP past its next message in one queue, e.g. one that blocks it.

    The message is not deleted: `pocketmq read TOPIC --queue QUEUE --from OFFSET --max 1` shows it.
    """
    question = f"Skip {output.count(messages, 'message')} of {queue} for {name}?"
    confirm(question, yes=yes or dry_run)
    done = call.ask(lambda admin: admin.skip(name, queue, messages=messages, dry_run=dry_run))
    _report(done, as_json=call.as_json)


def _report(done: client.Reset, *, as_json: bool) -> None:
    if as_json:
        output.show_json(
            {
                "group": done.group,
                "topic": done.topic,
                "applied": done.applied,
                "online": list(done.online),
                "unaware": list(done.unaware),
                "queues": [_row(step) for step in done.steps],
            }
        )
        return
    _show_steps(done.steps)
    verb = "moved" if done.applied else "would move"
    changed = sum(step.changes for step in done.steps)
    notified = len(done.online) - len(done.unaware)
    notice = (
        f"notified {output.count(notified, 'member')}" if done.online else "no member is online"
    )
    click.echo(f"{verb} {changed} of {output.count(len(done.steps), 'queue')}; {notice}", err=True)
    if done.unaware:
        click.echo(
            "stop these first, they choose their queues themselves and keep their position: "
            f"{', '.join(done.unaware)}",
            err=True,
        )


def _show_steps(steps: Sequence[client.ResetStep]) -> None:
    rows = [_row(step) for step in steps]
    columns = ["topic", "broker", "queue", "before", "after", "lag_before", "lag_after"]
    output.show_rows(
        rows,
        columns,
        as_json=False,
        spare=["broker", "topic"],
        colour=lambda row: "dim" if row["before"] == row["after"] else "",
    )


def _row(step: client.ResetStep) -> dict[str, object]:
    return {
        "topic": step.queue.topic,
        "broker": step.queue.broker_name,
        "queue": step.queue.queue_id,
        "before": step.before,
        "after": step.after,
        "lag_before": step.lag_before,
        "lag_after": step.lag_after,
        "begin": step.begin,
        "end": step.end,
    }
