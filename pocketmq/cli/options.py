"""Options that several commands share, and the way errors reach a person."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def nameserver_option(function: F) -> F:
    """``--nameserver``: where the routes are."""
    return click.option(
        "--nameserver",
        metavar="HOST:PORT[;…]",
        envvar="NAMESRV_ADDR",
        default="127.0.0.1:9876",
        show_default=True,
        help="The name server, or several of them.",
    )(function)


def json_option(function: F) -> F:
    """``--json``: for a pipe."""
    return click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")(function)


def server_options(function: F) -> F:
    """What each server command takes."""
    options = [
        click.option("--host", default=None, help="Where to listen.  [default: 127.0.0.1]"),
        click.option(
            "--config",
            "file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A RocketMQ configuration file.",
        ),
        click.option(
            "--set",
            "assignments",
            multiple=True,
            metavar="KEY=VALUE",
            help="One of RocketMQ's configuration keys; may be given often.",
        ),
        click.option(
            "--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics here."
        ),
        click.option(
            "--log-level",
            type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
            default="INFO",
            show_default=True,
        ),
        click.option("--json", "as_json", is_flag=True, help="Ready line and log as JSON."),
        click.option("--until-stdin-closes", is_flag=True, hidden=True),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def parse_assignments(assignments: Sequence[str]) -> dict[str, str]:
    """``--set`` options as a table.

    Raises:
        click.BadParameter: One of them has no ``=``.
    """
    table = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            msg = f"{assignment!r} is not KEY=VALUE"
            raise click.BadParameter(msg, param_hint="--set")
        table[key.strip()] = value
    return table


@contextmanager
def friendly_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Show an expected error as its one sentence instead of a traceback."""
    try:
        yield
    except kinds as problem:
        raise click.ClickException(str(problem)) from problem
