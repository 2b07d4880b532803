"""``pocketmq tls``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from pocketmq import certificates

MAX_DAYS: Final = 3650


@click.group(epilog="Example: pocketmq tls self-signed mq.example.com --out ./tls")
def tls() -> None:
    """Make certificates for tests."""


@tls.command(
    "self-signed", epilog="Example: pocketmq tls self-signed mq.example.com 10.0.0.2 --out ./tls"
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tls"),
    show_default=True,
    help="The directory for the files.",
)
@click.option(
    "--days",
    type=click.IntRange(1, MAX_DAYS),
    default=365,
    show_default=True,
    help="How long it is valid.",
)
def self_signed(names: tuple[str, ...], out: Path, days: int) -> None:
    """Make a certificate for a server, of an authority that is made too.

    The server's NAMEs are host names and IP addresses; localhost is always one of them. Give
    ca.pem to clients. The program openssl must be installed.
    """
    try:
        files = certificates.make(out, names, days=days)
    except (certificates.CertificateError, OSError) as failure:
        raise click.ClickException(str(failure)) from failure
    click.echo("# settings of the server")
    for key, value in files.settings.items():
        click.echo(f"{key}={Path(value).absolute()}")
    click.echo(f"# option of clients: --tls-ca {files.ca.absolute()}")
