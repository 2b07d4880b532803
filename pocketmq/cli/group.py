"""``pocketmq group``: consumer groups, their settings and members."""

from __future__ import annotations

from typing import Any

import click

import client
from client.admin.descriptions import GroupDescription
from pocketmq import output
from pocketmq.cli import group_lag, group_reset
from pocketmq.cli.completion import group_names, topic_names
from pocketmq.cli.running import Call, call_options, confirm, lag_pages, yes_option
from pocketmq.formats import iso
from remoting.protocol.bodies.group import SubscriptionGroupConfig
from remoting.protocol.codes import name_of
from remoting.protocol.names import RETRY_PREFIX
from remoting.runtime.tasks import gather_limited


@click.group(epilog="Example: pocketmq group lag billing")
def group() -> None:
    """Inspect consumer groups, and reset their offsets."""


group.add_command(group_lag.lag)
group.add_command(group_reset.reset)
group.add_command(group_reset.skip)


@group.command(name="list", epilog="Example: pocketmq group list")
@click.option("--all", "internal", is_flag=True, help="Include system and tool groups.")
@call_options
def list_(internal: bool, call: Call) -> None:
    """List the consumer groups: members, lag, messages per second in the last minute, and state.

    A group is online, offline (it has no member), or troubled: `pocketmq group show` says why.
    """

    async def ask(admin: client.Admin) -> list[dict[str, object]]:
        pages = lag_pages(admin, internal=internal)
        lags = [lag async for page in pages for lag in page.groups]
        return await gather_limited(lags, lambda lag: _overview_row(admin, lag))

    def colour(row: output.Row) -> str:
        if row["state"] == "offline" and row["lag"]:
            return "red"
        return "" if row["state"] in {"online", "offline"} else "yellow"

    rows = call.ask(ask)
    columns = ["group", "members", "topics", "lag", "per_s", "state"]
    call.show_rows(rows, columns, colour=colour)


async def _overview_row(admin: client.Admin, lag: client.Lag) -> dict[str, object]:
    try:
        description = await admin.describe_group(lag.group)
    except client.PocketMQError as problem:
        # An unreachable broker must not hide what the others know.
        unknown = dict.fromkeys(("members", "topics", "lag", "per_s"))
        return {"group": lag.group, **unknown, "state": str(problem)}
    topics = {topic for member in description.members for topic in member.subscriptions}
    topics |= {queue.topic for queue in lag.queues}
    state = "troubled" if description.problems else "online" if description.online else "offline"
    return {
        "group": description.group,
        "members": len(description.members),
        "topics": sorted(topic for topic in topics if not topic.startswith(RETRY_PREFIX)),
        "lag": lag.total,
        "per_s": round(lag.per_second, 1),
        "state": state,
    }


@group.command(epilog="Example: pocketmq group create billing --max-retries 3")
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option(
    "--max-retries",
    type=click.IntRange(0),
    help="Redeliveries before a message becomes a dead letter; 16 in a new group.",
)
@call_options
def create(name: str, max_retries: int | None, call: Call) -> None:
    """Create GROUP at every broker, or change the given settings if it exists."""

    async def make(admin: client.Admin) -> bool:
        try:
            exists = bool(await admin.group_config(name))
        except client.GroupNotFound:
            exists = False
        await admin.create_group(name, max_retries=max_retries)
        return exists

    if not call.ask(make):
        done = f"created group {name}"
    elif max_retries is None:
        done = f"group {name} exists already and stays as it is"
    else:
        done = f"changed group {name}"
    call.done(done, {"group": name})


@group.command(epilog="Example: pocketmq group update billing --no-consume")
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option(
    "--max-retries",
    type=click.IntRange(0),
    help="Redeliveries before a message becomes a dead letter.",
)
@click.option("--retry-queues", type=click.IntRange(1), help="Queues of its retry topic.")
@click.option("--consume/--no-consume", default=None, help="Whether it may consume.")
@click.option(
    "--broadcast/--no-broadcast", default=None, help="Whether it may consume in broadcasting mode."
)
@call_options
def update(name: str, call: Call, **settings: Any) -> None:
    """Change the given settings of GROUP at every broker that has it; the others stay."""
    if all(value is None for value in settings.values()):
        raise click.UsageError("nothing to change: give --max-retries or --no-consume, for example")

    async def change(admin: client.Admin) -> None:
        await admin.create_group(name, **settings, brokers=await admin.group_config(name))

    call.ask(change)
    call.done(f"changed group {name}", {"group": name})


@group.command(epilog="Example: pocketmq group clone billing billing-copy --topic orders")
@click.argument("source", metavar="GROUP", shell_complete=group_names)
@click.argument("target", metavar="TARGET", shell_complete=group_names)
@click.option("--topic", shell_complete=topic_names, help="Only this topic.")
@yes_option
@call_options
def clone(source: str, target: str, topic: str | None, yes: bool, call: Call) -> None:
    """Set the offsets of TARGET to those of GROUP; TARGET is created if it doesn't exist.

    TARGET must have no running member, which would keep its own position.
    """
    confirm(f"Set the offsets of group {target} to those of {source}?", yes=yes)

    async def copy(admin: client.Admin) -> int:
        await admin.group_config(source)
        if members := await admin.members(target):
            raise client.UsageError(
                f"{output.count(len(members), 'member')} would keep and commit its position",
                group=target,
                hint="stop them first",
            )
        await admin.create_group(target)
        await admin.clone_offsets(source, target, topic=topic)
        return len(await admin.consume_stats(source, topic=topic))

    queues = call.ask(copy)
    call.done(
        f"cloned the offsets of {source} in {output.count(queues, 'queue')} to {target}",
        {"group": source, "target": target, "queues": queues},
    )


@group.command(epilog="Example: pocketmq group delete billing --yes")
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option("--keep-offsets", is_flag=True, help="Keep its committed offsets.")
@yes_option
@call_options
def delete(name: str, keep_offsets: bool, yes: bool, call: Call) -> None:
    """Delete GROUP at every broker."""
    confirm(f"Delete group {name} and its offsets?", yes=yes)

    async def remove(admin: client.Admin) -> None:
        await admin.group_config(name)
        await admin.delete_group(name, remove_offsets=not keep_offsets)

    call.ask(remove)
    call.done(f"deleted group {name}", {"group": name})


# Inspection


@group.command(epilog="Example: pocketmq group show billing")
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@call_options
def show(name: str, call: Call) -> None:
    """Show the members, subscriptions, lag and problems of GROUP."""

    async def ask(
        admin: client.Admin,
    ) -> tuple[GroupDescription, client.Lag, dict[str, SubscriptionGroupConfig]]:
        configs = await admin.group_config(name)
        return await admin.describe_group(name), await admin.lag(name), configs

    description, lag, configs = call.ask(ask)
    facts = _facts(description, lag, next(iter(configs.values())))
    problems = [
        {
            "problem": problem.kind,
            "text": problem.text,
            "members": list(problem.members),
            "docs": problem.docs,
        }
        for problem in description.problems
    ]
    if call.as_json:
        output.show_json({**facts, "problems": problems})
        return
    output.show_facts(facts, as_json=False)
    if problems:
        columns = ["problem", "text", "docs"]
        output.show_rows(
            problems, columns, as_json=False, spare=["docs"], colour=lambda _: "yellow"
        )


def _facts(
    description: GroupDescription, lag: client.Lag, config: SubscriptionGroupConfig
) -> dict[str, object]:
    members = description.members
    first = members[0] if members else None
    # Conflicting members can have several expressions for one topic.
    subscriptions = {
        (topic, text) for member in members for topic, text in member.subscriptions.items()
    }
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
        "retry_queues": config.retry_queue_nums,
        "may_consume": config.consume_enable,
        "may_broadcast": config.consume_broadcast_enable,
    }


@group.command(epilog="Example: pocketmq group members billing")
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@call_options
def members(name: str, call: Call) -> None:
    """Show the members of GROUP, and the queues each one reads."""

    async def ask(
        admin: client.Admin,
    ) -> tuple[GroupDescription, dict[client.MessageQueue, str]]:
        description = await admin.describe_group(name)
        if not description.members:
            await admin.group_config(name)
        return description, await admin.owners(name)

    description, owners = call.ask(ask)
    rows = [_member_row(member, owners) for member in description.members]
    columns = ["client_id", "address", "language", "version"]
    columns += ["subscriptions", "queues", "last_heartbeat"]
    spare = ["last_heartbeat", "version", "language", "address"]
    call.show_rows(rows, columns, spare=spare, colour=lambda row: "" if row["queues"] else "yellow")
    if not call.as_json:
        click.echo(f"{output.count(len(rows), 'member')} online", err=True)


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
