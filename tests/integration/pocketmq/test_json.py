"""``--json`` prints numbers as numbers and booleans as booleans, in every command."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import click

import client
from client import blocking
from pocketmq import testing
from pocketmq.cli import root
from pocketmq.testing import StandaloneServer
from tests.integration.pocketmq.conftest import CommandLine
from tests.support.waiting import wait_until

TESTED_ELSEWHERE = {
    *(("standalone",), ("nameserver",), ("broker",), ("demo",), ("console",)),
    *(("broker", "switch"), ("broker", "promote")),
}
"""Commands that don't end, take minutes, or need two brokers."""

TEXTS = {"body", "id", "keys", "name", "properties", "value"}
"""Fields whose values come from users."""

LOOKS_LIKE_ANOTHER_TYPE = re.compile(r"[-+]?\d+(\.\d+)?%?|true|false|none|null", re.IGNORECASE)


def json_commands(
    command: click.Command = root, names: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from json_commands(inner, (*names, name))
    if any(parameter.name == "as_json" for parameter in command.params):
        yield names


def wrong(value: object, path: str = "") -> Iterator[str]:
    """Return the paths of strings that should be numbers or booleans."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in TEXTS:
                yield from wrong(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from wrong(inner, f"{path}[]")
    elif isinstance(value, str) and LOOKS_LIKE_ANOTHER_TYPE.fullmatch(value):
        yield f"{path}: {value!r}"


KEYS = Path(__file__).with_name("json_keys.json")
"""The fields that each command prints; a change belongs in the CHANGELOG, with its reason.

``POCKETMQ_WRITE_SNAPSHOT=1`` in the environment of this test writes it again.
"""

BY_NAME = {".members[].subscriptions", ".properties", "[].properties"}
"""Objects whose fields are names that users choose."""


def fields(value: object, path: str = "") -> Iterator[str]:
    """Return the paths of all fields."""
    if isinstance(value, dict):
        for name, inner in value.items():
            field = f"{path}.{name}"
            yield field
            if field not in BY_NAME:
                yield from fields(inner, field)
    elif isinstance(value, list):
        for inner in value:
            yield from fields(inner, f"{path}[]")


def await_trace(nameserver: str, message_id: str) -> None:
    """Wait until the index has the trace of a message."""
    with blocking.Admin(nameserver) as admin:
        for _ in range(100):
            with suppress(client.NotFound):
                admin.trace(message_id)
                return
            time.sleep(0.1)


@contextmanager
def consumer_that_gave_up(nameserver: str, topic: str, group: str) -> Iterator[None]:
    """Run a member of a group that dead-letters a topic's messages."""
    given_up = threading.Event()

    def handler(_: client.ReceivedMessage[bytes]) -> None:
        given_up.set()
        raise client.DeadLetter("no such account")

    with blocking.PushConsumer(
        nameserver, group=group, handler=handler, subscribe={topic: "*"}, start_from=client.FIRST
    ):
        assert given_up.wait(20)
        yield


def test_every_command_prints_numbers_as_numbers(
    cli: CommandLine, server: StandaloneServer, name: str, tmp_path: Path
) -> None:
    group, short = f"g-{name}", ("--duration", "0.2", "--warm-up", "0")
    seen: dict[tuple[str, ...], str] = {}

    def call(*words: str, arguments: Sequence[str] = ()) -> str:
        result = cli.result(*words, *arguments, "--json")
        assert result.exit_code == 0, (words, result.output)
        seen[words] = result.stdout
        return result.stdout

    call("topic", "create", arguments=[name, "--queues", "1"])
    call("topic", "update", arguments=[name, "--queues", "1"])
    call("topic", "list")
    call("topic", "route", arguments=[name])
    call(
        "send",
        arguments=[name, "tea", "--key", "o-1", "--property", "a=b", "--tag", "paid", "--trace"],
    )
    handle = cli.json("send", name, "late", "--delay", "1h")["recall_handle"]
    call("message", "recall", arguments=[handle])
    call("topic", "status", arguments=[name])
    call("message", "tail", arguments=[name])
    (found,) = json.loads(call("message", "find", arguments=[name, "o-1"]))
    page = json.loads(call("message", "browse", arguments=[name, "--max", "1"]))
    assert [message["id"] for message in page["messages"]] == [found["id"]]
    assert cli.json("message", "browse", name, "--cursor", page["cursor"])["complete"]
    call("message", "get", arguments=["--topic", name, found["id"]])
    await_trace(server.nameserver, found["id"])
    call("message", "trace", arguments=[found["id"]])
    call("read", arguments=[name])
    member = ("--group", f"{group}-2", "--from", "begin", "--max", "1")
    call("consume", arguments=[name, *member])
    exported = tmp_path / "exported.jsonl"
    cli("message", "export", name, "--out", str(exported))
    cli("topic", "create", f"{name}-copy")
    call("message", "import", arguments=[str(exported), "--topic", f"{name}-copy"])
    call("group", "create", arguments=[group])
    call("group", "clone", arguments=[f"{group}-2", f"{group}-3", "--yes"])
    with blocking.Producer(server.nameserver, group="shop") as producer:
        producer.send(f"{name}-copy", b"tea")
        call("producer", "list")
    member = f"{group}-4"
    with blocking.PushConsumer(
        server.nameserver, group=member, handler=lambda _: None, subscribe={f"{name}-copy": "*"}
    ):
        chosen = ["--topic", name, found["id"], "--group", member]
        handled = json.loads(call("message", "consume", arguments=chosen))
        assert handled["outcome"] == "CR_SUCCESS"
        open_ones = json.loads(call("broker", "connections", arguments=["broker-a"]))
        assert [member] in [one["consumer_groups"] for one in open_ones]
    call("broker", "pending")
    call("group", "update", arguments=[group, "--max-retries", "1"])
    call("group", "list")
    with consumer_that_gave_up(server.nameserver, name, group):
        call("group", "lag", arguments=[group])
        call("group", "members", arguments=[group])
        call("group", "show", arguments=[group])
        call("topic", "describe", arguments=[name])
        call("doctor", arguments=["--topic", name, "--group", group])
    call("message", "dlq", "list", arguments=[group])
    (letter,) = json.loads(seen["message", "dlq", "list"])
    call("message", "dlq", "redrive", arguments=[group, "--id", letter["id"]])
    assert cli.json("message", "dlq", "redrive", group)["sent"] == []
    call("group", "reset", arguments=[group, "--topic", name, "--to", "begin", "--yes"])
    call("group", "skip", arguments=[group, f"{name}/{found['broker']}/0", "--yes"])
    call("cluster", "list")
    call("cluster", "status")
    call("broker", "config", "get", arguments=["fileReservedTime"])
    call("broker", "config", "set", arguments=["fileReservedTime=72", "--yes"])
    call("broker", "drain", arguments=["broker-a", "--undo"])
    call("health")
    call("bench", "produce", arguments=short)
    call("bench", "consume")
    call("bench", "latency", arguments=short)
    # Offsets get to the disk every few seconds, and with them the groups.
    wait_until(lambda: json.loads(call("store", "info", arguments=[str(server.store)]))["groups"])
    call("store", "verify", arguments=[str(server.store)])
    call("store", "copy", arguments=[str(server.store), str(tmp_path / "copy")])
    call("group", "delete", arguments=[group, "--yes"])
    call("topic", "delete", arguments=[name, "--yes"])
    with testing.broker(accounts={"operator": {"admin": True}}) as guarded:
        keys = guarded.credentials["operator"]
        cli = CommandLine(
            guarded.nameserver,
            POCKETMQ_ACCESS_KEY=keys.access_key,
            POCKETMQ_SECRET_KEY=keys.secret_key,
        )
        fresh = str(tmp_path / "keys.yml")
        call("acl", "user", "set", arguments=["billing", "--new-keys", fresh])
        for kind in ("topic", "group"):
            call("acl", kind, "set", arguments=["orders", "billing", "SUB"])
            call("acl", kind, "list")
            call("acl", kind, "delete", arguments=["orders", "billing"])
        call("acl", "user", "list")
        call("acl", "user", "get", arguments=["billing"])
        call("acl", "user", "delete", arguments=["billing", "--yes"])
        call("acl", "whitelist", "set", arguments=["10.1.2.3", "--yes"])
        call("acl", "whitelist", "get")
        call("acl", "version")
    assert seen.keys() == set(json_commands()) - TESTED_ELSEWHERE
    assert json.loads(seen["message", "dlq", "list"])
    assert json.loads(seen["group", "members"])
    assert not [
        f"{' '.join(words)}: {place}"
        for words, text in seen.items()
        for line in text.splitlines()
        for place in wrong(json.loads(line))
    ]
    printed = {
        " ".join(words): sorted({f for line in text.splitlines() for f in fields(json.loads(line))})
        for words, text in sorted(seen.items())
    }
    if os.environ.get("POCKETMQ_WRITE_SNAPSHOT"):
        KEYS.write_text(json.dumps(printed, indent=1) + "\n")
    assert printed == json.loads(KEYS.read_text())
