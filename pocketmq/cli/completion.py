"""``pocketmq completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_WHERE = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc",
    "fish": "~/.config/fish/config.fish",
}


@click.command(epilog='Example: eval "$(pocketmq completion bash)" in ~/.bashrc')
@click.argument("shell", type=click.Choice(list(_WHERE)))
def completion(shell: str) -> None:
    """Print the script that makes SHELL complete commands, options and their values."""
    from pocketmq.cli import root  # noqa: PLC0415 - the root knows this command

    kind = get_completion_class(shell)
    assert kind is not None, "click knows these three"
    click.echo(f"# To have it in every shell, evaluate this in {_WHERE[shell]}.")
    click.echo(kind(root, {}, "pocketmq", "_POCKETMQ_COMPLETE").source())
