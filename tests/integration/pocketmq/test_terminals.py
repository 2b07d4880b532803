"""Output on a terminal of 80 columns, and shell completion."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

import client
from client import blocking
from pocketmq.testing import StandaloneServer
from tests.integration.pocketmq.conftest import CommandLine

COLUMNS = 80


def at_a_terminal(server: StandaloneServer, *arguments: str) -> str:
    """Run a command at a terminal of 80 columns; return its stdout and stderr."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES"}}
    running = subprocess.Popen(
        [sys.executable, "-m", "pocketmq", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment | {"NAMESRV_ADDR": server.nameserver, "TERM": "dumb"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            # Linux reports a terminal that no process has open as an I/O error.
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert running.wait(timeout=30) in {0, 1}
    return shown.decode().replace("\r\n", "\n")


@pytest.fixture
def dead_letter(server: StandaloneServer, cli: CommandLine, topic: str) -> tuple[str, str]:
    """Create a group with a dead letter; return the letter's id."""
    group = f"g-{topic}"
    with (
        blocking.Producer(server.nameserver, group="shop") as producer,
        blocking.PushConsumer(
            server.nameserver, group=group, subscribe={topic: "*"}, start_from=client.FIRST
        ) as consumer,
    ):
        receipt = producer.send(topic, b"tea", tag="paid", keys=["a-rather-long-key"])
        next(iter(consumer)).dead_letter("no such account")
    return group, receipt.id


def test_tables_fit_80_columns_without_breaking_ids_and_times(
    server: StandaloneServer, topic: str, dead_letter: tuple[str, str]
) -> None:
    group, message_id = dead_letter
    commands = [
        ["topic", "list", "--all"],
        ["topic", "status", topic],
        ["topic", "route", topic],
        ["group", "list", "--all"],
        ["group", "lag", group],
        ["group", "lag", "--all"],
        ["group", "members", group],
        ["cluster", "list"],
        ["cluster", "status"],
        ["message", "find", topic, "a-rather-long-key"],
        ["message", "dlq", "list", group],
        ["doctor"],
    ]
    shown = {" ".join(command): at_a_terminal(server, *command) for command in commands}
    for command, text in shown.items():
        if command != "doctor":
            assert max(map(len, text.splitlines())) <= COLUMNS, f"{command}:\n{text}"
    assert message_id in shown[f"message find {topic} a-rather-long-key"]
    assert message_id in shown[f"message dlq list {group}"]
    assert "no such account" in " ".join(shown[f"message dlq list {group}"].split())
    assert server.broker in shown["cluster status"]


def test_one_message_needs_no_progress_bar(server: StandaloneServer, topic: str) -> None:
    text = at_a_terminal(server, "send", topic, "tea")
    assert text.startswith(f"sent to {topic}/")
    assert text.count("\n") == 1


def completed(nameserver: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Return bash's completions for the last of these words."""
    return subprocess.run(
        [sys.executable, "-m", "pocketmq"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        env=os.environ
        | {
            "NAMESRV_ADDR": nameserver,
            "_POCKETMQ_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["pocketmq", *words]),
            "COMP_CWORD": str(len(words)),
        },
    )


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "status"],
        ["read"],
        ["doctor", "--topic"],
        ["group", "lag"],
        ["message", "dlq", "list"],
        ["topic", "create", "new", "--broker"],
    ],
)
def test_a_shell_completes_names(
    server: StandaloneServer, cli: CommandLine, topic: str, words: list[str]
) -> None:
    cli("group", "create", f"g-{topic}")
    begin = {"lag": "g-", "list": "g-", "--broker": ""}.get(words[-1], topic[:1])
    done = completed(server.nameserver, *words, begin)
    broker = cli.json("cluster", "list")[0]["broker"]
    expected = {"g-": f"g-{topic}", "": broker}.get(begin, topic)
    assert f"plain,{expected}" in done.stdout.splitlines()
    assert done.stderr == ""


def test_completion_without_a_cluster_offers_nothing() -> None:
    done = completed("127.0.0.1:1", "read", "o")
    assert (done.stdout.strip(), done.stderr) == ("", "")
