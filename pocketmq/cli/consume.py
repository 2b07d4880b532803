"""``pocketmq consume``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import click

import client
from client.positions import Position
from pocketmq.cli.completion import group_names, topic_names
from pocketmq.cli.read import report_waiting, write_messages
from pocketmq.cli.running import (
    PLACE,
    PLACE_HELP,
    Call,
    call_options,
    filter_options,
    report_dropped,
    trace_option,
    wanted_messages,
)
from pocketmq.formats import FORMATS, Writer
from remoting.runtime.tasks import stop_signal


@click.command(epilog="Example: pocketmq consume orders --group billing --max 10")
@click.argument("topic", shell_complete=topic_names)
@click.option("--group", required=True, shell_complete=group_names, help="The group to join.")
@click.option(
    "--from",
    "start",
    type=PLACE,
    default="end",
    show_default=True,
    help="Where a group starts that has no offset: " + PLACE_HELP,
)
@click.option("--max", "limit", type=click.IntRange(1), help="Stop after this many messages.")
@filter_options
@click.option(
    "--orderly", is_flag=True, help="Lock the queues, as members do that consume in order."
)
@click.option("--format", "form", type=click.Choice(FORMATS), help="[default: text]")
@click.option("--file", "path", type=click.Path(path_type=Path), help="Write here, not to stdout.")
@trace_option
@call_options
def consume(
    topic: str,
    group: str,
    start: Position,
    limit: int | None,
    tags: str,
    sql: str | None,
    orderly: bool,
    form: str | None,
    path: Path | None,
    trace: bool,
    call: Call,
) -> None:
    """Write messages of TOPIC as a member of a group, until Ctrl-C.

    The queues are shared with the group's other members, which must have the same tags. A message
    counts as consumed once it is written; one that can't be written is delivered again. --json is
    --format jsonl.
    """
    messages = wanted_messages(tags, sql)
    traces = [client.MessageTrace()] if trace else []

    def make() -> client.PushConsumer[bytes]:
        return client.PushConsumer(
            call.nameserver,
            group=group,
            subscribe={topic: messages},
            start_from=start,
            order=client.Orderly() if orderly else None,
            on_event=report_waiting,
            interceptors=traces,
        )

    write_messages(call, form, path, lambda write: _consume(make, write, limit))
    report_dropped(traces)


async def _consume(
    make: Callable[[], client.PushConsumer[bytes]], write: Writer, limit: int | None
) -> int:
    """Write and acknowledge messages up to the limit or a signal; return how many."""
    stop = stop_signal()
    count = 0
    async with make() as consumer:

        async def stop_on_signal() -> None:
            await stop.wait()
            await consumer.stop()

        stopping = asyncio.create_task(stop_on_signal())
        try:
            async for message in consumer:
                try:
                    # In a thread: a pipe may be full for long, and the heartbeats must go on.
                    await asyncio.to_thread(write, [message])
                except BaseException:
                    message.retry_later()
                    raise
                message.ack()
                count += 1
                if count == limit:
                    break
        finally:
            stop.set()
            await stopping
    return count
