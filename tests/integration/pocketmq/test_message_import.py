"""message import of what message export wrote, against a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import client
from client import blocking
from pocketmq.testing import StandaloneServer
from tests.harness.processes import processes
from tests.integration.pocketmq.conftest import CommandLine

COUNT = 1200
QUEUES = 3


@pytest.fixture
def original(server: StandaloneServer, name: str) -> str:
    """A topic with messages of every kind."""
    topic = f"{name}-original"
    with (
        blocking.Admin(server.nameserver) as admin,
        blocking.Producer(server.nameserver, group="p") as producer,
    ):
        admin.create_topic(topic, queues=QUEUES)
        messages = [
            client.Message(topic, b"%d" % n, tag=f"t{n % 2}", keys=[f"k{n}", "all"])
            for n in range(COUNT)
        ]
        messages += [
            client.Message(topic, b"large " * 10_000, properties={"who": "me", "é": "ü"}),
            client.Message(topic, bytes(range(256)), flag=-7),
            client.Message(topic, b"mine", sharding_key="user-7"),
        ]
        assert all(isinstance(one, client.Receipt) for one in producer.send_many(messages))
        producer.send(topic, b"was due long ago", deliver_at=datetime(2026, 1, 1, tzinfo=UTC))
    return topic


@pytest.fixture
def copy(cli: CommandLine, name: str) -> str:
    """An empty topic with as many queues."""
    cli("topic", "create", f"{name}-copy", "--queues", str(QUEUES))
    return f"{name}-copy"


def exported(cli: CommandLine, topic: str, *options: str) -> list[dict[str, Any]]:
    text = cli("message", "export", topic, "--out", "-", *options)
    return [json.loads(line) for line in text.splitlines()]


SYSTEM = {"UNIQ_KEY", "CLUSTER", "TRACE_ON", "MSG_REGION", "WAIT", "__SHARDINGKEY"}


def content(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What an import keeps."""
    kept = ("queue", "offset", "tag", "keys", "flag", "body", "encoding")
    return [
        {name: row[name] for name in kept}
        | {
            "own": {
                k: v
                for k, v in row["properties"].items()
                if k not in SYSTEM and not k.startswith("TIMER_")
            }
        }
        for row in rows
    ]


@pytest.mark.parametrize("file", ["all.jsonl", "all.parquet"])
def test_the_copy_has_the_same_messages_in_the_same_queues_and_order(
    cli: CommandLine, original: str, copy: str, tmp_path: Path, file: str
) -> None:
    path = str(tmp_path / file)
    cli("message", "export", original, "--out", path)
    done = cli.json("message", "import", path, "--topic", copy)
    assert (done["sent"], done["failed"], done["skipped"]) == (COUNT + 4, 0, 0)
    assert content(exported(cli, copy)) == content(exported(cli, original))


@pytest.mark.parametrize("encoding", ["base64", "json"])
def test_every_encoding_of_bodies_is_read(
    cli: CommandLine, topic: str, copy: str, encoding: str
) -> None:
    numbers = '{"wei":12345678901234567890123,"price":12345678901234567.890}\n1e400\n"\\ud800"\n'
    cli("send", topic, stdin='{"a":1}\nnot JSON\n17\n' + numbers)
    text = cli("message", "export", topic, "--out", "-", "--body", encoding)
    cli("message", "import", "-", "--topic", copy, stdin=text)
    assert cli("read", copy) == cli("read", topic)


def test_output_of_read_can_be_imported(cli: CommandLine, topic: str, copy: str) -> None:
    cli("send", topic, "tea", "--key", "o-1", "--tag", "paid", "--property", "who=me")
    cli("message", "import", "-", "--topic", copy, stdin=cli("read", topic, "--json"))
    (row,) = exported(cli, copy)
    assert (row["body"], row["keys"], row["tag"]) == ("tea", ["o-1"], "paid")
    assert row["properties"]["who"] == "me"


def test_messages_return_to_the_topic_of_the_export(cli: CommandLine, topic: str) -> None:
    cli("send", topic, "tea")
    text = cli("message", "export", topic, "--out", "-")
    cli("message", "import", "-", stdin=text)
    assert cli("read", topic) == "tea\ntea\n"


def test_a_dry_run_checks_and_sends_nothing(
    cli: CommandLine, original: str, copy: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "all.jsonl")
    cli("message", "export", original, "--out", path)
    shown = cli.json("message", "import", path, "--topic", copy, "--dry-run")
    assert (shown["messages"], shown["applied"]) == (COUNT + 4, False)
    assert exported(cli, copy) == []


def test_progress_makes_an_import_repeatable(
    cli: CommandLine, original: str, copy: str, tmp_path: Path
) -> None:
    path, marks = tmp_path / "all.jsonl", str(tmp_path / "marks")
    cli("message", "export", original, "--out", str(path))
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    path.write_text("".join(lines[:500]) + "nonsense\n")
    command = ("message", "import", str(path), "--topic", copy, "--progress", marks)
    assert "line 501 is not an exported message" in cli.fails(*command)
    assert len(exported(cli, copy)) == 500
    path.write_text(whole)
    done = cli.json(*command)
    assert (done["sent"], done["skipped"]) == (COUNT + 4 - 500, 500)
    assert content(exported(cli, copy)) == content(exported(cli, original))
    assert cli.json(*command)["sent"] == 0
    assert "give --progress another file" in cli.fails(
        "message", "import", str(path), "--topic", original, "--progress", marks
    )


def test_an_import_that_continues_sends_a_queue_to_the_same_broker(tmp_path: Path) -> None:
    path, marks = tmp_path / "all.jsonl", str(tmp_path / "marks")
    lines = [
        json.dumps({"topic": "orders", "broker": broker, "queue": 0, "body": f"{broker} {number}"})
        for broker in ("old-a", "old-b")
        for number in range(4)
    ]
    with processes(tmp_path, brokers=("broker-a", "broker-b")) as running:
        cli = CommandLine(running.address)
        cli("topic", "create", "orders", "--queues", "1")
        command = ("message", "import", str(path), "--progress", marks)
        path.write_text("\n".join([*lines[:6], "nonsense"]))
        assert "line 7" in cli.fails(*command)
        path.write_text("\n".join(lines))
        assert cli.json(*command)["sent"] == 2
        rows = exported(cli, "orders")
    assert {(row["body"].split()[0], row["broker"]) for row in rows} == {
        ("old-a", "broker-a"),
        ("old-b", "broker-b"),
    }


def test_what_was_refused_is_sent_by_the_next_call(
    cli: CommandLine, topic: str, copy: str, tmp_path: Path
) -> None:
    path, marks = tmp_path / "three.jsonl", str(tmp_path / "marks")
    cli("send", topic, stdin="1\n2\n3\n")
    cli("message", "export", topic, "--out", str(path))
    cli("topic", "update", copy, "--permission", "r")
    command = ("message", "import", str(path), "--topic", copy, "--progress", marks)
    result = cli.result(*command)
    assert result.exit_code == 1
    assert "not sent: " in result.stderr
    assert "3 not acknowledged" in result.stdout
    cli("topic", "update", copy, "--permission", "rw")
    assert cli.json(*command)["sent"] == 3
    assert cli("read", copy).split() == ["1", "2", "3"]


def test_an_interrupted_import_continues(
    cli: CommandLine, server: StandaloneServer, original: str, copy: str, tmp_path: Path
) -> None:
    path, marks = tmp_path / "all.jsonl", tmp_path / "marks"
    cli("message", "export", original, "--out", str(path))
    command = ("message", "import", str(path), "--topic", copy, "--progress", str(marks))
    with subprocess.Popen(
        [*(sys.executable, "-P", "-m", "pocketmq"), *command, "--rate", "200"],
        env={"NAMESRV_ADDR": server.nameserver},
        stdout=subprocess.PIPE,
        text=True,
    ) as importing:
        cli("read", copy, "--follow", "--max", "1")
        importing.send_signal(signal.SIGINT)
        assert importing.wait(30) == 1
    assert 0 < len(exported(cli, copy)) < COUNT
    cli(*command)
    assert content(exported(cli, copy)) == content(exported(cli, original))


def test_refusals_are_one_line_errors(cli: CommandLine, copy: str, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"topic": "t", "body": "$", "encoding": "base64"}\n')
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    (tmp_path / "bad").write_text("[]")
    (tmp_path / "one.jsonl").write_text('{"topic": "not-there", "body": ""}\n')
    (tmp_path / "empty.jsonl").touch()

    def fails(file: str, *options: str, code: int = 1) -> str:
        return cli.fails("message", "import", str(tmp_path / file), *options, code=code)

    assert "line 1 is not an exported message" in fails("bad.jsonl")
    assert "can't be read as Parquet" in fails("bad.parquet")
    assert "No such file" in fails("missing")
    assert "not-there" in fails("one.jsonl")
    bad = ("--topic", copy, "--progress", str(tmp_path / "bad"))
    assert "is not a file that --progress wrote" in fails("one.jsonl", *bad)
    assert "can't be read from stdin" in cli.fails(
        "message", "import", "-", "--format", "parquet", code=2
    )
    assert "0 messages" in cli("message", "import", str(tmp_path / "empty.jsonl"))
