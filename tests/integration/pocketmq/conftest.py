"""A broker for the command line tests, and a runner for commands in this process."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pocketmq import testing
from pocketmq.cli import root
from remoting.runtime.log import ROOT as LOGGERS


class CommandLine:
    """Calls commands against one name server, with more variables of the environment."""

    def __init__(self, nameserver: str, **environment: str) -> None:
        self.nameserver = nameserver
        self.environment = environment

    def result(self, *arguments: str, stdin: str | bytes | None = None) -> Result:
        """Run a command; return its result with any exit code; fail at a traceback."""
        result = CliRunner(env={"NAMESRV_ADDR": self.nameserver, **self.environment}).invoke(
            root, list(arguments), input=stdin, prog_name="pocketmq"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def __call__(self, *arguments: str, stdin: str | bytes | None = None) -> str:
        """Run a command that has to succeed; return its stdout."""
        result = self.result(*arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str, stdin: str | bytes | None = None) -> Any:
        """Run a command with --json; return the parsed output."""
        return json.loads(self(*arguments, "--json", stdin=stdin))

    def fails(self, *arguments: str, code: int = 1, stdin: str | bytes | None = None) -> str:
        """Return the one-line error of a command that fails."""
        result = self.result(*arguments, stdin=stdin)
        assert result.exit_code == code, result.output
        return result.stderr


@pytest.fixture(scope="session")
def server() -> Iterator[testing.StandaloneServer]:
    """One broker for all of these tests."""
    with testing.broker() as running:
        yield running


@pytest.fixture
def cli(server: testing.StandaloneServer) -> Iterator[CommandLine]:
    """Run commands against ``server``; their changes of the logging are undone."""
    loggers = logging.getLogger(LOGGERS)
    level = loggers.level
    yield CommandLine(server.nameserver)
    loggers.setLevel(level)


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make standard input and output of commands in this process a terminal."""
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)


_numbers = count(1)


@pytest.fixture
def name() -> str:
    """Return a unique name for a topic or group."""
    return f"t{next(_numbers)}"


@pytest.fixture
def topic(cli: CommandLine, name: str) -> str:
    """Create a topic of one queue."""
    cli("topic", "create", name, "--queues", "1")
    return name
