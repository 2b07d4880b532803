"""``pocketmq cluster`` and ``producer``."""

from __future__ import annotations

import click

import client
from client.network.routes import MASTER_ID
from pocketmq.cli.running import Call, call_options, watch_option
from pocketmq.formats import iso_of_ms
from remoting.protocol.codes import name_of
from remoting.protocol.command import natural
from remoting.runtime.tasks import gather_limited


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
    """Show the state of every broker.

    The lag is what a slave lacks of its master's log, and how much older its newest message is.
    In a group with a controller, the epoch is its master's, and in_sync are the controller's ids of
    the replicas that have every acknowledged message.
    The exit code is 1 if a broker doesn't answer, a slave doesn't follow its master, or a group's
    broker has a problem.
    """

    async def ask(admin: client.Admin) -> list[dict[str, object]]:
        brokers = await admin.brokers()
        tables = await gather_limited(brokers, lambda one: _runtime(admin, one))
        pairs = list(zip(brokers, tables, strict=True))
        masters = {one.name: table for one, table in pairs if one.id == MASTER_ID}
        return [
            _row(broker) | _stats(broker, table, masters.get(broker.name))
            for broker, table in pairs
        ]

    rates = {"in_per_s": "messages_in", "out_per_s": "messages_out"}
    columns = ["cluster", "broker", "id", "address", "role", "version", "up_since"]
    columns += ["messages_in", "messages_out", *(rates if watch is not None else ())]
    columns += ["slaves", "epoch", "in_sync", "lag_bytes", "lag_seconds", "disk", "problem"]
    spare = ["id", "version", "cluster", "up_since", "slaves", "epoch", "in_sync"]
    problems = False

    def show(rows: list[dict[str, object]]) -> None:
        nonlocal problems
        call.show_rows(rows, columns, spare=spare)
        problems = any(row["problem"] is not None for row in rows)

    call.observe(ask, show, watch=watch, key=("broker", "id"), rates=rates)
    if problems:
        raise SystemExit(1)


async def _runtime(admin: client.Admin, broker: client.BrokerInfo) -> dict[str, str] | str:
    """Return the runtime table of a broker, or why there is none."""
    try:
        return await admin.broker_runtime(broker.address)
    except client.PocketMQError as problem:
        return str(problem)


def _stats(
    broker: client.BrokerInfo, table: dict[str, str] | str, master: dict[str, str] | str | None
) -> dict[str, object]:
    if isinstance(table, str):
        return {"problem": table}
    is_slave = broker.id != MASTER_ID
    lag = _lag(table, master) if is_slave and isinstance(master, dict) else (None, None)
    return {
        "role": table.get("pocketmqBrokerRole", "SLAVE" if is_slave else "MASTER"),
        "version": table.get("brokerVersionDesc"),
        "up_since": iso_of_ms(natural(table.get("bootTimestamp", ""), 0)),
        "messages_in": natural(table.get("msgPutTotalTodayNow", ""), 0),
        "messages_out": natural(table.get("msgGetTotalTodayNow", ""), 0),
        "slaves": natural(table["pocketmqSlaves"], 0) if "pocketmqSlaves" in table else None,
        "epoch": natural(table["pocketmqEpoch"], 0) if "pocketmqEpoch" in table else None,
        "in_sync": table.get("pocketmqInSync"),
        "lag_bytes": lag[0],
        "lag_seconds": lag[1],
        "disk": _ratio(table.get("commitLogDiskRatio")),
        "problem": table.get("pocketmqGroupProblem") or table.get("pocketmqReplicationProblem"),
    }


def _lag(slave: dict[str, str], master: dict[str, str]) -> tuple[int, float | None]:
    """Return what a slave lacks, in bytes and in seconds between the newest messages.

    The seconds are None if a store is empty or a broker Apache's, which doesn't tell the time.
    """
    own, other = (natural(table.get("commitLogMaxOffset", ""), 0) for table in (slave, master))
    if own >= other:
        return 0, 0.0
    ours, theirs = (
        natural(table.get("pocketmqNewestMessageMs", ""), 0) for table in (slave, master)
    )
    return other - own, max(0, theirs - ours) / 1000 if ours and theirs else None


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
