"""The commands ``pocketmq acl`` at a broker with accounts."""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import client
from client import blocking
from client.network.context import context_of
from pocketmq import testing
from pocketmq.testing import StandaloneServer
from remoting.runtime.log import ROOT as LOGGERS
from remoting.security.credentials import read_credentials
from tests.harness.cluster import Cluster
from tests.integration.pocketmq.conftest import CommandLine

SECRET = "a-secret-from-stdin"


@pytest.fixture(scope="module")
def guarded() -> Iterator[StandaloneServer]:
    accounts = {
        "operator": {"admin": True},
        "billing": {"topicPerms": ["orders=SUB"], "groupPerms": ["billing=SUB"]},
    }
    settings = {"pocketmqMaxAccountMessagesPerSecond": "100000"}
    with testing.broker(accounts=accounts, settings=settings) as server:
        yield server


@pytest.fixture
def acl(guarded: StandaloneServer, caplog: pytest.LogCaptureFixture) -> CommandLine:
    """Run commands with the keys of an administrator."""
    # As commands do; undone at the end.
    caplog.set_level(logging.ERROR, logger=LOGGERS)
    keys = guarded.credentials["operator"]
    environment = {"POCKETMQ_ACCESS_KEY": keys.access_key, "POCKETMQ_SECRET_KEY": keys.secret_key}
    return CommandLine(guarded.nameserver, **environment)


def account(acl: CommandLine, name: str) -> dict[str, object]:
    (found,) = acl.json("acl", "user", "get", name)
    assert isinstance(found, dict)
    return found


def test_accounts_are_listed_without_their_secrets(
    acl: CommandLine, guarded: StandaloneServer
) -> None:
    text = acl("acl", "user", "list")
    assert "billing\tno\torders=SUB\tbilling=SUB\tDENY\tDENY\t-\tbroker-a" in text.splitlines()
    assert "operator\tyes\t-\t-\tDENY\tDENY\t-\tbroker-a" in text.splitlines()
    shown = text + acl("acl", "user", "list", "--json") + acl("acl", "user", "get", "operator")
    assert not [keys for keys in guarded.credentials.values() if keys.secret_key in shown]


def test_an_account_is_created_used_changed_and_deleted(
    acl: CommandLine, guarded: StandaloneServer, tmp_path: Path
) -> None:
    file = tmp_path / "keys.yml"
    made = acl("acl", "user", "set", "shop-app", "--new-keys", str(file), "--topic", "orders=pub")
    assert made == "created account shop-app\n"
    keys = read_credentials(file)
    assert len(keys.secret_key) >= 43
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with blocking.Producer(guarded.nameserver, group="shop", credentials=str(file)) as producer:
        producer.send("orders", b"tea")
    changed = ("--admin", "--default-group", "SUB", "--white-address", "10.1.2.*")
    assert acl("acl", "user", "set", "shop-app", *changed) == "changed account shop-app\n"
    assert account(acl, "shop-app") == {
        "account": "shop-app",
        "admin": True,
        "topics": ["orders=PUB"],
        "groups": [],
        "default_topic": "DENY",
        "default_group": "SUB",
        "white_address": "10.1.2.*",
        "brokers": ["broker-a"],
    }
    acl("acl", "user", "set", "shop-app", "--no-admin", "--white-address", "")
    assert account(acl, "shop-app")["white_address"] is None
    assert acl("acl", "user", "delete", "shop-app", "--yes") == "deleted account shop-app\n"
    assert "no account shop-app" in acl.fails("acl", "user", "get", "shop-app")
    assert "no account shop-app" in acl.fails("acl", "user", "delete", "shop-app", "--yes")


def test_secrets_come_from_stdin_or_a_file_and_are_never_shown(
    acl: CommandLine, guarded: StandaloneServer, tmp_path: Path
) -> None:
    made = acl.result("acl", "user", "set", "stdin-app", "--secret", stdin=f"{SECRET}\n")
    assert made.exit_code == 0
    file = tmp_path / "keys.yml"
    file.write_text(f"accessKey: stdin-app\nsecretKey: {SECRET}\n")
    assert "is open to others" in acl.fails("acl", "user", "set", "stdin-app", "--keys", str(file))
    file.chmod(0o600)
    wrong = acl.fails("acl", "user", "set", "other-app", "--keys", str(file))
    assert f"{file} has the keys of stdin-app, not of other-app" in wrong
    acl("acl", "user", "set", "stdin-app", "--keys", str(file), "--yes", "--admin")
    with blocking.Admin(guarded.nameserver, credentials=str(file)) as admin:
        # Routes are open; the name server reads the file within a second.
        assert "stdin-app" in admin.access_rules(admin.brokers()[0].address).accounts
    short = acl.fails("acl", "user", "set", "short-app", "--secret", stdin="short!\n")
    assert "secret_key must have at least 7 characters" in short
    assert "short!" not in short
    assert SECRET not in made.output + wrong


def test_a_new_file_of_keys_replaces_none(acl: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "keys.yml"
    file.write_text("mine")
    assert "File exists" in acl.fails("acl", "user", "set", "new-app", "--new-keys", str(file))
    assert file.read_text() == "mine"
    assert "no account new-app" in acl.fails("acl", "user", "get", "new-app")


def test_new_keys_stay_when_a_broker_refuses(acl: CommandLine, tmp_path: Path) -> None:
    file = str(tmp_path / "keys.yml")
    words = ("acl", "user", "set", "new-app", "--white-address", "nonsense")
    refused = acl.fails(*words, "--new-keys", file)
    assert "is not an IP address" in refused
    assert f"the new keys are in {file}: to try again use --keys" in refused
    acl("acl", "user", "set", "new-app", "--keys", file)
    acl("acl", "user", "delete", "new-app", "--yes")


def test_a_second_account_may_do_what_the_first_may(acl: CommandLine, tmp_path: Path) -> None:
    file = str(tmp_path / "keys.yml")
    acl("acl", "user", "set", "billing-2", "--like", "billing", "--new-keys", file)
    assert account(acl, "billing-2") == {**account(acl, "billing"), "account": "billing-2"}
    missing = acl.fails("acl", "user", "set", "billing-3", "--like", "nobody", "--secret")
    assert "there is no account nobody" in missing
    assert "--like is for a new one" in acl.fails(
        "acl", "user", "set", "billing-2", "--like", "billing"
    )


async def test_keys_are_replaced_by_a_second_account_without_a_failed_send(
    acl: CommandLine, guarded: StandaloneServer, tmp_path: Path
) -> None:
    def replace(account: str, *like: str) -> None:
        fresh = tmp_path / "fresh.yml"
        acl("acl", "user", "set", account, *like, "--new-keys", str(fresh))
        fresh.replace(tmp_path / "keys.yml")

    await asyncio.to_thread(replace, "rotated-1", "--topic", "orders=PUB")
    # Without attempts after the first: each refusal would be seen.
    async with client.Producer(
        guarded.nameserver, group="g", credentials=tmp_path / "keys.yml", retries=0
    ) as producer:
        await producer.send("orders", b"before")
        await asyncio.to_thread(replace, "rotated-2", "--like", "rotated-1")
        async with asyncio.timeout(30):
            while context_of(producer).remote.account != "rotated-2":
                await producer.send("orders", b"meanwhile")
        await asyncio.to_thread(acl, "acl", "user", "delete", "rotated-1", "--yes")
        await producer.send("orders", b"after")


def test_permissions_on_topics_and_groups(acl: CommandLine) -> None:
    for kind in ("topic", "group"):
        acl("acl", kind, "set", "payments", "billing", "PUB|SUB")
        rows = {row["account"]: row for row in acl.json("acl", kind, "list", "payments")}
        assert (rows["billing"]["permission"], rows["billing"]["by"]) == ("PUB|SUB", "rule")
        assert (rows["operator"]["permission"], rows["operator"]["by"]) == ("PUB|SUB", "admin")
        rules = acl("acl", kind, "list").splitlines()
        assert "payments\tbilling\tPUB|SUB\trule\tbroker-a" in rules
        assert len(rules) >= 2
        acl("acl", kind, "delete", "payments", "billing")
        rows = {row["account"]: row for row in acl.json("acl", kind, "list", "payments")}
        assert (rows["billing"]["permission"], rows["billing"]["by"]) == ("DENY", "default")
        gone = acl.fails("acl", kind, "delete", "payments", "billing")
        assert f"account billing has no rule about {kind} payments" in gone
        assert "no account nobody" in acl.fails("acl", kind, "set", "payments", "nobody", "SUB")
    # The last rule, too, although Java's tools can't remove it.
    acl("acl", "group", "delete", "billing", "billing")
    assert account(acl, "billing")["groups"] == []
    acl("acl", "group", "set", "billing", "billing", "SUB")


def test_the_white_list_is_shown_and_replaced(acl: CommandLine) -> None:
    assert acl("acl", "whitelist", "get") == ""
    acl("acl", "whitelist", "set", "10.1.2.3", "10.1.3.*", "--yes")
    assert acl.json("acl", "whitelist", "get") == [
        {"address": "10.1.2.3", "brokers": ["broker-a"]},
        {"address": "10.1.3.*", "brokers": ["broker-a"]},
    ]
    assert "a comma separates two" in acl.fails("acl", "whitelist", "set", "10.1.2.{3,4}", "--yes")
    assert "is not an IP address" in acl.fails("acl", "whitelist", "set", "nonsense", "--yes")
    assert acl("acl", "whitelist", "set", "--clear", "--yes") == "the white list has 0 patterns\n"
    assert acl("acl", "whitelist", "get") == ""
    acl.fails("acl", "whitelist", "set", code=2)


def test_the_version_counts_the_changes(acl: CommandLine, guarded: StandaloneServer) -> None:
    acl("acl", "topic", "set", "counted", "billing", "SUB")
    (before,) = acl.json("acl", "version")
    acl("acl", "topic", "delete", "counted", "billing")
    (after,) = acl.json("acl", "version")
    assert after["changes"] == before["changes"] + 1
    assert after["file"] == str(guarded.store / "config" / "plain_acl.yml")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "nothing to change"),
        (("--secret", "--new-keys", "x"), "give one of"),
        (("--topic", "orders=READ"), "is not one of"),
        (("--topic", "orders"), "is not TOPIC=PERMISSION"),
    ],
)
def test_wrong_options_are_usage_errors(
    acl: CommandLine, words: tuple[str, ...], text: str
) -> None:
    assert text in acl.fails("acl", "user", "set", "billing", *words, code=2)


def test_a_new_account_needs_a_secret(acl: CommandLine) -> None:
    error = acl.fails("acl", "user", "set", "new-app", "--admin")
    assert "a new one needs a secret: --new-keys FILE makes one" in error


def test_without_an_administrators_keys_the_error_names_what_is_missing(
    acl: CommandLine, guarded: StandaloneServer
) -> None:
    assert "POCKETMQ_CREDENTIALS" in CommandLine(guarded.nameserver).fails("acl", "user", "list")
    keys = guarded.credentials["billing"]
    with blocking.Admin(guarded.nameserver, credentials=keys) as admin:
        (broker,) = admin.brokers()
        with pytest.raises(client.AccessDenied, match=r"Need admin .* account billing"):
            admin.access_rules(broker.address)


async def test_brokers_that_differ_are_told_apart(tmp_path: Path) -> None:
    for name in ("broker-a", "broker-b"):
        write(tmp_path / name / "config" / "plain_acl.yml")
    async with Cluster(tmp_path, aclEnable="true") as cluster:
        await cluster.start("broker-a")
        await cluster.start("broker-b")
        keys = {"POCKETMQ_ACCESS_KEY": "operator", "POCKETMQ_SECRET_KEY": SECRET}
        cli = CommandLine(cluster.nameserver, **keys)

        async def run(*words: str) -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = await asyncio.to_thread(cli.json, "acl", *words)
            return rows

        file = str(tmp_path / "keys.yml")
        await run("user", "set", "shop-app", "--new-keys", file, "--topic", "orders=PUB")
        await run("topic", "set", "orders", "shop-app", "SUB", "--broker", "broker-b")
        rows = await run("user", "get", "shop-app")
        assert [(row["topics"], row["brokers"]) for row in rows] == [
            (["orders=PUB"], ["broker-a"]),
            (["orders=SUB"], ["broker-b"]),
        ]
        (operator,) = await run("user", "get", "operator")
        assert operator["brokers"] == ["broker-a", "broker-b"]
        await run("user", "delete", "shop-app", "--broker", "broker-a")
        (row,) = await run("user", "get", "shop-app")
        assert row["brokers"] == ["broker-b"]
        lacking = await asyncio.to_thread(cli.fails, "acl", "user", "set", "shop-app", "--admin")
        assert "there is no account shop-app (broker broker-a)" in lacking


def write(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(f"accounts: [{{accessKey: operator, secretKey: {SECRET}, admin: true}}]")


def test_health_and_doctor_say_that_keys_are_missing(guarded: StandaloneServer) -> None:
    unsigned = CommandLine(guarded.nameserver)
    assert unsigned("health").startswith("ok: name server")
    broker = unsigned.result("health", "--broker", guarded.broker)
    assert "POCKETMQ_CREDENTIALS" in broker.stdout
    assert "POCKETMQ_CREDENTIALS" in unsigned.result("doctor").stdout


def test_a_broker_without_accounts_says_so(cli: CommandLine) -> None:
    error = cli.fails("acl", "user", "list")
    assert "at PocketMQ set aclEnable=true" in error
    assert "createUser" in error


def test_settings_of_a_broker_with_quotas_of_accounts_are_changed(acl: CommandLine) -> None:
    key = "pocketmqMaxAccountMessagesPerSecond"
    done = acl("broker", "config", "set", f"{key}=90000", "fileReservedTime=48", "--yes")
    assert done == f"changed {key}, fileReservedTime of broker-a\n"
    # What the default is, but not here.
    key = "mappedFileSizeCommitLog"
    assert f"only a restart can change {key}" in acl.fails(
        "broker", "config", "set", f"{key}={1 << 30}"
    )
