"""``pocketmq completion``, and completion of topic, group and broker names."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import get_completion_class

from pocketmq.cli.running import DEFAULT_NAMESERVER

if TYPE_CHECKING:
    import client

COMPLETION_SECONDS: Final = 1.0
"""Longest time to wait for names, so that a key press doesn't hang."""

_WHERE = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc",
    "fish": "~/.config/fish/config.fish",
}


@click.command(epilog='Example: eval "$(pocketmq completion bash)" in ~/.bashrc')
@click.argument("shell", type=click.Choice(list(_WHERE)))
def completion(shell: str) -> None:
    """Print the script that makes SHELL complete commands, options and their values."""
    from pocketmq.cli import root  # noqa: PLC0415 - an import cycle otherwise

    kind = get_completion_class(shell)
    assert kind is not None, "click knows these three"
    click.echo(f"# To have it in every shell, evaluate this in {_WHERE[shell]}.")
    click.echo(kind(root, {}, "pocketmq", "_POCKETMQ_COMPLETE").source())


def topic_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the cluster's topics that start with ``incomplete``."""
    return _names(ctx, incomplete, lambda admin: admin.topics())


def group_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the cluster's consumer groups that start with ``incomplete``."""
    return _names(ctx, incomplete, lambda admin: admin.groups())


def broker_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the cluster's brokers that start with ``incomplete``."""

    async def ask(admin: client.Admin) -> set[str]:
        return {broker.name for broker in await admin.brokers()}

    return _names(ctx, incomplete, ask)


def _names(
    ctx: click.Context,
    incomplete: str,
    ask: Callable[[client.Admin], Awaitable[Iterable[str]]],
) -> list[str]:
    import client  # noqa: PLC0415 - slow, and not needed for help pages
    from pocketmq.cli.running import quiet  # noqa: PLC0415 - as above

    nameserver = (
        ctx.params.get("nameserver") or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESERVER
    )

    async def names() -> list[str]:
        async with client.Admin(nameserver) as admin:
            return sorted(name for name in await ask(admin) if name.startswith(incomplete))

    quiet()
    try:
        return asyncio.run(asyncio.wait_for(names(), COMPLETION_SECONDS))
    except (client.PocketMQError, OSError, TimeoutError):
        # A completion can't show an error; without a cluster there are no names.
        return []


brokers_option = click.option(
    "--broker",
    "brokers",
    shell_complete=broker_names,
    multiple=True,
    metavar="NAME",
    help="Only at this broker.",
)
