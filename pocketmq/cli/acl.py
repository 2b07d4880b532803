"""``pocketmq acl``: the accounts of brokers."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

import client
from client import AccessRules, AccountInfo, BrokerInfo
from pocketmq import output
from pocketmq.cli.acl_rules import (
    PERMISSIONS,
    everywhere,
    label,
    merged,
    permissions,
    unknown,
    whitelist,
)
from pocketmq.cli.broker_config import brokers_option
from pocketmq.cli.running import (
    ask_admin,
    confirm,
    gather_limited,
    json_option,
    nameserver_option,
    parse_pairs,
    yes_option,
)
from pocketmq.formats import iso
from remoting.access.accounts import dump
from remoting.credentials import read_credentials
from remoting.settings import ConfigError

SECRET_BYTES: Final = 32
"""Random bytes of a new secret: as many as the longest HMAC key that SHA-1 doesn't shorten."""


@click.group(epilog="Example: pocketmq acl user list")
def acl() -> None:
    """Show and change the accounts of brokers that run with aclEnable=true.

    The commands need the keys of an account with `admin: true`, see --credentials.
    """


acl.add_command(permissions("topic"))
acl.add_command(permissions("group"))
acl.add_command(whitelist)


def _parse_rules(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    """Parse options of the form ``NAME=PERMISSION``."""
    pairs = parse_pairs(context, parameter, given)
    return {
        name: PERMISSIONS.convert(permission, parameter, context)
        for name, permission in pairs.items()
    }


# Accounts


@acl.group(epilog="Example: pocketmq acl user list")
def user() -> None:
    """Create, change, list and delete accounts."""


def _rows(found: list[tuple[BrokerInfo, AccessRules]]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = [
        {
            "account": one.access_key,
            "admin": one.admin,
            "topics": [f"{name}={permission}" for name, permission in sorted(one.topics.items())],
            "groups": [f"{name}={permission}" for name, permission in sorted(one.groups.items())],
            "default_topic": one.default_topic,
            "default_group": one.default_group,
            "white_address": one.white_address or None,
            "broker": label(broker),
        }
        for broker, rules in found
        for one in rules.accounts.values()
    ]
    return sorted(merged(rows), key=lambda row: str(row["account"]))


@user.command(name="list", epilog="Example: pocketmq acl user list")
@brokers_option
@nameserver_option
@json_option
def list_(brokers: tuple[str, ...], nameserver: str, as_json: bool) -> None:
    """List the accounts of every broker, without their secrets."""
    rows = _rows(ask_admin(nameserver, lambda admin: everywhere(admin, brokers)))
    columns = [
        *("account", "admin", "topics", "groups", "default_topic", "default_group"),
        *("white_address", "brokers"),
    ]
    output.show_rows(
        rows,
        columns,
        as_json=as_json,
        spare=["white_address", "brokers", "default_group", "default_topic"],
        colour=lambda row: "bold" if row["admin"] else "",
    )


@user.command(epilog="Example: pocketmq acl user get billing")
@click.argument("name", metavar="ACCOUNT")
@brokers_option
@nameserver_option
@json_option
def get(name: str, brokers: tuple[str, ...], nameserver: str, as_json: bool) -> None:
    """Show ACCOUNT, several times if brokers differ."""

    async def ask(admin: client.Admin) -> list[dict[str, object]]:
        rows = _rows(await everywhere(admin, brokers))
        found = [row for row in rows if row["account"] == name]
        if not found:
            raise unknown(name)
        return found

    rows = ask_admin(nameserver, ask)
    if as_json:
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
@click.option("--like", metavar="ACCOUNT", help="A new account may do what this one may.")
@click.option("--admin/--no-admin", "administers", default=None, help="Whether it may administer.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    callback=_parse_rules,
    metavar="TOPIC=PERMISSION",
    help="Add or change its permission on a topic: DENY, PUB, SUB or 'PUB|SUB'.",
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
    "--default-topic", type=PERMISSIONS, metavar="PERMISSION", help="On all other topics."
)
@click.option(
    "--default-group", type=PERMISSIONS, metavar="PERMISSION", help="On all other groups."
)
@click.option(
    "--white-address",
    metavar="PATTERN",
    help="Needs no signature from there, e.g. 10.1.2.*; '' for none.",
)
@brokers_option
@yes_option
@nameserver_option
@json_option
def set_(
    name: str,
    ask: bool,
    keys: Path | None,
    new_keys: Path | None,
    like: str | None,
    administers: bool | None,
    topics: Mapping[str, str],
    groups: Mapping[str, str],
    default_topic: str | None,
    default_group: str | None,
    white_address: str | None,
    brokers: tuple[str, ...],
    yes: bool,
    nameserver: str,
    as_json: bool,
) -> None:
    """Create ACCOUNT at every broker, or change what is given.

    A new account needs a secret. Requests signed with the former secret of an account are denied;
    to replace keys without that, create a second account with --like.
    """
    if sum((ask, keys is not None, new_keys is not None)) > 1:
        raise click.UsageError("give one of --secret, --keys and --new-keys")
    has_secret = ask or keys is not None or new_keys is not None
    rules_given = (administers, default_topic, default_group, white_address, like)
    if not (has_secret or topics or groups) and rules_given == (None,) * 5:
        raise click.UsageError("nothing to change: give --admin or --topic, for example")

    found = ask_admin(nameserver, lambda admin: everywhere(admin, brokers))
    lacking = [label(broker) for broker, rules in found if name not in rules.accounts]
    if lacking and not has_secret:
        raise click.ClickException(
            f"there is no account {name} (broker {lacking[0]}); a new one needs a secret: "
            "--new-keys FILE makes one"
        )
    if like is not None and not lacking:
        raise click.ClickException(f"there is an account {name} already; --like is for a new one")
    if has_secret and len(lacking) < len(found):
        confirm(f"Deny requests that are signed with the former secret of {name}?", yes=yes)
    wanted = []
    for broker, rules in found:
        model = rules.accounts.get(name if like is None else like)
        if model is None:
            if like is not None:
                raise click.ClickException(str(unknown(like)))
            model = AccountInfo(access_key=name)
        account = replace(
            model,
            admin=model.admin if administers is None else administers,
            default_topic=default_topic or model.default_topic,
            default_group=default_group or model.default_group,
            topics={**model.topics, **topics},
            groups={**model.groups, **groups},
            white_address=model.white_address if white_address is None else white_address,
        )
        wanted.append((broker, account))
    secret = _secret(name, ask=ask, keys=keys, new_keys=new_keys)

    async def change(admin: client.Admin) -> None:
        for broker, account in wanted:
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
        ask_admin(nameserver, change)
    except click.ClickException as error:
        if new_keys is None:
            raise
        # Some brokers may have the secret already.
        raise click.ClickException(
            f"{error.message}; the new keys are in {new_keys}: to try again use --keys"
        ) from error
    done = "created" if len(lacking) == len(found) else "changed"
    output.done(f"{done} account {name}", {"account": name}, as_json=as_json)


def _secret(name: str, *, ask: bool, keys: Path | None, new_keys: Path | None) -> str | None:
    """Return the secret that the options give. It is in no text that is shown."""
    if keys is not None:
        try:
            read = read_credentials(keys)
        except ConfigError as error:
            raise click.ClickException(str(error)) from None
        if read.access_key != name:
            raise click.ClickException(f"{keys} has the keys of {read.access_key}, not of {name}")
        return read.secret_key
    if new_keys is not None:
        made = secrets.token_urlsafe(SECRET_BYTES)
        try:
            descriptor = os.open(new_keys, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except OSError as error:
            raise click.ClickException(f"{new_keys}: {error.strerror}") from None
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(dump({"accessKey": name, "secretKey": made}))
        return made
    if not ask:
        return None
    if sys.stdin.isatty():
        return str(
            click.prompt(f"Secret of {name}", hide_input=True, confirmation_prompt=True, err=True)
        )
    return sys.stdin.readline().rstrip("\r\n")


@user.command(epilog="Example: pocketmq acl user delete billing --yes")
@click.argument("name", metavar="ACCOUNT")
@brokers_option
@yes_option
@nameserver_option
@json_option
def delete(name: str, brokers: tuple[str, ...], yes: bool, nameserver: str, as_json: bool) -> None:
    """Delete ACCOUNT at every broker that has it: its requests are denied from then on."""
    confirm(f"Delete account {name}?", yes=yes)

    async def remove(admin: client.Admin) -> None:
        found = await everywhere(admin, brokers)
        having = [broker for broker, rules in found if name in rules.accounts]
        if not having:
            raise unknown(name)
        for broker in having:
            await admin.delete_account(broker.address, name)

    ask_admin(nameserver, remove)
    output.done(f"deleted account {name}", {"account": name}, as_json=as_json)


@acl.command(epilog="Example: pocketmq acl version")
@brokers_option
@nameserver_option
@json_option
def version(brokers: tuple[str, ...], nameserver: str, as_json: bool) -> None:
    """Show how often requests have changed the file of accounts of every broker."""

    async def ask(admin: client.Admin) -> list[dict[str, object]]:
        found = await admin.brokers(names=brokers or None)
        files = await gather_limited(found, lambda one: admin.access_versions(one.address))
        return [
            {
                "broker": label(broker),
                "file": path,
                "changes": at.changes,
                "changed_at": iso(at.changed_at),
            }
            for broker, versions in zip(found, files, strict=True)
            for path, at in versions.items()
        ]

    columns = ["broker", "changes", "changed_at", "file"]
    output.show_rows(ask_admin(nameserver, ask), columns, as_json=as_json)
