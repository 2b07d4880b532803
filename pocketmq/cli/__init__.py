"""The root of the command line.

The module of each command is imported when the command is called, so that a server process imports
only what it needs.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

import click

import pocketmq

COMMANDS: Final = {
    "standalone": (
        "pocketmq.cli.servers:standalone",
        "Run a name server and a broker in one process.",
    ),
    "nameserver": ("pocketmq.cli.servers:nameserver", "Run a name server."),
    "broker": ("pocketmq.cli.servers:broker", "Run a broker."),
    "topic": ("pocketmq.cli.topic:topic", "Create, change, list and delete topics."),
    "group": ("pocketmq.cli.group:group", "Inspect consumer groups, and reset their offsets."),
    "producer": ("pocketmq.cli.cluster:producer", "Show the producers that are connected."),
    "message": (
        "pocketmq.cli.message:message",
        "Find, trace, export and import messages; handle dead letters.",
    ),
    "store": ("pocketmq.cli.store:store", "Inspect, verify and copy a store's directory."),
    "cluster": ("pocketmq.cli.cluster:cluster", "Show brokers and their clusters."),
    "acl": ("pocketmq.cli.acl:acl", "Manage accounts, their permissions and white lists."),
    "send": ("pocketmq.cli.send:send", "Send messages from arguments, a file or stdin."),
    "read": ("pocketmq.cli.read:read", "Read messages to the terminal, a file or a pipe."),
    "consume": ("pocketmq.cli.consume:consume", "Read messages as a member of a group."),
    "health": ("pocketmq.cli.health:health", "Check whether a server answers."),
    "doctor": ("pocketmq.cli.doctor:doctor", "Check a cluster for problems, and show remedies."),
    "console": ("pocketmq.cli.console:console", "Serve web pages about a cluster."),
    "bench": ("pocketmq.cli.bench:bench", "Measure throughput and latency of a cluster."),
    "tls": ("pocketmq.cli.tls:tls", "Make certificates for tests."),
    "demo": ("pocketmq.cli.demo:demo", "Send orders to a temporary broker, and check each."),
    "completion": ("pocketmq.cli.completion:completion", "Print the shell's completion script."),
}
"""Command name -> (module:attribute, its line in the help)."""


HOME: Final = Path(__file__).resolve().parents[2]
OWN_PACKAGES: Final = ("remoting", "nameserver", "broker", "client", "spark_connector")

_SERVERS: Final = "pocketmq.cli.servers"


class SuggestingGroup(click.Group):
    """A click group that imports its commands when called, and so has none for click to suggest."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest one with a similar name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as problem:
            close = difflib.get_close_matches(args[0], self.list_commands(ctx))
            if not close or "Did you mean" in problem.message:
                raise
            text = f"{problem.message} Did you mean {' or '.join(close)}?"
            raise click.UsageError(text, ctx) from None


class LazyGroup(SuggestingGroup):
    """A click group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import the command's module."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        if module == _SERVERS:
            import_structlog()
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the command list of the help page without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: pocketmq standalone --store ./data",
)
@click.version_option(pocketmq.__version__, prog_name="pocketmq")
def root() -> None:
    """PocketMQ: a message broker with RocketMQ's semantics."""


def main(make_parts: object = None) -> None:
    """Run the command line; the entry point of the ``pocketmq`` script.

    Args:
        make_parts: makes the parts of ``standalone``; see ``pocketmq.server.door``.
    """
    # Search directories last that contain modules with the names of PocketMQ's packages, e.g. a
    # client.py in the current directory. multiprocessing passes sys.path to its processes.
    sys.path[:] = sorted(sys.path, key=_hides_ours)
    from pocketmq import output  # noqa: PLC0415 - imports remoting, which must not be hidden

    output.adopt_standard_streams()
    try:
        try:
            root(prog_name="pocketmq", obj=make_parts)
        finally:
            # At exit Python would report an error with a traceback and its own exit code.
            sys.stdout.flush()
    except OSError as problem:
        click.echo(f"Error: {output.os_error(problem)}", err=True)
        sys.exit(1)


def import_structlog() -> None:
    """Import structlog while hiding rich from it; rich can be imported afterwards.

    structlog imports rich, if installed, to format tracebacks: some 20 ms and 4 MB that a server
    doesn't need.
    """
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    # None makes ``import rich`` raise ImportError, which structlog handles.
    sys.modules["rich"] = None  # type: ignore[assignment]  # documented, but not in the stubs
    try:
        import structlog  # noqa: F401, PLC0415 - imported now, while rich is hidden
    finally:
        del sys.modules["rich"]


def _hides_ours(directory: str) -> bool:
    """Return whether a module in this directory would hide one of PocketMQ's packages."""
    specs = (PathFinder.find_spec(name, [directory]) for name in OWN_PACKAGES)
    return any(
        spec is not None
        and not (spec.origin is not None and Path(spec.origin).resolve().parent.parent == HOME)
        for spec in specs
    )
