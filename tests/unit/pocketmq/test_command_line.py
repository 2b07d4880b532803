"""The command line: every command exists, has help with an example, and imports little."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

import pocketmq
from pocketmq.cli import COMMANDS, LazyGroup, root


def commands(command: click.Command, name: str = "pocketmq") -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from commands(found, f"{name} {child}")


ALL = dict(commands(root))


@pytest.mark.parametrize("name", ALL)
def test_every_help_page_has_an_example(name: str) -> None:
    result = CliRunner().invoke(root, [*name.split()[1:], "--help"], prog_name="pocketmq")
    assert result.exit_code == 0
    assert "Example: " in result.output
    assert "pocketmq" in result.output.partition("Example: ")[2]


@pytest.mark.parametrize("name", ALL)
def test_every_option_has_a_help_text_or_is_self_explanatory(name: str) -> None:
    plain = {"--nameserver-port", "--broker-port", "--port", "--format", "--log-level", "--version"}
    for parameter in ALL[name].params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help or set(parameter.opts) & plain, parameter.opts


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from pocketmq.cli import root;"
        "CliRunner().invoke(root, ['--help']);"
        "print([m for m in sys.modules if m.startswith(('pocketmq.cli.', 'broker', 'client'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_server_imports_nothing_it_does_not_need() -> None:
    code = (
        "import sys; from pocketmq.cli import root; import click;"
        "context = click.Context(root);"
        "root.get_command(context, 'broker'); import broker.app;"
        "unwanted = {'rich', 'pygments', 'prometheus_client', 'client', 'nameserver.app', 'numpy',"
        " 'pytest', 'http', 'email', 'zstandard', 'lz4'};"
        "print(sorted(unwanted & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_rich_can_be_imported_after_it_was_hidden_from_structlog() -> None:
    code = (
        "from pocketmq.cli import import_structlog; import_structlog(); import_structlog();"
        "import sys, structlog; assert 'rich' not in sys.modules;"
        "import rich.table; print('there')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "there\n"


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(root, ["nonsense"])
    assert result.exit_code == 2
    assert isinstance(root, LazyGroup)
    assert "nonsense" in result.output


def test_the_version_is_the_packages() -> None:
    assert pocketmq.__version__ in CliRunner().invoke(root, ["--version"]).output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_shells_script(shell: str) -> None:
    result = CliRunner().invoke(root, ["completion", shell])
    assert result.exit_code == 0
    assert "_POCKETMQ_COMPLETE" in result.output


def test_every_command_has_a_line_in_the_table() -> None:
    assert all(line.endswith(".") for _, line in COMMANDS.values())
