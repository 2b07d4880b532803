"""``pocketmq group``."""

from __future__ import annotations

import sys

import click

import client
from client.admin.descriptions import GroupDescription, Problem
from pocketmq import output
from pocketmq.cli.group_reset import reset, skip
from pocketmq.cli.options import json_option, nameserver_option, yes_option
from pocketmq.cli.running import run
from pocketmq.cli.times import iso
from remoting.protocol.bodies.group import SubscriptionGroupConfig
from remoting.protocol.names import RETRY_PREFIX
from remoting.protocol.versions import name_of


@click.group(epilog="Example: pocketmq group lag billing")
def group() -> None:
    """Look at consumer groups, and move them."""


group.add_command(reset)
group.add_command(skip)


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


# Looking


@group.command(epilog="Example: pocketmq group show billing")
@click.argument("name", metavar="GROUP")
@nameserver_option
@json_option
def show(name: str, nameserver: str, as_json: bool) -> None:
    """Show what GROUP is: members, subscriptions, lag, and what is wrong with it."""

    async def ask() -> tuple[GroupDescription, client.Lag, dict[str, SubscriptionGroupConfig]]:
        async with client.Admin(nameserver) as admin:
            configs = await admin.group_config(name)
            return await admin.describe_group(name), await admin.lag(name), configs

    description, lag, configs = run(ask())
    facts = _facts(description, lag, next(iter(configs.values())))
    problems = [_problem_row(problem) for problem in description.problems]
    if as_json:
        output.show_json({**facts, "problems": problems})
        return
    output.show_facts(facts, as_json=False)
    if problems:
        columns = ["problem", "text", "docs"]
        output.show_rows(problems, columns, as_json=False, colour=lambda _: "yellow")


def _facts(
    description: GroupDescription, lag: client.Lag, config: SubscriptionGroupConfig
) -> dict[str, object]:
    members = description.members
    first = members[0] if members else None
    # Members that contradict each other have several for one topic.
    subscriptions = {(topic, text) for one in members for topic, text in one.subscriptions.items()}
    blocked = [str(state.queue) for state in description.queues if state.blocked is not None]
    return {
        "group": description.group,
        "members": len(members),
        "model": first.model if first else None,
        "consume_type": first.consume_type if first else None,
        "start_from": first.start_from if first else None,
        "subscriptions": [
            f"{topic}: {text}"
            for topic, text in sorted(subscriptions)
            if not topic.startswith(RETRY_PREFIX)
        ],
        "queues": len(lag.queues),
        "lag": lag.total,
        "blocked": blocked,
        "max_retries": config.retry_max_times,
        "may_consume": config.consume_enable,
    }


def _problem_row(problem: Problem) -> dict[str, object]:
    return {
        "problem": problem.kind,
        "text": problem.text,
        "members": list(problem.members),
        "docs": problem.docs,
    }


@group.command(epilog="Example: pocketmq group lag billing --json")
@click.argument("name", metavar="GROUP")
@click.option("--topic", help="Only this topic.")
@nameserver_option
@json_option
def lag(name: str, topic: str | None, nameserver: str, as_json: bool) -> None:
    """Show how far GROUP is behind in each queue, and who reads it.

    A queue without an offset counts from 0, as in RocketMQ's consumerProgress.
    """

    async def ask() -> client.Lag:
        async with client.Admin(nameserver) as admin:
            found = await admin.lag(name, topic=topic, owners=True)
            if not found.queues:
                await admin.group_config(name)
            return found

    found = run(ask())
    rows = [_lag_row(queue, state) for queue, state in found.queues.items()]
    if as_json:
        output.show_json({"group": name, "lag": found.total, "queues": rows})
        return
    columns = ["topic", "broker", "queue", "committed", "next", "lag", "owner", "last_consumed"]
    output.show_rows(rows, columns, as_json=False, colour=_lag_colour)
    if rows:
        click.echo(f"{found.total} messages behind in {len(rows)} queues", err=True)
    else:
        click.echo(f"{name} has committed nothing yet", err=True)


def _lag_row(queue: client.MessageQueue, state: client.QueueLag) -> dict[str, object]:
    return {
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "committed": state.committed,
        "next": state.end,
        "lag": state.messages,
        "owner": state.owner,
        "last_consumed": iso(state.consumed_at),
    }


def _lag_colour(row: output.Row) -> str:
    """Nobody works on what waits: red. Somebody does: yellow."""
    if not row["lag"]:
        return ""
    return "yellow" if row["owner"] else "red"


@group.command(epilog="Example: pocketmq group members billing")
@click.argument("name", metavar="GROUP")
@nameserver_option
@json_option
def members(name: str, nameserver: str, as_json: bool) -> None:
    """Show who consumes in GROUP now, and the queues each one reads."""

    async def ask() -> tuple[GroupDescription, dict[client.MessageQueue, str]]:
        async with client.Admin(nameserver) as admin:
            description = await admin.describe_group(name)
            if not description.members:
                await admin.group_config(name)
            return description, await admin.owners(name)

    description, owners = run(ask())
    rows = [_member_row(member, owners) for member in description.members]
    columns = [
        *("client_id", "address", "language", "version"),
        *("subscriptions", "queues", "last_heartbeat"),
    ]
    output.show_rows(rows, columns, as_json=as_json, colour=_member_colour)
    if not as_json:
        click.echo(f"{len(rows)} members online", err=True)


def _member_row(member: client.Member, owners: dict[client.MessageQueue, str]) -> dict[str, object]:
    queues = [
        str(queue)
        for queue, owner in sorted(owners.items())
        if owner == member.client_id and not queue.topic.startswith(RETRY_PREFIX)
    ]
    return {
        "client_id": member.client_id,
        "address": member.address,
        "language": member.language,
        "version": name_of(member.version),
        "consume_type": member.consume_type,
        "model": member.model,
        "start_from": member.start_from,
        "strategy": member.strategy,
        "subscriptions": [
            f"{topic}: {text}"
            for topic, text in sorted(member.subscriptions.items())
            if not topic.startswith(RETRY_PREFIX)
        ],
        "queues": queues,
        "joined": iso(member.joined_at),
        "last_heartbeat": iso(member.last_heartbeat_at),
        "ours": member.ours,
    }


def _member_colour(row: output.Row) -> str:
    return "" if row["queues"] else "yellow"
