"""``pocketmq console``."""

from __future__ import annotations

import ipaddress
import secrets
import sys
from importlib.util import find_spec

import click

import client
from client.errors import AccessDenied, PocketMQError
from pocketmq.cli.running import nameserver_option, run
from pocketmq.server.serving import Failed, ServerRunner
from remoting.security.credentials import from_environment


@click.command(epilog="Example: pocketmq console --nameserver 127.0.0.1:9876 --port 8080")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="A host name by which browsers reach it, e.g. that of a proxy; may be repeated.",
)
@click.option("--writable", is_flag=True, help="Pages can send, change and delete.")
@click.option("--json", "as_json", is_flag=True, help="Ready line as JSON.")
@click.option("--until-stdin-closes", is_flag=True, hidden=True)
@nameserver_option
def console(
    host: str,
    port: int,
    names: tuple[str, ...],
    nameserver: str,
    *,
    writable: bool,
    as_json: bool,
    until_stdin_closes: bool,
) -> None:
    """Serve web pages about a cluster.

    They only show, unless --writable is given. Where the brokers ask for an account, so does the
    console, and signs each person's requests with that person's keys. Without accounts, --writable
    is refused unless only this machine can connect, without a proxy (--name).
    """
    if any(find_spec(name) is None for name in ("jinja2", "starlette", "uvicorn")):
        raise click.ClickException("the console needs packages: pip install 'pocketmq[console]'")
    from pocketmq.console.app import ConsoleSettings  # noqa: PLC0415 - after the check above
    from pocketmq.console.serving import ConsolePart  # noqa: PLC0415 - after the check above

    settings = ConsoleSettings(
        nameserver=nameserver,
        credentials=from_environment(),
        writable=writable,
        loopback=_is_loopback(host) and not names,
        names=tuple(name.lower() for name in names),
    )
    if writable and not settings.loopback and run(_is_open(nameserver)):
        raise click.ClickException(
            "--writable with --host or --name needs brokers that ask for accounts "
            "(aclEnable=true), and one that answers now: "
            "everybody who can connect could delete topics"
        )
    until_end_of = sys.stdin.fileno() if until_stdin_closes else None
    part = ConsolePart(settings, host, port)
    try:
        ServerRunner(parts=[part], as_json=as_json, until_end_of=until_end_of).run()
    except (Failed, OSError) as problem:
        raise click.ClickException(str(problem)) from problem


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _is_open(nameserver: str) -> bool:
    """Return whether brokers answer requests of anybody; also if none can be asked."""
    # Without keys of nobody, it would sign with the console's own.
    nobody = client.Credentials("pocketmq-nobody", secrets.token_hex(16))
    async with client.Admin(nameserver, credentials=nobody) as admin:
        try:
            await admin.groups()
        except AccessDenied:
            return False
        except PocketMQError:
            return True
    return True
