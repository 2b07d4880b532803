"""Options that the client commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_NAMESERVER: Final = "127.0.0.1:9876"


def nameserver_option(function: F) -> F:
    """``--nameserver``: where the routes are."""
    return click.option(
        "--nameserver",
        metavar="HOST:PORT[;…]",
        envvar="NAMESRV_ADDR",
        default=DEFAULT_NAMESERVER,
        show_default=True,
        help="The name server, or several of them.",
    )(function)


def json_option(function: F) -> F:
    """``--json``: for programs."""
    return click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")(function)


def yes_option(function: F) -> F:
    """``--yes``: no question at a terminal."""
    return click.option("--yes", "-y", is_flag=True, help="Don't ask at a terminal.")(function)


def dry_run_option(function: F) -> F:
    """``--dry-run``: look, don't touch."""
    return click.option("--dry-run", is_flag=True, help="Only show what would be done.")(function)
