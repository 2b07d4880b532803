"""``pocketmq acl topic``, ``group`` and ``whitelist``: permissions and trusted addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import click

import client
from client import AccessRules, AccountInfo, BrokerInfo
from pocketmq import output
from pocketmq.cli.broker_config import brokers_option
from pocketmq.cli.completion import group_names, topic_names
from pocketmq.cli.running import (
    ask_admin,
    confirm,
    gather_limited,
    json_option,
    nameserver_option,
    yes_option,
)

Kind = Literal["topic", "group"]

PERMISSIONS: Final = click.Choice(["DENY", "PUB", "SUB", "PUB|SUB"], case_sensitive=False)


async def everywhere(
    admin: client.Admin, names: tuple[str, ...]
) -> list[tuple[BrokerInfo, AccessRules]]:
    """Return the brokers with their rules."""
    brokers = await admin.brokers(names=names or None)
    rules = await gather_limited(brokers, lambda one: admin.access_rules(one.address))
    return list(zip(brokers, rules, strict=True))


def label(broker: BrokerInfo) -> str:
    """Return what a row calls a broker: its name, and the id of a slave."""
    return f"{broker.name}/{broker.id}" if broker.id else broker.name


def merged(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Merge rows that differ in their broker only; each has the list of its brokers."""
    different: dict[str, dict[str, object]] = {}
    brokers: dict[str, list[object]] = {}
    for row in rows:
        broker = row.pop("broker")
        different.setdefault(repr(row), row)
        brokers.setdefault(repr(row), []).append(broker)
    return [{**row, "brokers": brokers[key]} for key, row in different.items()]


def unknown(name: str) -> client.UsageError:
    """Return the error for an account that no broker has."""
    return client.UsageError(
        f"there is no account {name}", hint="`pocketmq acl user list` shows them"
    )


def _effective(account: AccountInfo, kind: Kind, name: str) -> tuple[str, str]:
    """Return an account's permission on a topic or group, and where it comes from."""
    if account.admin and not account.topics and not account.groups:
        return "PUB|SUB", "admin"
    listed = account.topics if kind == "topic" else account.groups
    if name in listed:
        return listed[name], "rule"
    return (account.default_topic if kind == "topic" else account.default_group), "default"


def permissions(kind: Kind) -> click.Group:
    """Return the commands ``list``, ``set`` and ``delete`` for topics or groups."""
    # Both kinds have the same commands: only the words, and the table of the account, differ.
    place = kind.upper()
    names = topic_names if kind == "topic" else group_names

    @click.group(name=kind, help=f"Show and change permissions on {kind}s.")
    def commands() -> None: ...

    commands.epilog = f"Example: pocketmq acl {kind} list"

    def listed(account: AccountInfo) -> Mapping[str, str]:
        return account.topics if kind == "topic" else account.groups

    @commands.command(
        name="list",
        epilog=f"Example: pocketmq acl {kind} list orders",
        help=f"List the permissions on {place}, or the rules about all {kind}s.",
    )
    @click.argument("name", metavar=f"[{place}]", required=False, shell_complete=names)
    @brokers_option
    @nameserver_option
    @json_option
    def list_permissions(
        name: str | None, brokers: tuple[str, ...], nameserver: str, as_json: bool
    ) -> None:
        rows: list[dict[str, object]] = []
        for broker, rules in ask_admin(nameserver, lambda admin: everywhere(admin, brokers)):
            for account in rules.accounts.values():
                for one in listed(account) if name is None else [name]:
                    permission, by = _effective(account, kind, one)
                    row = {kind: one, "account": account.access_key, "permission": permission}
                    rows.append({**row, "by": by, "broker": label(broker)})
        rows = sorted(merged(rows), key=lambda row: (str(row[kind]), str(row["account"])))
        columns = [kind, "account", "permission", "by", "brokers"]
        output.show_rows(rows, columns, as_json=as_json, spare=["brokers"])

    def change(
        name: str, account: str, permission: str | None, brokers: tuple[str, ...], nameserver: str
    ) -> None:
        async def apply(admin: client.Admin) -> None:
            having = [
                (broker, rules.accounts[account])
                for broker, rules in await everywhere(admin, brokers)
                if account in rules.accounts
            ]
            if not having:
                raise unknown(account)
            if permission is None and not any(name in listed(one) for _, one in having):
                raise client.UsageError(f"account {account} has no rule about {kind} {name}")
            for broker, one in having:
                table = {other: value for other, value in listed(one).items() if other != name}
                if permission is not None:
                    table[name] = permission
                if kind == "topic":
                    await admin.put_account(broker.address, account, topics=table)
                else:
                    await admin.put_account(broker.address, account, groups=table)

        ask_admin(nameserver, apply)

    @commands.command(
        name="set",
        epilog=f"Example: pocketmq acl {kind} set orders billing SUB",
        help=f"Set the permission of ACCOUNT on {place}: DENY, PUB, SUB or 'PUB|SUB'.",
    )
    @click.argument("name", metavar=place, shell_complete=names)
    @click.argument("account", metavar="ACCOUNT")
    @click.argument("permission", metavar="PERMISSION", type=PERMISSIONS)
    @brokers_option
    @nameserver_option
    @json_option
    def set_permission(
        name: str,
        account: str,
        permission: str,
        brokers: tuple[str, ...],
        nameserver: str,
        as_json: bool,
    ) -> None:
        change(name, account, permission, brokers, nameserver)
        output.done(
            f"account {account} has {permission} on {kind} {name}",
            {kind: name, "account": account, "permission": permission},
            as_json=as_json,
        )

    @commands.command(
        name="delete",
        epilog=f"Example: pocketmq acl {kind} delete orders billing",
        help=f"Delete the rule about {place} of ACCOUNT, whose default then counts.",
    )
    @click.argument("name", metavar=place, shell_complete=names)
    @click.argument("account", metavar="ACCOUNT")
    @brokers_option
    @nameserver_option
    @json_option
    def delete_permission(
        name: str, account: str, brokers: tuple[str, ...], nameserver: str, as_json: bool
    ) -> None:
        change(name, account, None, brokers, nameserver)
        output.done(
            f"account {account} has its default on {kind} {name}",
            {kind: name, "account": account},
            as_json=as_json,
        )

    return commands


# White lists


@click.group(epilog="Example: pocketmq acl whitelist get")
def whitelist() -> None:
    """Show or replace the addresses whose requests aren't checked."""


@whitelist.command(name="get", epilog="Example: pocketmq acl whitelist get")
@brokers_option
@nameserver_option
@json_option
def get_white_list(brokers: tuple[str, ...], nameserver: str, as_json: bool) -> None:
    """Show the white list of every broker."""
    rows: list[dict[str, object]] = [
        {"address": text, "broker": label(broker)}
        for broker, rules in ask_admin(nameserver, lambda admin: everywhere(admin, brokers))
        for text in rules.white_list
    ]
    output.show_rows(merged(rows), ["address", "brokers"], as_json=as_json)


@whitelist.command(name="set", epilog="Example: pocketmq acl whitelist set 10.1.2.3 '10.1.3.*'")
@click.argument("addresses", nargs=-1, metavar="[ADDRESS]...")
@click.option("--clear", is_flag=True, help="Remove all addresses.")
@brokers_option
@yes_option
@nameserver_option
@json_option
def set_white_list(
    addresses: tuple[str, ...],
    clear: bool,
    brokers: tuple[str, ...],
    yes: bool,
    nameserver: str,
    as_json: bool,
) -> None:
    """Replace the white list of every broker by these ADDRESSes."""
    if clear == bool(addresses):
        raise click.UsageError("give addresses, or --clear")
    if clear:
        confirm("Check the requests of all addresses?", yes=yes)
    else:
        confirm(f"Check requests, except those from {', '.join(addresses)}?", yes=yes)

    async def change(admin: client.Admin) -> None:
        for broker in await admin.brokers(names=brokers or None):
            await admin.put_white_list(broker.address, addresses)

    ask_admin(nameserver, change)
    named = output.count(len(addresses), "pattern")
    output.done(f"the white list has {named}", {"addresses": list(addresses)}, as_json=as_json)
