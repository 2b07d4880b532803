"""``pocketmq send``."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Final

import click

import client
from client.limits import MAX_DELAY_LEVEL
from pocketmq import output
from pocketmq.cli.completion import topic_names
from pocketmq.cli.running import (
    Call,
    call_options,
    parse_pairs,
    report_dropped,
    run,
    trace_option,
)
from pocketmq.cli.sending import Sending, rate_option, standard_input
from pocketmq.formats import FORMATS, Fields, InputEntry, entries
from remoting.runtime.tasks import stop_signal

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}

GROUP: Final = "pocketmq-send"
"""The producer group unless ``--group`` is given."""

ENDS: Final = {
    "commit": (client.TransactionState.COMMIT, "committed"),
    "rollback": (client.TransactionState.ROLLBACK, "rolled back"),
    "leave": (client.TransactionState.UNKNOWN, "left open"),
}
"""What ``--transaction`` does with each message, and its participle."""


def _parse_delay(_: click.Context, __: click.Parameter, text: str | None) -> int | timedelta | None:
    """Parse a delay level, or a delay such as ``90s``."""
    if text is None:
        return None
    if text.isascii() and text.isdigit() and 0 < (level := int(text)) <= MAX_DELAY_LEVEL:
        return level
    if delay := re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd])", text):
        return timedelta(seconds=float(delay[1]) * _UNITS[delay[2]])
    raise click.BadParameter(
        f"{text!r} is not a delay such as 90s, 15m, 2h or 1d, and not a delay level: give 1 to"
        f" {MAX_DELAY_LEVEL}; the broker's setting messageDelayLevel says how long each is"
    )


def _parse_time(_: click.Context, __: click.Parameter, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r} is no time such as 2026-01-31T12:00") from None


@click.command(
    epilog="Example: pocketmq send orders --file orders.jsonl --format jsonl --key-field id"
)
@click.argument("topic", shell_complete=topic_names)
@click.argument("text", required=False)
@click.option("--file", "path", type=click.Path(path_type=Path), help="Read this, not stdin.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="A message per line, JSON object or CSV row (with a header); raw: the whole input is one.",
)
@click.option("--body-field", metavar="NAME", help="The field or column that is the body.")
@click.option("--key-field", metavar="NAME", help="The field or column with the keys.")
@click.option("--tag-field", metavar="NAME", help="The field or column with the tag.")
@click.option("--sharding-field", metavar="NAME", help="The field or column with the sharding key.")
@click.option("--tag", help="One word that consumers can filter by.")
@click.option("--key", "keys", multiple=True, help="A word to find the message by.")
@click.option("--sharding-key", help="Messages with the same one keep their order.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    callback=parse_pairs,
    metavar="NAME=VALUE",
    help="A property; may be repeated.",
)
@click.option("--queue", metavar="BROKER/ID", help="Send to this queue only.")
@click.option(
    "--delay",
    callback=_parse_delay,
    metavar="DELAY",
    help="Deliver so much later: 90s, 15m, 2h, 1d; or a delay level: 1 is 1 s, 18 is 2 h.",
)
@click.option(
    "--at",
    callback=_parse_time,
    metavar="TIME",
    help="Deliver at this time (2026-01-31T12:00), in the local zone if it names none.",
)
@click.option(
    "--transaction",
    type=click.Choice(list(ENDS)),
    help="Send each message in a transaction, and end it so; leave: a checker decides.",
)
@click.option(
    "--group", help=f"The producer group; its checkers decide with leave.  [default: {GROUP}]"
)
@rate_option
@trace_option
@call_options
def send(
    topic: str,
    text: str | None,
    path: Path | None,
    form: str,
    body_field: str | None,
    key_field: str | None,
    tag_field: str | None,
    sharding_field: str | None,
    tag: str | None,
    keys: tuple[str, ...],
    sharding_key: str | None,
    properties: dict[str, str],
    queue: str | None,
    delay: int | timedelta | None,
    at: datetime | None,
    transaction: str | None,
    group: str | None,
    trace: bool,
    rate: float | None,
    call: Call,
) -> None:
    """Send TEXT, or the lines of stdin or of a file, to TOPIC.

    Lines are spread over the topic's queues; --queue, a sharding key or a sharding field keeps them
    in order. Ends with exit code 1 when a message was not acknowledged.
    """
    fields = Fields(body_field, key_field, tag_field, sharding_field)
    if fields.named and form not in {"jsonl", "csv"}:
        raise click.UsageError("fields are chosen from --format jsonl or csv")
    if text is not None and (path is not None or form != "text"):
        raise click.UsageError("give either TEXT or a file to read")
    if delay is not None and at is not None:
        raise click.UsageError("give either --delay or --at")
    if transaction is not None and (delay is not None or at is not None):
        raise click.UsageError("a message of a transaction can't be delayed: leave one out")
    only_queue = _queue(topic, queue)

    def message_of(entry: InputEntry) -> client.Message[bytes]:
        return client.Message(
            topic,
            entry.body,
            tag=entry.tag or tag,
            keys=entry.keys or keys,
            properties=properties,
            sharding_key=entry.sharding_key or sharding_key,
            queue=only_queue,
            delay_level=delay if isinstance(delay, int) else 0,
            delay=delay if isinstance(delay, timedelta) else None,
            deliver_at=at,
        )

    with _input(text, path, form, fields) as items:
        messages = map(message_of, items)
        command = SendCommand(
            topic,
            group or GROUP,
            transaction,
            rate,
            trace=trace,
            one=text is not None,
            as_json=call.as_json,
        )
        complete = run(_send(call.nameserver, messages, command))
    sys.exit(0 if complete else 1)


def _queue(topic: str, text: str | None) -> client.MessageQueue | None:
    if text is None:
        return None
    broker, _, number = text.rpartition("/")
    if not broker or not number.isdecimal():
        raise click.UsageError(f"--queue {text!r} is not BROKER/ID, such as broker-a/0")
    return client.MessageQueue(topic, broker, int(number))


@contextlib.contextmanager
def _input(
    text: str | None, path: Path | None, form: str, fields: Fields
) -> Iterator[Iterator[InputEntry]]:
    if text is not None:
        yield iter([InputEntry(text.encode("utf-8", "surrogateescape"))])
        return
    if path is None or str(path) == "-":
        yield entries(standard_input(), form, fields)
        return
    try:
        stream: IO[bytes] = path.open("rb")
    except OSError as problem:
        raise click.ClickException(f"{path}: {problem.strerror}") from problem
    with stream:
        yield entries(stream, form, fields)


@dataclass(frozen=True, slots=True)
class SendCommand:
    """How to send, and how to report it.

    Attributes:
        transaction: a key of ``ENDS``; None: without a transaction.
        rate: messages per second; None: as fast as possible.
        one: the message is TEXT.
    """

    topic: str
    group: str
    transaction: str | None
    rate: float | None
    trace: bool
    one: bool
    as_json: bool


async def _send(
    nameserver: str, messages: Iterator[client.Message[bytes]], command: SendCommand
) -> bool:
    """Send all messages; return whether all were acknowledged and the input was read to its end."""
    stop = stop_signal()
    # The broker may ask about what was left open while further messages are sent.
    checker = None if command.transaction is None else lambda _: client.TransactionState.UNKNOWN
    traces = [client.MessageTrace()] if command.trace else []
    async with client.Producer(
        nameserver, group=command.group, transaction_checker=checker, interceptors=traces
    ) as producer:
        with output.progress(f"sending to {command.topic}", None, shown=not command.one) as advance:
            end = None if command.transaction is None else ENDS[command.transaction][0]
            sending = Sending(producer, advance, end=end)
            problem = await sending.send_all(enumerate(messages), stop, command.rate)
    _report(sending, command)
    report_dropped(traces)
    if problem is not None:
        raise problem
    return sending.failed == 0 and not stop.is_set()


def _report(sending: Sending, command: SendCommand) -> None:
    facts: dict[str, object] = {"topic": command.topic}
    verb = "sent"
    if command.transaction is not None:
        verb = ENDS[command.transaction][1]
        facts["transaction"] = command.transaction
    text = f"{verb} {sending.summary(command.topic)}"
    if (last := sending.last) is not None and sending.sent == 1:
        facts |= {"queue": str(last.queue), "id": last.id}
        text = f"{verb} to {last.queue}, id {last.id}"
        if command.transaction is None:
            # That of a half message is not the offset at which consumers get it.
            facts["offset"] = last.offset
            text = f"sent to {last.queue} at offset {last.offset}, id {last.id}"
        if last.recall_handle is not None:
            facts["recall_handle"] = last.recall_handle
    sending.report(text, facts, as_json=command.as_json)
