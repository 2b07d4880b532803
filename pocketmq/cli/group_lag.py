"""``pocketmq group lag``, and the lag of a group in one topic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

import client
from pocketmq import output
from pocketmq.cli.completion import group_names, topic_names
from pocketmq.cli.running import Call, call_options, watch_option
from pocketmq.formats import iso
from remoting.runtime.tasks import gather_limited


@click.command(epilog="Example: pocketmq group lag billing --json")
@click.argument("name", metavar="[GROUP]", required=False, shell_complete=group_names)
@click.option("--topic", shell_complete=topic_names, help="Only this topic.")
@click.option(
    "--all", "internal", is_flag=True, help="Without GROUP: include system and tool groups."
)
@watch_option
@call_options
def lag(
    name: str | None, topic: str | None, internal: bool, watch: float | None, call: Call
) -> None:
    """Show the lag of GROUP in each queue and who reads it; without GROUP, of all groups.

    A queue without an offset counts from 0, as in RocketMQ's consumerProgress. --watch adds the
    messages per second that arrive and that are consumed.
    """

    async def ask(admin: client.Admin) -> list[dict[str, object]]:
        if name is not None:
            found = await admin.lag(name, topic=topic, owners=True)
            if not found.queues:
                await admin.group_config(name)
            return [_lag_row(queue, state) for queue, state in found.queues.items()]
        names = await admin.groups(internal=internal)
        lags = await gather_limited(names, lambda name: admin.lag(name, topic=topic, owners=True))
        return [
            topic_lag_row(lag, topic)
            for lag in lags
            for topic in sorted({queue.topic for queue in lag.queues})
        ]

    rates = {"in_per_s": "next", "out_per_s": "committed"}
    shown = rates if watch is not None else ()

    def show(rows: list[dict[str, object]]) -> None:
        if name is not None:
            _show_lag(rows, name, shown, as_json=call.as_json)
            return
        columns = ["group", "topic", "queues", "lag", *shown, "members", "last_consumed"]
        spare = ["last_consumed", "queues"]
        call.show_rows(rows, columns, spare=spare, colour=lag_colour)

    key = ("group", "topic") if name is None else ("topic", "broker", "queue")
    call.observe(ask, show, watch=watch, key=key, rates=rates)


def _show_lag(
    rows: Sequence[dict[str, object]], name: str, rates: Iterable[str], *, as_json: bool
) -> None:
    total = sum(row["lag"] for row in rows if isinstance(row["lag"], int))
    if as_json:
        output.show_json({"group": name, "lag": total, "queues": rows})
        return
    columns = ["topic", "broker", "queue", "committed", "next", "lag", *rates, "owner"]
    columns.append("last_consumed")
    spare = ["last_consumed", "committed", "next", "owner"]
    output.show_rows(rows, columns, as_json=False, spare=spare, colour=lag_colour)
    if rows:
        click.echo(
            f"{output.count(total, 'message')} behind in {output.count(len(rows), 'queue')}",
            err=True,
        )
    else:
        click.echo(f"{name} has committed nothing yet", err=True)


def topic_lag_row(lag: client.Lag, topic: str) -> dict[str, object]:
    """Return the lag of a group in one topic, in all its queues together."""
    states = [state for queue, state in lag.queues.items() if queue.topic == topic]
    consumed = [state.consumed_at for state in states if state.consumed_at is not None]
    return {
        "group": lag.group,
        "topic": topic,
        "queues": len(states),
        "committed": sum(state.committed for state in states),
        "next": sum(state.end for state in states),
        "lag": sum(state.messages for state in states),
        "members": len({state.owner for state in states} - {None}),
        "last_consumed": iso(max(consumed, default=None)),
    }


def _lag_row(queue: client.MessageQueue, state: client.QueueLag) -> dict[str, object]:
    return {
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "committed": state.committed,
        "next": state.end,
        "lag": state.messages,
        "owner": state.owner,
        "last_consumed": iso(state.consumed_at),
    }


def lag_colour(row: output.Row) -> str:
    """Return red for unread messages without a consumer, yellow with one."""
    if not row["lag"]:
        return ""
    return "yellow" if row.get("owner") or row.get("members") else "red"
