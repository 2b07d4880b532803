"""send, read and consume as processes: closed pipes, signals, slow input."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import termios
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pocketmq import testing
from pocketmq.testing import StandaloneServer
from tests.integration.pocketmq.conftest import CommandLine
from tests.support.waiting import wait_until

POCKETMQ = [sys.executable, "-P", "-m", "pocketmq"]


@contextmanager
def start(server: StandaloneServer, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*POCKETMQ, *arguments, "--nameserver", server.nameserver],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_closed_pipe_ends_the_reading(
    cli: CommandLine, topic: str, server: StandaloneServer
) -> None:
    cli("send", topic, stdin="x" * 1000 + "\n" + "y\n" * 5000)
    with start(server, "read", topic, "--follow") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "x" * 1000 + "\n"
        process.stdout.close()
        cli("send", topic, stdin="z\n" * 10)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_following_shows_new_messages_and_ends_with_a_signal(
    cli: CommandLine, topic: str, server: StandaloneServer
) -> None:
    cli("send", topic, "first")
    group = f"g-{topic}"
    with start(server, "read", topic, "--follow", "--group", group, "--commit") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        cli("send", topic, "second")
        assert process.stdout.readline() == "second\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stdout.read() == ""
    assert cli("read", topic, "--group", group) == ""


@pytest.mark.parametrize(
    ("command", "line", "done"),
    [
        (["send"], "first\n", "sent to"),
        (
            ["message", "import", "-", "--topic"],
            '{"topic": "orders", "body": "first"}\n',
            "imported 1 message",
        ),
    ],
    ids=["send", "import"],
)
def test_a_line_is_sent_when_it_arrives_and_a_signal_drains(
    topic: str, server: StandaloneServer, command: list[str], line: str, done: str
) -> None:
    with (
        start(server, *command, topic) as sender,
        start(server, "read", topic, "--follow") as reader,
    ):
        assert sender.stdin is not None
        assert reader.stdout is not None
        sender.stdin.write(line)
        sender.stdin.flush()
        assert reader.stdout.readline() == "first\n"
        sender.send_signal(signal.SIGINT)
        assert sender.wait(20) == 1, "the input was not read to its end"
        assert sender.stdout is not None
        assert done in sender.stdout.read()
        reader.terminate()
        assert reader.wait(20) == 0


@pytest.mark.parametrize(
    "command",
    [
        ["read"],
        ["message", "tail", "-n", "1000"],
        ["message", "tail", "-n", "1", "--follow"],
        ["message", "export", "--out", "-"],
    ],
    ids=" ".join,
)
def test_signals_end_a_command_whose_pipe_nobody_reads(
    cli: CommandLine, topic: str, server: StandaloneServer, command: list[str]
) -> None:
    lines = "\n".join(["x" * 1000] * 200)
    cli("send", topic, stdin=lines)
    with start(server, *command, topic) as process:
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        size = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
        if "--follow" in command:
            process.stdout.readline()
            cli("send", topic, stdin=lines)
        waiting = array("i", [0])

        def is_full() -> bool:
            fcntl.ioctl(pipe, termios.FIONREAD, waiting)
            return waiting[0] > size - 4096

        wait_until(is_full)

        def has_ended() -> bool:
            # The first one asks, and another one ends it.
            process.terminate()
            return process.poll() is not None

        wait_until(has_ended)
        assert process.returncode == -signal.SIGTERM


def test_a_lost_broker_is_reported_and_waited_for(tmp_path: Path) -> None:
    with testing.broker(store=tmp_path) as server:
        cli = CommandLine(server.nameserver)
        cli("topic", "create", "orders", "--queues", "1")
        cli("send", "orders", "before")
        with start(server, "read", "orders", "--follow") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "before\n"
            server.kill()
            assert process.stderr.readline().startswith("waiting: ")
            server.restart()
            cli("send", "orders", "after")
            assert process.stdout.readline() == "after\n"
            process.terminate()
            assert process.wait(20) == 0


def test_a_signal_ends_the_waiting_of_a_slow_rate(topic: str, server: StandaloneServer) -> None:
    with (
        start(server, "send", topic, "--rate", "0.01") as sender,
        start(server, "read", topic, "--follow") as reader,
    ):
        assert sender.stdin is not None
        assert reader.stdout is not None
        sender.stdin.write("first\nsecond\n")
        sender.stdin.flush()
        assert reader.stdout.readline() == "first\n"
        sender.send_signal(signal.SIGINT)
        assert sender.wait(20) == 1


def test_a_consumer_is_a_member_until_a_signal_and_commits(
    cli: CommandLine, topic: str, server: StandaloneServer
) -> None:
    group = f"g-{topic}"
    cli("send", topic, stdin="1\n2\n3\n")
    with start(server, "consume", topic, "--group", group, "--from", "begin") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["1\n", "2\n", "3\n"]
        (member,) = cli.json("group", "members", group)
        assert member["subscriptions"] == [f"{topic}: *"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stdout.read() == ""
    assert cli.json("group", "members", group) == []
    assert cli.json("group", "lag", group)["lag"] == 0
    cli("send", topic, "4")
    assert cli("consume", topic, "--group", group, "--max", "1") == "4\n"


def test_consuming_ends_after_the_limit_and_leaves_the_rest(cli: CommandLine, topic: str) -> None:
    group = ("--group", f"g-{topic}", "--from", "begin")
    cli("send", topic, stdin="".join(f"{n}\n" for n in range(100)))
    assert cli("consume", topic, *group, "--max", "60").split() == [str(n) for n in range(60)]
    assert cli("consume", topic, *group, "--max", "40", "--orderly").split() == [
        str(n) for n in range(60, 100)
    ]


def test_what_cannot_be_written_is_delivered_again(
    cli: CommandLine, topic: str, server: StandaloneServer
) -> None:
    group = ("--group", f"g-{topic}", "--from", "begin", "--orderly")
    cli("send", topic, "1")
    assert "No space left" in cli.fails("consume", topic, *group, "--file", "/dev/full")
    assert cli("consume", topic, *group, "--max", "1") == "1\n"
    with start(server, "consume", topic, *group) as process:
        assert process.stdout is not None
        process.stdout.close()
        cli("send", topic, "2")
        assert process.wait(20) == 0
    assert cli("consume", topic, *group, "--max", "1") == "2\n"


def test_consuming_refuses_what_no_group_can_do(cli: CommandLine, topic: str) -> None:
    assert "give only one" in cli.fails(
        "consume", topic, "--group", "g", "--tags", "a", "--sql", "b = 1", code=2
    )
    assert "Missing option '--group'" in cli.fails("consume", topic, code=2)
    assert "g g" in cli.fails("consume", topic, "--group", "g g")


def test_watching_shows_rates_until_a_signal(
    cli: CommandLine, topic: str, server: StandaloneServer
) -> None:
    cli("send", topic, stdin="1\n2\n3\n")
    group = f"g-{topic}"
    cli("read", topic, "--group", group, "--commit", "--max", "1")
    with start(server, "group", "lag", group, "--watch", "0.2", "--json") as process:
        assert process.stdout is not None
        (first,) = json.loads(process.stdout.readline())["queues"]
        assert (first["lag"], first["in_per_s"], first["out_per_s"]) == (2, None, None)
        cli("read", topic, "--group", group, "--commit")
        while True:
            (row,) = json.loads(process.stdout.readline())["queues"]
            if row["out_per_s"]:
                break
        assert row["in_per_s"] == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    with start(server, "cluster", "status", "--watch", "0.2") as process:
        assert process.stdout is not None
        assert process.stdout.readline().split("\t")[9:11] == ["-", "-"]
        assert float(process.stdout.readline().split("\t")[9]) >= 0
        process.terminate()
        assert process.wait(20) == 0
    with start(server, "group", "lag", "--watch", "0.2") as process:
        assert process.stdout is not None
        assert any(line.startswith(group) for line in process.stdout)
        process.stdout.close()
        assert process.wait(20) == 0
