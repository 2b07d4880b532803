"""Commands and servers whose standard streams are closed, fail, or have a narrow encoding."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pocketmq.testing import StandaloneServer
from tests.integration.pocketmq.conftest import CommandLine
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

POCKETMQ = shlex.join([sys.executable, "-P", "-m", "pocketmq"])
READING = ["topic list", "topic status {topic}", "read {topic}", "read {topic} --json", "--help"]


def shell(server: StandaloneServer, line: str, **variables: str) -> tuple[int, str, str]:
    """Run a command with redirections; return its exit code, and what it wrote."""
    done = subprocess.run(
        ["bash", "-c", f"{POCKETMQ} {line}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "NAMESRV_ADDR": server.nameserver, **variables},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize(
    ("redirection", "reason"),
    [
        (">/dev/full", "stdout: No space left on device"),
        (">&-", "stdout: Bad file descriptor"),
    ],
)
def test_output_that_cannot_be_written_is_one_line_and_exit_code_1(
    server: StandaloneServer,
    cli: CommandLine,
    topic: str,
    command: str,
    redirection: str,
    reason: str,
) -> None:
    cli("send", topic, "tea")
    line = f"{command.format(topic=topic)} {redirection}"
    assert shell(server, line) == (1, "", f"Error: {reason}\n")


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_what_stderr_does_not_take_is_lost_and_the_rest_is_done(
    server: StandaloneServer, cli: CommandLine, topic: str, redirection: str
) -> None:
    cli("send", topic, "tea")
    assert shell(server, f"read {topic} {redirection}") == (0, "tea\n", "")
    assert shell(server, f"topic status none {redirection}") == (1, "", "")
    assert shell(server, f"topic nonsense {redirection}") == (2, "", "")


def test_a_closed_stdin_matters_only_to_a_command_that_reads_it(
    server: StandaloneServer, topic: str
) -> None:
    code, _, error = shell(server, f"send {topic} <&-")
    assert (code, error) == (1, "Error: stdin: Bad file descriptor\n")
    assert shell(server, f"send {topic} tea <&-")[0] == 0
    assert shell(server, f"topic delete {topic} --yes <&-")[0] == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_narrow_encoding_fails_no_command(
    server: StandaloneServer, cli: CommandLine, topic: str, encoding: str
) -> None:
    cli("send", topic, "茶", "--key", "茶")
    for command in (f"message find {topic} 茶", f"topic status 茶{topic}", "doctor"):
        _, _, error = shell(server, command, PYTHONIOENCODING=encoding)
        assert "Traceback" not in error
        assert len(error.splitlines()) <= 1
    code, shown, _ = shell(server, f"message find {topic} 茶", PYTHONIOENCODING="latin-1")
    assert (code, r"\u8336" in shown) == (0, True)


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", ">/dev/full 2>/dev/full"])
def test_a_server_serves_and_stops_cleanly_whatever_its_streams_are(
    tmp_path: Path, redirection: str
) -> None:
    port = free_ports(1)
    options = f"--nameserver-port {port} --broker-port 0 --set mappedFileSizeCommitLog=1048576"
    line = f"exec {POCKETMQ} standalone {options} --store {tmp_path} {redirection}"
    with subprocess.Popen(
        ["bash", "-c", line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            cli = CommandLine(f"127.0.0.1:{port}")
            wait_until(lambda: cli.result("send", "orders", "tea").exit_code == 0)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
