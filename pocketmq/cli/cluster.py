"""``pocketmq cluster`` and ``producer``."""

from __future__ import annotations

import click

import client
from pocketmq.cli.running import (
    Call,
    call_options,
    gather_limited,
    watch_option,
)
from pocketmq.formats import iso_of_ms
from remoting.protocol.codes import name_of
from remoting.protocol.command import natural


@click.group(epilog="Example: pocketmq cluster list")
def cluster() -> None:
    """Show brokers and their clusters."""


@cluster.command(name="list", epilog="Example: pocketmq cluster list --json")
@call_options
def list_(call: Call) -> None:
    """List the brokers that are registered."""
    rows = [_row(broker) for broker in call.ask(lambda admin: admin.brokers())]
    call.show_rows(rows, ["cluster", "broker", "id", "address"])


@cluster.command(epilog="Example: pocketmq cluster status --watch 2")
@watch_option
@call_options
def status(watch: float | None, call: Call) -> None:
    """Show the state of every broker; exit code 1 if one doesn't answer."""

    async def ask(admin: client.Admin) -> list[dict[str, object]]:
        async def one(broker: client.BrokerInfo) -> dict[str, object]:
            return _row(broker) | await _stats(admin, broker)

        return await gather_limited(await admin.brokers(), one)

    rates = {"in_per_s": "messages_in", "out_per_s": "messages_out"}
    columns = ["cluster", "broker", "id", "address", "version", "up_since"]
    columns += ["messages_in", "messages_out", *(rates if watch is not None else ())]
    columns += ["disk", "problem"]
    spare = ["id", "version", "cluster", "up_since"]
    problems = False

    def show(rows: list[dict[str, object]]) -> None:
        nonlocal problems
        call.show_rows(rows, columns, spare=spare)
        problems = any(row["problem"] is not None for row in rows)

    call.observe(ask, show, watch=watch, key=("broker", "id"), rates=rates)
    if problems:
        raise SystemExit(1)


async def _stats(admin: client.Admin, broker: client.BrokerInfo) -> dict[str, object]:
    try:
        table = await admin.broker_runtime(broker.address)
    except client.PocketMQError as problem:
        return {"problem": str(problem)}
    return {
        "version": table.get("brokerVersionDesc"),
        "up_since": iso_of_ms(natural(table.get("bootTimestamp", ""), 0)),
        "messages_in": natural(table.get("msgPutTotalTodayNow", ""), 0),
        "messages_out": natural(table.get("msgGetTotalTodayNow", ""), 0),
        "disk": _ratio(table.get("commitLogDiskRatio")),
        "problem": None,
    }


def _row(broker: client.BrokerInfo) -> dict[str, object]:
    return {
        "cluster": broker.cluster,
        "broker": broker.name,
        "id": broker.id,
        "address": broker.address,
    }


def _ratio(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


@click.group(epilog="Example: pocketmq producer list")
def producer() -> None:
    """Show the producers that are connected."""


@producer.command(name="list", epilog="Example: pocketmq producer list --json")
@click.option("--group", help="Only this producer group.")
@call_options
def list_producers(group: str | None, call: Call) -> None:
    """List the producers of each group, as brokers know them from their heartbeats."""
    groups = call.ask(lambda admin: admin.producers())
    rows = [
        {
            "group": name,
            "client_id": one.client_id,
            "address": one.remote_ip.removeprefix("/"),
            "language": one.language,
            "version": name_of(one.version),
            "last_heartbeat": iso_of_ms(one.last_update_timestamp),
        }
        for name, producers in groups.items()
        if group in {None, name}
        for one in producers
    ]
    columns = ["group", "client_id", "address", "language", "version", "last_heartbeat"]
    spare = ["version", "last_heartbeat", "language"]
    call.show_rows(rows, columns, spare=spare)
