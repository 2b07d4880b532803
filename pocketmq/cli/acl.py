"""``pocketmq acl``: the accounts of brokers."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import click

import client
from client import AccessRules, AccountInfo, BrokerInfo
from pocketmq import output
from pocketmq.cli.completion import brokers_option, group_names, topic_names
from pocketmq.cli.running import Call, call_options, confirm, parse_pairs, yes_option
from pocketmq.formats import iso
from remoting.access.accounts import dump
from remoting.protocol.names import holds_messages_of_others
from remoting.runtime.settings import ConfigError
from remoting.runtime.tasks import gather_limited
from remoting.security.credentials import read_credentials

SECRET_BYTES: Final = 32
"""Random bytes of a new secret: as many as the longest HMAC key that SHA-1 doesn't shorten."""

Kind = Literal["topic", "group"]

PERMISSIONS: Final = click.Choice(["DENY", "PUB", "SUB", "PUB|SUB"], case_sensitive=False)


@click.group(epilog="Example: pocketmq acl user list")
def acl() -> None:
    """Show and change the accounts of brokers that run with aclEnable=true.

    The commands need the keys of an account with `admin: true`, see --credentials.
    """


@acl.group(epilog="Example: pocketmq acl topic list")
def topic() -> None:
    """Show and change permissions on topics."""


@acl.group(epilog="Example: pocketmq acl group list")
def group() -> None:
    """Show and change permissions on groups."""


async def everywhere(
    admin: client.Admin, names: tuple[str, ...]
) -> list[tuple[BrokerInfo, AccessRules]]:
    """Return the brokers with their rules."""
    brokers = await admin.brokers(names=names or None)
    rules = await gather_limited(brokers, lambda broker: admin.access_rules(broker.address))
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
    if kind == "topic" and holds_messages_of_others(name):
        return ("PUB|SUB", "admin") if account.admin else ("DENY", "system topic")
    return (account.default_topic if kind == "topic" else account.default_group), "default"


def _parse_rules(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """Parse options of the form ``NAME=PERMISSION``."""
    pairs = parse_pairs(context, parameter, texts)
    return {
        name: PERMISSIONS.convert(permission, parameter, context)
        for name, permission in pairs.items()
    }


# Accounts


@acl.group(epilog="Example: pocketmq acl user list")
def user() -> None:
    """Create, change, list and delete accounts."""


def _rows(brokers: list[tuple[BrokerInfo, AccessRules]]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = [
        {
            "account": account.access_key,
            "admin": account.admin,
            "topics": [
                f"{name}={permission}" for name, permission in sorted(account.topics.items())
            ],
            "groups": [
                f"{name}={permission}" for name, permission in sorted(account.groups.items())
            ],
            "default_topic": account.default_topic,
            "default_group": account.default_group,
            "white_address": account.white_address or None,
            "broker": label(broker),
        }
        for broker, rules in brokers
        for account in rules.accounts.values()
    ]
    return sorted(merged(rows), key=lambda row: str(row["account"]))


@user.command(name="list", epilog="Example: pocketmq acl user list")
@brokers_option
@call_options
def list_(brokers: tuple[str, ...], call: Call) -> None:
    """List the accounts of every broker, without their secrets."""
    rows = _rows(call.ask(lambda admin: everywhere(admin, brokers)))
    columns = ["account", "admin", "topics", "groups"]
    columns += ["default_topic", "default_group", "white_address", "brokers"]
    call.show_rows(
        rows,
        columns,
        spare=["white_address", "brokers", "default_group", "default_topic"],
        colour=lambda row: "bold" if row["admin"] else "",
    )


@user.command(epilog="Example: pocketmq acl user get billing")
@click.argument("name", metavar="ACCOUNT")
@brokers_option
@call_options
def get(name: str, brokers: tuple[str, ...], call: Call) -> None:
    """Show ACCOUNT, several times if brokers differ."""

    async def ask(admin: client.Admin) -> list[dict[str, object]]:
        rows = _rows(await everywhere(admin, brokers))
        matching = [row for row in rows if row["account"] == name]
        if not matching:
            raise unknown(name)
        return matching

    rows = call.ask(ask)
    if call.as_json:
        output.show_json(rows)
        return
    for number, row in enumerate(rows):
        if number:
            click.echo()
        output.show_facts(row, as_json=False)


@user.command(
    name="set", epilog="Example: pocketmq acl user set billing --new-keys keys.yml --topic a=SUB"
)
@click.argument("name", metavar="ACCOUNT")
@click.option("--secret", "ask", is_flag=True, help="Read a secret from the terminal or stdin.")
@click.option(
    "--keys",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take the secret from a file that --credentials accepts.",
)
@click.option(
    "--new-keys",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Make a secret, and write it to this new file, for --credentials.",
)
@click.option("--like", metavar="ACCOUNT", help="Copy the permissions of this account.")
@click.option("--admin/--no-admin", default=None, help="Grant or revoke admin rights.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    callback=_parse_rules,
    metavar="TOPIC=PERMISSION",
    help="Set the permission on a topic: DENY, PUB, SUB or 'PUB|SUB'.",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    callback=_parse_rules,
    metavar="GROUP=PERMISSION",
    help="The same for a group.",
)
@click.option(
    "--default-topic",
    type=PERMISSIONS,
    metavar="PERMISSION",
    help="Permission on topics without a rule.",
)
@click.option(
    "--default-group",
    type=PERMISSIONS,
    metavar="PERMISSION",
    help="Permission on groups without a rule.",
)
@click.option(
    "--white-address",
    metavar="PATTERN",
    help="Accept unsigned requests from these addresses, e.g. 10.1.2.*; '' for none.",
)
@brokers_option
@yes_option
@call_options
def set_(
    name: str,
    ask: bool,
    keys: Path | None,
    new_keys: Path | None,
    like: str | None,
    topics: Mapping[str, str],
    groups: Mapping[str, str],
    brokers: tuple[str, ...],
    yes: bool,
    call: Call,
    **options: Any,
) -> None:
    """Create ACCOUNT at every broker, or change what is given.

    A new account needs a secret. Requests signed with the former secret of an account are denied;
    to replace keys without that, create a second account with --like.
    """
    if sum((ask, keys is not None, new_keys is not None)) > 1:
        raise click.UsageError("give one of --secret, --keys and --new-keys")
    has_secret = ask or keys is not None or new_keys is not None
    changes = {name: value for name, value in options.items() if value is not None}
    if not (has_secret or topics or groups or changes or like is not None):
        raise click.UsageError("nothing to change: give --admin or --topic, for example")

    current = call.ask(lambda admin: everywhere(admin, brokers))
    lacking = [label(broker) for broker, rules in current if name not in rules.accounts]
    if lacking and not has_secret:
        raise click.ClickException(
            f"there is no account {name} (broker {lacking[0]}); a new one needs a secret: "
            "--new-keys FILE makes one"
        )
    if like is not None and not lacking:
        raise click.ClickException(f"there is an account {name} already; --like is for a new one")
    if has_secret and len(lacking) < len(current):
        confirm(f"Deny requests that are signed with the former secret of {name}?", yes=yes)
    changed = []
    for broker, rules in current:
        model = rules.accounts.get(name if like is None else like)
        if model is None:
            if like is not None:
                raise click.ClickException(str(unknown(like)))
            model = AccountInfo(access_key=name)
        account = replace(
            model,
            **changes,
            topics={**model.topics, **topics},
            groups={**model.groups, **groups},
        )
        changed.append((broker, account))
    secret = _secret(name, ask=ask, keys=keys, new_keys=new_keys)

    async def change(admin: client.Admin) -> None:
        for broker, account in changed:
            await admin.put_account(
                broker.address,
                name,
                secret_key=secret,
                admin=account.admin,
                default_topic=account.default_topic,
                default_group=account.default_group,
                topics=account.topics or None,
                groups=account.groups or None,
                white_address=account.white_address,
            )

    try:
        call.ask(change)
    except click.ClickException as error:
        if new_keys is None:
            raise
        # Some brokers may have the secret already.
        raise click.ClickException(
            f"{error.message}; the new keys are in {new_keys}: to try again use --keys"
        ) from error
    done = "created" if len(lacking) == len(current) else "changed"
    call.done(f"{done} account {name}", {"account": name})


def _secret(name: str, *, ask: bool, keys: Path | None, new_keys: Path | None) -> str | None:
    """Return the secret from the options; it is never printed."""
    if keys is not None:
        try:
            read = read_credentials(keys)
        except ConfigError as error:
            raise click.ClickException(str(error)) from None
        if read.access_key != name:
            raise click.ClickException(f"{keys} has the keys of {read.access_key}, not of {name}")
        return read.secret_key
    if new_keys is not None:
        secret = secrets.token_urlsafe(SECRET_BYTES)
        try:
            descriptor = os.open(new_keys, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except OSError as error:
            raise click.ClickException(f"{new_keys}: {error.strerror}") from None
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(dump({"accessKey": name, "secretKey": secret}))
        return secret
    if not ask:
        return None
    if sys.stdin.isatty():
        return str(
            click.prompt(f"Secret of {name}", hide_input=True, confirmation_prompt=True, err=True)
        )
    return sys.stdin.readline().removeprefix("\ufeff").rstrip("\r\n")


@user.command(epilog="Example: pocketmq acl user delete billing --yes")
@click.argument("name", metavar="ACCOUNT")
@brokers_option
@yes_option
@call_options
def delete(name: str, brokers: tuple[str, ...], yes: bool, call: Call) -> None:
    """Delete ACCOUNT at every broker that has it: its requests are denied from then on."""
    confirm(f"Delete account {name}?", yes=yes)

    async def remove(admin: client.Admin) -> None:
        found = await everywhere(admin, brokers)
        having = [broker for broker, rules in found if name in rules.accounts]
        if not having:
            raise unknown(name)
        for broker in having:
            await admin.delete_account(broker.address, name)

    call.ask(remove)
    call.done(f"deleted account {name}", {"account": name})


@acl.command(epilog="Example: pocketmq acl version")
@brokers_option
@call_options
def version(brokers: tuple[str, ...], call: Call) -> None:
    """Show how often requests have changed the file of accounts of every broker."""

    async def ask(admin: client.Admin) -> list[dict[str, object]]:
        matching = await admin.brokers(names=brokers or None)
        files = await gather_limited(matching, lambda one: admin.access_versions(one.address))
        return [
            {
                "broker": label(broker),
                "file": path,
                "changes": at.changes,
                "changed_at": iso(at.changed_at),
            }
            for broker, versions in zip(matching, files, strict=True)
            for path, at in versions.items()
        ]

    columns = ["broker", "changes", "changed_at", "file"]
    call.show_rows(call.ask(ask), columns)


# Permissions. Topics and groups share the commands: only the table of the account differs.


def _kind(context: click.Context) -> Kind:
    """Return whether a command is one of ``acl topic`` or of ``acl group``."""
    return "topic" if context.parent is not None and context.parent.command is topic else "group"


def _names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    complete = topic_names if _kind(context) == "topic" else group_names
    return complete(context, parameter, incomplete)


def _rules(account: AccountInfo, kind: Kind) -> Mapping[str, str]:
    return account.topics if kind == "topic" else account.groups


name_argument = click.argument("name", shell_complete=_names)


@click.command(name="list", epilog="Example: pocketmq acl topic list orders")
@click.argument("name", required=False, shell_complete=_names)
@brokers_option
@call_options
@click.pass_context
def list_permissions(
    context: click.Context, name: str | None, brokers: tuple[str, ...], call: Call
) -> None:
    """List the permissions on NAME, or all rules."""
    kind = _kind(context)
    rows: list[dict[str, object]] = []
    for broker, rules in call.ask(lambda admin: everywhere(admin, brokers)):
        for account in rules.accounts.values():
            for item in _rules(account, kind) if name is None else [name]:
                permission, by = _effective(account, kind, item)
                row = {kind: item, "account": account.access_key, "permission": permission}
                rows.append({**row, "by": by, "broker": label(broker)})
    rows = sorted(merged(rows), key=lambda row: (str(row[kind]), str(row["account"])))
    columns = [kind, "account", "permission", "by", "brokers"]
    call.show_rows(rows, columns, spare=["brokers"])


def _change(
    call: Call,
    kind: Kind,
    name: str,
    account: str,
    permission: str | None,
    brokers: tuple[str, ...],
) -> None:
    """Set the permission of an account at every broker that has it; None deletes its rule."""

    async def apply(admin: client.Admin) -> None:
        holders = [
            (broker, rules.accounts[account])
            for broker, rules in await everywhere(admin, brokers)
            if account in rules.accounts
        ]
        if not holders:
            raise unknown(account)
        if permission is None and not any(name in _rules(info, kind) for _, info in holders):
            raise client.UsageError(f"account {account} has no rule about {kind} {name}")
        for broker, info in holders:
            table = {other: value for other, value in _rules(info, kind).items() if other != name}
            if permission is not None:
                table[name] = permission
            if kind == "topic":
                await admin.put_account(broker.address, account, topics=table)
            else:
                await admin.put_account(broker.address, account, groups=table)

    call.ask(apply)


@click.command(name="set", epilog="Example: pocketmq acl topic set orders billing SUB")
@name_argument
@click.argument("account")
@click.argument("permission", metavar="PERMISSION", type=PERMISSIONS)
@brokers_option
@call_options
@click.pass_context
def set_permission(
    context: click.Context,
    name: str,
    account: str,
    permission: str,
    brokers: tuple[str, ...],
    call: Call,
) -> None:
    """Set the permission of ACCOUNT on NAME: DENY, PUB, SUB or 'PUB|SUB'."""
    kind = _kind(context)
    _change(call, kind, name, account, permission, brokers)
    call.done(
        f"account {account} has {permission} on {kind} {name}",
        {kind: name, "account": account, "permission": permission},
    )


@click.command(name="delete", epilog="Example: pocketmq acl topic delete orders billing")
@name_argument
@click.argument("account")
@brokers_option
@call_options
@click.pass_context
def delete_permission(
    context: click.Context, name: str, account: str, brokers: tuple[str, ...], call: Call
) -> None:
    """Delete the rule about NAME of ACCOUNT, whose default then counts."""
    kind = _kind(context)
    _change(call, kind, name, account, None, brokers)
    call.done(
        f"account {account} has its default on {kind} {name}", {kind: name, "account": account}
    )


for _group in (topic, group):
    for _command in (list_permissions, set_permission, delete_permission):
        _group.add_command(_command)


# White lists


@acl.group(epilog="Example: pocketmq acl whitelist get")
def whitelist() -> None:
    """Show or replace the addresses whose requests aren't checked."""


@whitelist.command(name="get", epilog="Example: pocketmq acl whitelist get")
@brokers_option
@call_options
def get_white_list(brokers: tuple[str, ...], call: Call) -> None:
    """Show the white list of every broker."""
    rows: list[dict[str, object]] = [
        {"address": text, "broker": label(broker)}
        for broker, rules in call.ask(lambda admin: everywhere(admin, brokers))
        for text in rules.white_list
    ]
    call.show_rows(merged(rows), ["address", "brokers"])


@whitelist.command(name="set", epilog="Example: pocketmq acl whitelist set 10.1.2.3 '10.1.3.*'")
@click.argument("addresses", nargs=-1, metavar="[ADDRESS]...")
@click.option("--clear", is_flag=True, help="Remove all addresses.")
@brokers_option
@yes_option
@call_options
def set_white_list(
    addresses: tuple[str, ...], clear: bool, brokers: tuple[str, ...], yes: bool, call: Call
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

    call.ask(change)
    named = output.count(len(addresses), "pattern")
    call.done(f"the white list has {named}", {"addresses": list(addresses)})
