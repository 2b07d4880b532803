"""``pocketmq health``."""

from __future__ import annotations

import os
import sys
import time

import click

from pocketmq import output
from pocketmq.cli.running import DEFAULT_NAMESERVER, credentials_option, json_option, tls_options
from pocketmq.server.probe import TIMEOUT, NoAnswer, addresses, ask
from remoting.protocol.bodies.route import ClusterInfo
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.codes import RequestCode


@click.command(epilog="Example: pocketmq health --broker 127.0.0.1:10911")
@click.option(
    "--nameserver",
    metavar="HOST:PORT[;…]",
    help="A name server.  [default: NAMESRV_ADDR or 127.0.0.1:9876, if no broker is given]",
)
@click.option("--broker", metavar="HOST:PORT", help="A broker.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.01),
    default=TIMEOUT,
    show_default=True,
    help="Seconds.",
)
@credentials_option
@tls_options
@json_option
def health(nameserver: str | None, broker: str | None, timeout: float, as_json: bool) -> None:
    """Check whether servers answer; exit code 0 if all do, else 1."""
    if nameserver is None and broker is None:
        nameserver = os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESERVER
    for option, text in (("--nameserver", nameserver), ("--broker", broker)):
        if text is not None and not addresses(text):
            raise click.UsageError(f"{option} names no server: give HOST:PORT")
    started = time.perf_counter()
    try:
        servers = _found(addresses(nameserver or ""), addresses(broker or ""), timeout)
    except NoAnswer as problem:
        why = f"{problem}; {problem.hint}" if problem.hint else str(problem)
        output.done(f"failed: {why}", {"healthy": False, "why": why}, as_json=as_json)
        sys.exit(1)
    took_ms = (time.perf_counter() - started) * 1000
    output.done(
        f"ok: {', '.join(servers)} in {took_ms:.1f} ms",
        {"healthy": True, "servers": servers, "ms": round(took_ms, 3)},
        as_json=as_json,
    )


def _found(name_servers: list[str], brokers: list[str], timeout: float) -> list[str]:
    """Return descriptions of the servers that answer.

    Raises NoAnswer for the first that doesn't.
    """
    servers = []
    for address in name_servers:
        info = ask(address, RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo, timeout=timeout)
        servers.append(
            f"name server {address} with {output.count(len(info.broker_addr_table), 'broker')}"
        )
    for address in brokers:
        ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable, timeout=timeout)
        servers.append(f"broker {address}")
    return servers
