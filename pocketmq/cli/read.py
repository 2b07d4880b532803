"""``pocketmq read``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import click

import client
from client.positions import Position
from pocketmq import output
from pocketmq.cli.completion import group_names, topic_names
from pocketmq.cli.running import (
    PLACE,
    PLACE_HELP,
    Call,
    call_options,
    choose_queues,
    end_on_broken_pipe,
    filter_options,
    queues_option,
    run,
    wanted_messages,
)
from pocketmq.formats import FORMATS, Writer, writer
from remoting.runtime.tasks import stop_signal

DEFAULT_GROUP: Final = "pocketmq-read"
"""The consumer group unless ``--group`` is given; it never commits."""

PORTION: Final = 1000
"""Most messages taken and written at a time."""

POLL_SECONDS: Final = 0.1
"""Seconds between checks for the end and for signals while no message arrives."""

Start = Position | None
"""None: the group's committed offset, else the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSelection:
    """The options of ``read``."""

    topic: str
    group: str | None
    start: Start
    limit: int | None
    follow: bool
    wanted: str | client.Sql
    queues: tuple[str, ...]
    commit: bool
    bar: bool


@click.command(epilog="Example: pocketmq read orders --from -1h --tags 'paid || refunded' --follow")
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "--from",
    "start",
    type=PLACE,
    help=PLACE_HELP + "  [default: where the group is, else begin]",
)
@click.option("--max", "limit", type=click.IntRange(1), help="At most this many messages.")
@click.option("--follow", "-f", is_flag=True, help="Wait for new messages at the end.")
@filter_options
@queues_option
@click.option(
    "--group", shell_complete=group_names, help="The consumer group whose offsets are used."
)
@click.option(
    "--commit", is_flag=True, help="Commit the offsets of the messages written, for the group."
)
@click.option("--format", "form", type=click.Choice(FORMATS), help="[default: text]")
@click.option("--file", "path", type=click.Path(path_type=Path), help="Write here, not to stdout.")
@call_options
def read(
    tags: str, sql: str | None, form: str | None, path: Path | None, call: Call, **options: Any
) -> None:
    """Write the messages of TOPIC, up to its current end.

    Messages of one queue are in order; queues are interleaved. --json is --format jsonl.
    """
    if options["commit"] and options["group"] is None:
        raise click.UsageError("--commit needs --group: whose offsets are to be committed?")
    selection = ReadSelection(**options, wanted=wanted_messages(tags, sql), bar=path is not None)
    write_messages(call, form, path, lambda write: _read(call.nameserver, selection, write))


def write_messages(
    call: Call,
    form: str | None,
    path: Path | None,
    write_all: Callable[[Writer], Coroutine[Any, Any, int]],
) -> None:
    """Write messages to a file or stdout, and report how many.

    Args:
        form: of ``FORMATS``; None: text, or JSON lines with ``--json``.
        write_all: writes them and returns their number.
    """
    if call.as_json and form not in {None, "jsonl"}:
        raise click.UsageError("--json is --format jsonl: give only one of them")
    with end_on_broken_pipe(), _output_stream(path) as stream:
        written = run(write_all(writer("jsonl" if call.as_json else form or "text", stream)))
    if sys.stderr.isatty() or path is not None:
        click.echo(output.count(written, "message"), err=True)


@contextmanager
def _output_stream(path: Path | None) -> Iterator[IO[bytes]]:
    """Yield the file to write to; None or ``-``: stdout."""
    if path is None or str(path) == "-":
        yield sys.stdout.buffer
        return
    try:
        with path.open("wb") as stream:
            yield stream
    except BrokenPipeError:
        raise
    except OSError as problem:
        # After a failed write the close fails as well: it writes what is left.
        raise click.ClickException(f"{path}: {problem.strerror}") from problem


async def _read(nameserver: str, selection: ReadSelection, write: Writer) -> int:
    stop = stop_signal()
    async with client.Instance(nameserver) as instance:
        consumer = instance.pull_consumer(
            group=selection.group or DEFAULT_GROUP, on_event=report_waiting
        )
        queues = choose_queues(
            await consumer.queues(selection.topic), selection.queues, selection.topic
        )
        ends = None if selection.follow else await ends_of(instance.admin(), queues)
        consumer.assign(queues, tags=selection.wanted)
        start = (
            client.BEGIN if selection.group is None and selection.start is None else selection.start
        )
        if start is not None:
            await asyncio.gather(*(consumer.seek(queue, start) for queue in queues))
        return await _write_all(consumer, selection, ends, write, stop)


def report_waiting(event: client.Event) -> None:
    """Report on stderr why no message arrives; the consumer keeps trying."""
    if isinstance(event, client.QueueWaiting):
        click.echo(f"waiting: {event.error}", err=True)


async def ends_of(
    admin: client.Admin, queues: Sequence[client.MessageQueue]
) -> dict[client.MessageQueue, int]:
    """Return the current end of each queue."""
    ends = await asyncio.gather(*(admin.max_offset(queue) for queue in queues))
    return dict(zip(queues, ends, strict=True))


async def has_read(
    consumer: client.PullConsumer[bytes], ends: Mapping[client.MessageQueue, int]
) -> bool:
    """Return whether the consumer has reached these offsets in all queues."""
    for queue, end in ends.items():
        if await consumer.position(queue) < end:
            return False
    return True


async def _write_all(
    consumer: client.PullConsumer[bytes],
    selection: ReadSelection,
    ends: Mapping[client.MessageQueue, int] | None,
    write: Writer,
    stop: asyncio.Event,
) -> int:
    """Write messages up to the ends, the limit, or a signal; return how many were written."""
    count, limit = 0, selection.limit
    # No progress bar if the messages go to the same terminal.
    shown = selection.bar and not selection.follow and limit != 1
    with output.progress(f"reading {selection.topic}", limit, shown=shown) as advance:
        while not stop.is_set() and (limit is None or count < limit):
            if ends is not None and await has_read(consumer, ends):
                break
            room = PORTION if limit is None else min(PORTION, limit - count)
            messages = await consumer.get_many(room, timeout=POLL_SECONDS)
            fresh = [m for m in messages if ends is None or m.offset < ends[m.queue]]
            if fresh:
                # In a thread: a pipe that nobody reads must not keep signals from being handled.
                await asyncio.to_thread(write, fresh)
                count += len(fresh)
                advance(len(fresh))
                if selection.commit:
                    await consumer.commit({m.queue: m.offset + 1 for m in fresh})
    return count
