"""``pocketmq topic``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

import click

import client
from client.errors import TopicNotFound
from pocketmq import output
from pocketmq.cli.completion import brokers_option, topic_names
from pocketmq.cli.group_lag import lag_colour, topic_lag_row
from pocketmq.cli.running import Call, call_options, confirm, yes_option
from pocketmq.formats import iso_of_ms
from remoting.protocol.bodies.stats import TopicOffset
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.names import PERM_READ, PERM_WRITE
from remoting.runtime.tasks import gather_limited

DEFAULT_QUEUES = 8
RATE_SECONDS = 1.0
"""How long ``topic list --rate`` counts messages."""

permission_option = click.option(
    "--permission",
    type=click.Choice(["rw", "r", "w", "none"]),
    help="What clients may do: read, write, both, nothing.",
)


@click.group(epilog="Example: pocketmq topic list --nameserver 127.0.0.1:9876")
def topic() -> None:
    """Create, change, list and delete topics."""


@topic.command(name="list", epilog="Example: pocketmq topic list --all")
@click.option(
    "--all", "internal", is_flag=True, help="Include system, retry and dead-letter topics."
)
@click.option("--rate", is_flag=True, help="Measure for one second how many messages arrive.")
@call_options
def list_(internal: bool, rate: bool, call: Call) -> None:
    """List the topics, with their queues and the messages in them.

    A dash stands for a value that a broker did not return.
    """

    async def ask(admin: client.Admin) -> list[dict[str, object]]:
        names = await admin.topics(internal=internal)
        held = await gather_limited(names, lambda name: _stats(admin, name))
        rows = [_list_row(*pair) for pair in zip(names, held, strict=True)]
        if rate:
            began = time.monotonic()
            await asyncio.sleep(RATE_SECONDS)
            later = await gather_limited(names, lambda name: _stats(admin, name))
            seconds = time.monotonic() - began
            for row, before, after in zip(rows, held, later, strict=True):
                row["rate"] = _rate(before, after, seconds)
        return rows

    columns = ["topic", "queues", "messages", *(["rate"] if rate else []), "last_stored"]
    rows = call.ask(ask)
    call.show_rows(rows, columns, spare=["last_stored"])


Stats = Mapping[client.MessageQueue, TopicOffset]


async def _stats(admin: client.Admin, name: str) -> Stats | None:
    try:
        return await admin.topic_stats(name)
    except client.PocketMQError:
        # An unreachable broker, or a topic deleted meanwhile, must not hide the other topics.
        return None


def _list_row(name: str, held: Stats | None) -> dict[str, object]:
    if held is None:
        return {"topic": name, "queues": None, "messages": None, "last_stored": None}
    return {
        "topic": name,
        "queues": len(held),
        "messages": sum(queue.max_offset - queue.min_offset for queue in held.values()),
        "last_stored": iso_of_ms(max((q.last_update_timestamp for q in held.values()), default=0)),
    }


def _rate(before: Stats | None, after: Stats | None, seconds: float) -> float | None:
    if before is None or after is None:
        return None
    arrived = sum(
        after[queue].max_offset - held.max_offset
        for queue, held in before.items()
        if queue in after
    )
    return round(arrived / seconds, 1)


@topic.command(epilog="Example: pocketmq topic create orders --queues 4")
@click.argument("name", metavar="TOPIC", shell_complete=topic_names)
@click.option(
    "--queues",
    type=click.IntRange(1),
    default=DEFAULT_QUEUES,
    show_default=True,
    help="Queues per broker.",
)
@permission_option
@click.option("--cluster", help="Only at the brokers of this cluster.")
@brokers_option
@call_options
def create(
    name: str,
    queues: int,
    permission: str | None,
    cluster: str | None,
    brokers: tuple[str, ...],
    call: Call,
) -> None:
    """Create TOPIC; it must not exist yet at the brokers chosen."""

    async def make(admin: client.Admin) -> None:
        await _check_new(admin, name, brokers)
        await admin.create_topic(
            name,
            queues=queues,
            permission=_letters(permission or "rw"),
            cluster=cluster,
            brokers=brokers or None,
        )

    call.ask(make)
    call.done(
        f"created topic {name} with {output.count(queues, 'queue')} at each broker",
        {"topic": name, "queues": queues},
    )


async def _check_new(admin: client.Admin, name: str, brokers: tuple[str, ...]) -> None:
    try:
        route = await admin.topic_route(name)
    except TopicNotFound:
        return
    holders = {data.broker_name for data in route.queue_datas}
    if taken := holders & set(brokers) if brokers else holders:
        raise client.UsageError(
            f"the topic exists already at {', '.join(sorted(taken))}",
            topic=name,
            hint="change it with `pocketmq topic update`",
        )


@topic.command(epilog="Example: pocketmq topic update orders --queues 16")
@click.argument("name", metavar="TOPIC", shell_complete=topic_names)
@click.option("--queues", type=click.IntRange(1), help="Read and write queues.")
@click.option("--write-queues", type=click.IntRange(1), help="Write queues; lower this first.")
@click.option("--read-queues", type=click.IntRange(1), help="Read queues.")
@permission_option
@click.option(
    "--everywhere",
    is_flag=True,
    help="Also create TOPIC at the brokers of its cluster that lack it.",
)
@brokers_option
@click.option("--force", is_flag=True, help="Even if that leaves messages that nobody can read.")
@yes_option
@call_options
def update(
    name: str,
    queues: int | None,
    write_queues: int | None,
    read_queues: int | None,
    permission: str | None,
    everywhere: bool,
    brokers: tuple[str, ...],
    force: bool,
    yes: bool,
    call: Call,
) -> None:
    """Change the given settings of TOPIC at every broker that has it, or at one.

    A send creates a topic at one broker only; if others of the cluster lack it, the command says
    so, and with --everywhere it creates the topic there.

    A different number of write queues breaks the order per key for a while: the command warns, and
    asks at a terminal unless --yes or --json is given. Fewer read queues are refused while the
    others have messages that a group hasn't read: lower --write-queues first, and --read-queues
    once they are read.
    """
    if everywhere and brokers:
        raise click.UsageError("--everywhere and --broker exclude each other: give one of them")
    changes = (queues, write_queues, read_queues, permission)
    if changes == (None, None, None, None) and not everywhere:
        raise click.UsageError("nothing to change: give --queues, --permission or --everywhere")

    async def count_queues(admin: client.Admin) -> set[int]:
        if read_queues or queues:
            await _check_unread(admin, name, read_queues or queues or 0, brokers, force=force)
        configs = await admin.topic_config(name)
        return {
            config.write_queue_nums
            for broker, config in configs.items()
            if not brokers or broker in brokers
        }

    async def change(admin: client.Admin) -> list[str]:
        lacking = [] if brokers else await admin.brokers_without(name)
        await admin.update_topic(
            name,
            queues=queues,
            read_queues=read_queues,
            write_queues=write_queues,
            permission=None if permission is None else _letters(permission),
            everywhere=everywhere,
            brokers=brokers or None,
        )
        return lacking

    present = call.ask(count_queues)
    target = write_queues or queues
    if target is not None and present and present != {target}:
        before = ", ".join(map(str, sorted(present)))
        click.echo(
            f"warning: topic {name} changes from {before} to {target} queues per broker, and most "
            "sharding keys move to another queue: newer messages of a key may be handled before "
            "older ones that still wait in its old queue",
            err=True,
        )
        # With --json a program reads the output and can't answer, even at a terminal.
        confirm(f"Change topic {name}?", yes=yes or call.as_json)
    lacking = call.ask(change)
    created = ""
    if lacking and everywhere:
        created = f", and created it at {', '.join(lacking)}"
    elif lacking:
        click.echo(
            f"topic {name} is missing at {', '.join(lacking)}: `pocketmq topic update {name} "
            "--everywhere` creates it there",
            err=True,
        )
    call.done(f"changed topic {name}{created}", {"topic": name})


async def _check_unread(
    admin: client.Admin, name: str, reads: int, brokers: tuple[str, ...], *, force: bool
) -> None:
    """Warn of messages that nobody could read with ``reads`` read queues, or raise UsageError."""
    stats, groups = await asyncio.gather(admin.topic_stats(name), admin.groups_of(name))
    lags = await gather_limited(groups, lambda group: admin.lag(group, topic=name))
    # Without a group, all messages are unread.
    unread = {
        queue: 0 if lags else held.max_offset - held.min_offset for queue, held in stats.items()
    }
    for lag in lags:
        for queue, state in lag.queues.items():
            oldest = stats[queue].min_offset if queue in stats else 0
            lag_of_queue = state.end - max(state.committed, oldest)
            unread[queue] = max(unread.get(queue, 0), lag_of_queue)
    lost = {
        queue: count
        for queue, count in unread.items()
        if count > 0 and queue.queue_id >= reads and (not brokers or queue.broker_name in brokers)
    }
    if not lost:
        return
    where = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in sorted(lost)[:5])
    more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
    text = (
        f"{output.count(sum(lost.values()), 'message')} in queues {where}{more} would stay unread:"
        f" with {output.count(reads, 'read queue')} nobody can read them"
    )
    if not force:
        raise client.UsageError(
            text,
            topic=name,
            hint=f"first lower --write-queues to {reads}, wait until `pocketmq topic describe"
            f" {name}` shows no lag, then lower --read-queues; --force loses sight of them",
        )
    click.echo(f"warning: topic {name}: {text}", err=True)


@topic.command(epilog="Example: pocketmq topic delete orders --yes")
@click.argument("name", metavar="TOPIC", shell_complete=topic_names)
@yes_option
@call_options
def delete(name: str, yes: bool, call: Call) -> None:
    """Delete TOPIC and its messages at every broker."""
    confirm(f"Delete topic {name} and all its messages?", yes=yes)

    async def remove(admin: client.Admin) -> None:
        await admin.topic_route(name)
        await admin.delete_topic(name)

    call.ask(remove)
    call.done(f"deleted topic {name}", {"topic": name})


@topic.command(epilog="Example: pocketmq topic route orders --json")
@click.argument("name", metavar="TOPIC", shell_complete=topic_names)
@call_options
def route(name: str, call: Call) -> None:
    """Show the route of TOPIC: its brokers and queues, as clients get it."""
    topic_route = call.ask(lambda admin: admin.topic_route(name))
    addresses = {broker.broker_name: broker for broker in topic_route.broker_datas}
    rows = [
        {
            "broker": queue.broker_name,
            "cluster": addresses[queue.broker_name].cluster,
            "write_queues": queue.write_queue_nums,
            "read_queues": queue.read_queue_nums,
            "permission": permission_text(queue.perm),
            "addresses": list(addresses[queue.broker_name].broker_addrs.values()),
        }
        for queue in sorted(topic_route.queue_datas, key=lambda queue: queue.broker_name)
        if queue.broker_name in addresses
    ]
    columns = ["broker", "cluster", "write_queues", "read_queues", "permission", "addresses"]
    call.show_rows(rows, columns, spare=["cluster"])


@topic.command(epilog="Example: pocketmq topic status orders")
@click.argument("name", metavar="TOPIC", shell_complete=topic_names)
@call_options
def status(name: str, call: Call) -> None:
    """Show the offsets and messages of each queue of TOPIC."""
    offsets = call.ask(lambda admin: admin.topic_stats(name))
    call.show_rows(_queue_rows(offsets), _QUEUE_COLUMNS, spare=_QUEUE_SPARE)


_QUEUE_COLUMNS: Final = ("broker", "queue", "first", "next", "messages", "last_stored")
_QUEUE_SPARE: Final = ("first", "next")


def _queue_rows(offsets: Stats) -> list[dict[str, object]]:
    return [
        {
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "first": held.min_offset,
            "next": held.max_offset,
            "messages": held.max_offset - held.min_offset,
            "last_stored": iso_of_ms(held.last_update_timestamp),
        }
        for queue, held in offsets.items()
    ]


@topic.command(epilog="Example: pocketmq topic describe orders")
@click.argument("name", metavar="TOPIC", shell_complete=topic_names)
@call_options
def describe(name: str, call: Call) -> None:
    """Show the settings of TOPIC at each broker, its queues, and the groups that consume it."""

    async def ask(
        admin: client.Admin,
    ) -> tuple[dict[str, TopicConfig], Stats, list[client.Lag]]:
        configs, stats, groups = await asyncio.gather(
            admin.topic_config(name), admin.topic_stats(name), admin.groups_of(name)
        )
        lags = await gather_limited(groups, lambda group: admin.lag(group, topic=name, owners=True))
        return configs, stats, lags

    configs, stats, lags = call.ask(ask)
    brokers = [
        {
            "broker": broker,
            "write_queues": config.write_queue_nums,
            "read_queues": config.read_queue_nums,
            "permission": permission_text(config.perm),
            "order": config.order,
            "attributes": [f"{key}={value}" for key, value in (config.attributes or {}).items()],
        }
        for broker, config in sorted(configs.items())
    ]
    queues, groups = _queue_rows(stats), [topic_lag_row(lag, name) for lag in lags]
    if call.as_json:
        output.show_json({"topic": name, "brokers": brokers, "queues": queues, "groups": groups})
        return
    columns = ["broker", "write_queues", "read_queues", "permission", "order", "attributes"]
    output.show_rows(brokers, columns, as_json=False, spare=["attributes", "order"])
    output.show_rows(queues, _QUEUE_COLUMNS, as_json=False, spare=_QUEUE_SPARE)
    columns = ["group", "lag", "members", "last_consumed"]
    output.show_rows(groups, columns, as_json=False, spare=["last_consumed"], colour=lag_colour)
    if not groups:
        click.echo("no group consumes it", err=True)


def _letters(permission: str) -> str:
    return "" if permission == "none" else permission


def permission_text(perm: int) -> str:
    """Return ``rw``, ``r``, ``w`` or ``none``."""
    letters = ("r" if perm & PERM_READ else "") + ("w" if perm & PERM_WRITE else "")
    return letters or "none"
