"""``pocketmq broker config``, ``drain``, ``switch`` and the like: what concerns running brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import click

import client
from broker.config import RUNTIME_KEYS, BrokerConfig
from client.network.routes import MASTER_ID
from pocketmq import output
from pocketmq.cli.completion import broker_names, brokers_option
from pocketmq.cli.running import Call, call_options, confirm, lag_pages, parse_pairs, yes_option
from pocketmq.formats import iso
from remoting.protocol.codes import name_of
from remoting.protocol.names import PERM_READ, PERM_WRITE
from remoting.runtime import DOCS
from remoting.runtime.settings import ConfigError, nearest
from remoting.runtime.tasks import gather_limited

OURS: Final = "pocketmqMaxTopics"
"""A setting that Apache's brokers don't have."""

POLL_SECONDS: Final = 1.0
"""Between two looks of ``drain`` at what is unread."""


@click.group(epilog="Example: pocketmq broker config get fileReservedTime")
def config() -> None:
    """Show or change settings of brokers that run."""


@config.command(epilog="Example: pocketmq broker config get fileReservedTime deleteWhen")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@brokers_option
@call_options
def get(keys: tuple[str, ...], brokers: tuple[str, ...], call: Call) -> None:
    """Show the settings with these KEYs, or all, of every broker."""

    async def ask(admin: client.Admin) -> list[dict[str, object]]:
        found = await admin.brokers(names=brokers or None)
        tables = await gather_limited(found, lambda one: admin.broker_config(one.address))
        known: set[str] = set().union(*tables)
        if unknown := set(keys) - known:
            raise client.UsageError(
                f"no broker has a setting {min(unknown)!r}",
                hint="`pocketmq broker config get` lists them",
            )
        return [
            {"broker": broker.name, "id": broker.id, "key": key, "value": value}
            for broker, table in zip(found, tables, strict=True)
            for key, value in sorted(table.items())
            if not keys or key in keys
        ]

    rows = call.ask(ask)
    call.show_rows(rows, ["broker", "key", "value"])


@config.command(name="set", epilog="Example: pocketmq broker config set fileReservedTime=48")
@click.argument(
    "assignments", nargs=-1, required=True, callback=parse_pairs, metavar="KEY=VALUE..."
)
@brokers_option
@yes_option
@call_options
def set_(assignments: dict[str, str], brokers: tuple[str, ...], yes: bool, call: Call) -> None:
    """Change settings of every broker now; it keeps them when it is restarted.

    A broker refuses settings that it reads only at its start. In a pipe this needs --yes.
    """

    async def check(admin: client.Admin) -> list[client.BrokerInfo]:
        found = await admin.brokers(names=brokers or None)
        for broker in found:
            _check(broker.name, await admin.broker_config(broker.address), assignments)
        return found

    found = call.ask(check)
    named = ", ".join(assignments)
    where = ", ".join(brokers) or "every broker"
    confirm(f"Change {named} of {where}?", yes=yes, in_pipes=True)

    async def change(admin: client.Admin) -> list[str]:
        for broker in found:
            await admin.update_broker_config(broker.address, assignments)
        return [broker.name for broker in found]

    changed = call.ask(change)
    call.done(
        f"changed {named} of {', '.join(changed)}", {"keys": list(assignments), "brokers": changed}
    )


def _check(broker: str, table: Mapping[str, str], assignments: Mapping[str, str]) -> None:
    """Raise the error that this broker would answer, before anything is asked or changed."""
    keys = {*table, *BrokerConfig.known_keys()}
    for key in assignments:
        if key not in keys:
            raise click.ClickException(f"{broker} has no setting {key!r}{nearest(key, keys)}")
    if OURS not in table:
        return
    values = {key: value for key, value in assignments.items() if table.get(key) != value}
    try:
        # Quotas of accounts, which may change, need ``aclEnable``.
        checked = (RUNTIME_KEYS | {"aclEnable"} | assignments.keys()) & table.keys()
        now = BrokerConfig().updated({key: table[key] for key in checked})
        now.changes(values)
    except ConfigError as problem:
        raise click.ClickException(f"{broker}: {problem}") from problem


@click.command(epilog="Example: pocketmq broker connections broker-a")
@click.argument("name", shell_complete=broker_names)
@call_options
def connections(name: str, call: Call) -> None:
    """List the open connections of broker NAME, with their clients and groups."""

    async def ask(admin: client.Admin) -> list[client.BrokerConnection]:
        address = (await _master(admin, name)).address
        found: list[client.BrokerConnection] = []
        after: str | None = ""
        while after is not None:
            page = await admin.connections(address, after=after)
            found += page.connections
            after = page.next
        return found

    rows = [
        {
            "address": one.address,
            "client_id": one.client_id,
            "language": one.language,
            "version": name_of(one.version) if one.client_id is not None else None,
            "tls": one.tls,
            "producer_groups": one.producer_groups,
            "consumer_groups": one.consumer_groups,
        }
        for one in call.ask(ask)
    ]
    columns = ["address", "client_id", "language", "version", "tls"]
    columns += ["producer_groups", "consumer_groups"]
    call.show_rows(rows, columns, spare=["version", "tls", "language"])


@click.command(epilog="Example: pocketmq broker pending")
@brokers_option
@call_options
def pending(brokers: tuple[str, ...], call: Call) -> None:
    """Show what each master still has to deliver: delayed, timed and half messages."""

    async def ask(admin: client.Admin) -> list[dict[str, object]]:
        found = await admin.brokers(names=brokers or None)
        masters = [broker for broker in found if broker.id == MASTER_ID]
        return [
            {
                "broker": broker.name,
                "delayed": waiting.delayed,
                "timers": waiting.timers,
                "late_s": waiting.late.total_seconds(),
                "half": waiting.half,
                "oldest_half": iso(waiting.oldest_half_at),
            }
            for broker, waiting in zip(
                masters,
                await gather_limited(masters, lambda one: admin.pending(one.address)),
                strict=True,
            )
        ]

    columns = ["broker", "delayed", "timers", "late_s", "half", "oldest_half"]
    call.show_rows(call.ask(ask), columns)


@click.command(epilog="Example: pocketmq broker drain broker-a-1")
@click.argument("name", shell_complete=broker_names)
@click.option("--undo", is_flag=True, help="Let NAME take messages again.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Give up waiting, with exit code 1; NAME stays as it is.",
)
@call_options
def drain(name: str, undo: bool, timeout: float | None, call: Call) -> None:
    """Have broker NAME take no more messages, and wait until its messages are read.

    Producers use the other brokers. The command waits for every group that has committed offsets
    there, and for delayed, timed and half messages. Then the broker can be stopped, and nothing is
    unread in its store. It stays drained, also over a restart and a switch, until --undo.
    """
    if undo:
        call.ask(lambda admin: _permit(admin, name, PERM_READ | PERM_WRITE))
        call.done(f"{name} takes messages again", {"broker": name})
        return

    async def wait(admin: client.Admin) -> None:
        await _permit(admin, name, PERM_READ)
        shown = ""
        while waiting := await _waiting(admin, name):
            text = ", ".join(waiting)
            if text != shown:
                click.echo(f"{name} takes no messages; waiting for {text}", err=True)
            shown = text
            await asyncio.sleep(POLL_SECONDS)

    async def wait_at_most(admin: client.Admin) -> None:
        try:
            async with asyncio.timeout(timeout):
                await wait(admin)
        except TimeoutError:
            waiting = ", ".join(await _waiting(admin, name))
            raise click.ClickException(
                f"{name} takes no messages, but after {timeout:g} s there are still {waiting}: see"
                f" that the groups have members, or undo it with `pocketmq broker drain {name}"
                " --undo`"
            ) from None

    call.ask(wait_at_most)
    call.done(
        f"{name} takes no messages, and every group has read those that it has: it can be stopped",
        {"broker": name},
    )


@click.command(epilog="Example: pocketmq broker switch broker-a --to 1")
@click.argument("name", shell_complete=broker_names)
@click.option("--to", "slave_id", type=int, metavar="ID", help="Which slave, if there are several.")
@call_options
def switch(name: str, slave_id: int | None, call: Call) -> None:
    """Make a slave of broker NAME the master, and the master its slave, without loss.

    The master takes no messages until the slave has everything, and clients go on at the slave. If
    the slave can't catch up, the master stays, and the command says why.
    """

    async def hand_over(admin: client.Admin, slave: client.BrokerInfo) -> None:
        master = (await _master(admin, name)).address
        await admin.hand_over(master, slave.address, slave.id)

    slave = _ask(call, name, slave_id, hand_over)
    call.done(
        f"{name} is now {slave.address}, and the old master is its slave {slave.id}",
        {"broker": name, "master": slave.address, "slave_id": slave.id},
    )


@click.command(epilog="Example: pocketmq broker promote broker-a --id 1")
@click.argument("name", shell_complete=broker_names)
@click.option("--id", "slave_id", type=int, metavar="ID", help="Which slave.")
@click.option("--address", metavar="HOST:PORT", help="Or where it is, if no name server has it.")
@click.option("--force", is_flag=True, help="Do it, and lose what the slave lacks.")
@call_options
def promote(name: str, slave_id: int | None, address: str | None, force: bool, call: Call) -> None:
    """Make a slave of broker NAME the master when the master is dead.

    Without --force, the command says how much would be lost. The old master must not come back as
    a master: start it as a slave, with an empty store. A master whose slave is gone in a switch is
    promoted, too: it takes messages again.
    """
    if (slave_id is None) == (address is None):
        raise click.UsageError("give --id or --address")

    async def force_it(admin: client.Admin, slave: client.BrokerInfo | None = None) -> None:
        at = address if slave is None else slave.address
        assert at is not None
        await admin.promote(name, at, force=force)

    if address is None:
        address = _ask(call, name, slave_id, force_it).address
    else:
        call.ask(lambda admin: _as_ours(name, force_it(admin)))
    call.done(f"{name} is now {address}", {"broker": name, "master": address})


def _ask(
    call: Call,
    name: str,
    broker_id: int | None,
    act: Callable[[client.Admin, client.BrokerInfo], Awaitable[None]],
) -> client.BrokerInfo:
    """Ask a broker to be the master, and return it; without an id the only slave."""

    async def ask(admin: client.Admin) -> client.BrokerInfo:
        found = await admin.brokers(names=[name])
        wanted = {broker_id} if broker_id is not None else {one.id for one in found} - {MASTER_ID}
        chosen = [broker for broker in found if broker.id in wanted]
        if len(chosen) != 1:
            ids = ", ".join(str(broker.id) for broker in found)
            raise client.UsageError(
                f"name one slave of {name}", hint=f"the ids that are registered: {ids}; 0 is master"
            )
        await _as_ours(name, act(admin, chosen[0]))
        return chosen[0]

    return call.ask(ask)


async def _as_ours(name: str, asking: Awaitable[None]) -> None:
    """Ask a broker what Apache's can't do."""
    try:
        await asking
    except client.NotSupported as problem:
        raise click.ClickException(
            f"{name} has an Apache broker or an older one, which can't switch ({problem}): the"
            f" steps by hand are in {DOCS}high-availability.md#by-hand"
        ) from problem


async def _permit(admin: client.Admin, name: str, permission: int) -> None:
    await _master(admin, name)
    # The slaves, too: each keeps its own settings when it becomes the master.
    for broker in sorted(await admin.brokers(names=[name]), key=lambda one: one.id):
        await admin.update_broker_config(broker.address, {"brokerPermission": str(permission)})


async def _master(admin: client.Admin, name: str) -> client.BrokerInfo:
    for broker in await admin.brokers(names=[name]):
        if broker.id == MASTER_ID:
            return broker
    raise client.UsageError(
        f"{name} has no master that is registered",
        hint=f"if it is dead, `pocketmq broker promote {name} --id ID` makes a slave the master",
    )


async def _waiting(admin: client.Admin, name: str) -> list[str]:
    """Return what a broker still has to deliver, as words; empty if nothing."""
    broker = await _master(admin, name)
    work = await admin.pending(broker.address)
    waiting = []
    async for page in lag_pages(admin):
        for error in page.unreachable.values():
            raise error
        for lag in page.groups:
            unread = sum(
                one.messages for queue, one in lag.queues.items() if queue.broker_name == name
            )
            if unread > 0:
                waiting.append(f"{output.count(unread, 'message')} of group {lag.group}")
    for number, what in (
        (work.delayed, "delayed message"),
        (work.timers, "timed message"),
        (work.half, "open transaction"),
    ):
        if number > 0:
            waiting.append(output.count(number, what))
    return waiting
