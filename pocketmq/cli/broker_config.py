"""``pocketmq broker config``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

import client
from broker.config import RUNTIME_KEYS, BrokerConfig
from pocketmq.cli.completion import broker_names
from pocketmq.cli.running import (
    Call,
    call_options,
    confirm,
    gather_limited,
    parse_pairs,
    yes_option,
)
from remoting.runtime.settings import ConfigError, nearest

OURS: Final = "pocketmqMaxTopics"
"""A setting that Apache's brokers don't have."""

brokers_option = click.option(
    "--broker",
    "brokers",
    shell_complete=broker_names,
    multiple=True,
    metavar="NAME",
    help="Only this broker.",
)


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
        now = BrokerConfig().updated({key: table[key] for key in RUNTIME_KEYS & table.keys()})
        now.changes(values)
    except ConfigError as problem:
        raise click.ClickException(f"{broker}: {problem}") from problem
