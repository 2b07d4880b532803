"""``pocketmq message trace``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

import click

import client
from pocketmq import output
from pocketmq.cli.running import Call, call_options
from pocketmq.formats import iso_of_ms
from remoting.protocol.message.properties import keys_of
from remoting.protocol.message.trace import ConsumeResult, TracedMessageType
from remoting.protocol.names import TRACE_TOPIC

COLUMNS: Final = (
    "step",
    "at",
    "after_ms",
    "took_ms",
    "result",
    "group",
    "client",
    "retries",
    "place",
)

_ASKED: Final = "asked by the broker"
_GOOD: Final = {"ok", _ASKED}
_STATES: Final = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled back"}
_RESULTS: Final[dict[int, str]] = {
    ConsumeResult.TIME_OUT: "timed out",
    ConsumeResult.EXCEPTION: "raised an exception",
    ConsumeResult.RETURN_NULL: "returned null",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """One thing that happened to a message.

    Attributes:
        step: ``sent``, ``half sent``, ``stored``, ``committed``, ``rolled back``, ``undecided``,
            ``consumed`` or ``recalled``.
        at_ms: when it began, by the clock of the client or, for ``stored``, of the broker.
        took_ms: how long; None: not known, or no time.
        result: ``ok``, or what went wrong; None: not known yet.
        place: the broker, and what is known of the message's place there.
    """

    step: str
    at_ms: int
    took_ms: int | None = None
    result: str | None = "ok"
    group: str | None = None
    client: str | None = None
    retries: int | None = None
    place: str | None = None
    topic: str | None = None
    tag: str | None = None
    keys: tuple[str, ...] = ()


@click.command(epilog="Example: pocketmq message trace 7F0000010AF818B4AAC2000000000001")
@click.argument("message_id", metavar="ID")
@click.option("--topic", default=TRACE_TOPIC, show_default=True, help="The trace topic.")
@call_options
def trace(message_id: str, topic: str, call: Call) -> None:
    """Show what became of the message with an ID: sent, stored, and consumed by which groups.

    The ID is the one its producer assigned. Producers and consumers write what they do if they have
    client.MessageTrace, or in Java enableMsgTrace. Times are by each machine's clock.
    """

    async def ask(admin: client.Admin) -> list[TraceStep]:
        records = await admin.trace(message_id, topic=topic)
        stored: list[client.ReceivedMessage[bytes]] = []
        for record in records:
            if record.kind == "Pub":
                # It may be deleted by age, or its broker gone: the trace is there nevertheless.
                with suppress(client.PocketMQError):
                    stored.append(await admin.message(record.offset_id))
                # A delayed message, or one of a transaction, is stored again in its topic.
                with suppress(client.PocketMQError):
                    stored += await admin.find_messages(record.topic, message_id)
        return steps(records, {message.offset_id: message for message in stored}.values())

    found = call.ask(ask)
    if call.as_json or not sys.stdout.isatty():
        call.show_rows(_rows(found), COLUMNS)
    else:
        _draw(message_id, found)


def steps(
    records: Sequence[client.TraceRecord], stored: Iterable[client.ReceivedMessage[bytes]]
) -> list[TraceStep]:
    """Return what happened to a message, by time.

    Args:
        records: its trace.
        stored: the message, as brokers have it.
    """
    sent: list[TraceStep] = []
    later: list[TraceStep] = []
    calls: dict[tuple[str, str], dict[str, client.TraceRecord]] = {}
    for record in records:
        if record.kind in {"SubBefore", "SubAfter"}:
            call = calls.setdefault((record.request_id, record.client_host), {})
            call[record.kind] = record
        else:
            (sent if record.kind == "Pub" else later).append(_by_producer(record))
    found = sent + [
        TraceStep(
            step="stored",
            at_ms=message.store_timestamp_ms,
            place=f"{message.queue} at offset {message.offset}",
        )
        for message in stored
    ]
    later += [_consumed(call.get("SubBefore"), call.get("SubAfter")) for call in calls.values()]
    # Steps of one millisecond stay in this order.
    return sorted(found + later, key=lambda step: step.at_ms)


def _by_producer(record: client.TraceRecord) -> TraceStep:
    step, took_ms, result = "recalled", None, "ok" if record.success else "failed"
    if record.kind == "Pub":
        half = record.message_type == TracedMessageType.HALF
        step, took_ms = "half sent" if half else "sent", record.cost_ms
        result = "ok" if record.success else "less durable than configured"
    elif record.kind == "EndTransaction":
        step = _STATES.get(record.state, "undecided")
        result = _ASKED if record.from_check else "ok"
    return TraceStep(
        step=step,
        at_ms=record.time_ms,
        took_ms=took_ms,
        result=result,
        group=record.group,
        client=record.client_host,
        place=record.store_host or None,
        topic=record.topic,
        tag=record.tags or None,
        keys=tuple(keys_of(record.keys)),
    )


def _consumed(before: client.TraceRecord | None, after: client.TraceRecord | None) -> TraceStep:
    """Return the call of a handler, of which one of the records may be lost."""
    record = before or after
    assert record is not None
    result = None
    if after is not None:
        result = "ok" if after.success else _RESULTS.get(after.result, "failed")
    return TraceStep(
        step="consumed",
        at_ms=record.time_ms if before else record.time_ms - record.cost_ms,
        took_ms=None if after is None else after.cost_ms,
        result=result,
        group=record.group,
        client=record.client_host,
        retries=None if before is None else before.retries,
    )


def _rows(steps: Sequence[TraceStep]) -> list[output.Row]:
    rows: list[output.Row] = []
    for step in steps:
        row = asdict(step)
        at_ms = row.pop("at_ms")
        rows.append(row | {"at": iso_of_ms(at_ms), "after_ms": at_ms - steps[0].at_ms})
    return rows


def _draw(message_id: str, steps: Sequence[TraceStep]) -> None:
    """Draw a tree: the steps of producers and brokers, then a branch for each group."""
    from rich.console import Console  # noqa: PLC0415 - 40 ms, and only at a terminal
    from rich.text import Text  # noqa: PLC0415 - as above
    from rich.tree import Tree  # noqa: PLC0415 - as above

    about = [message_id]
    if subject := next((step for step in steps if step.topic), None):
        about.append(f"topic {subject.topic}")
        if subject.tag:
            about.append(f"tag {subject.tag}")
        if subject.keys:
            about.append(f"keys {' '.join(subject.keys)}")
    tree = Tree(Text("  ".join(about), style="bold"))
    groups: dict[str | None, Tree] = {}
    for step in steps:
        branch = tree
        if step.step == "consumed":
            branch = groups.get(step.group) or groups.setdefault(
                step.group, tree.add(Text(f"group {step.group}", style="bold"))
            )
        line = Text(_sentence(step, steps[0].at_ms))
        if step.result is None:
            line.append("  not ended", style="yellow")
        else:
            line.append(f"  {step.result}", style="green" if step.result in _GOOD else "red")
        branch.add(line)
    Console().print(tree)


def _sentence(step: TraceStep, first_ms: int) -> str:
    after_ms = step.at_ms - first_ms
    words = f"+{after_ms:,} ms" if after_ms else str(iso_of_ms(first_ms))
    if step.step == "stored":
        return f"{words}  stored in {step.place}"
    if step.step == "consumed":
        words += f"  at {step.client}"
    else:
        words += f"  {step.step} by {step.group} at {step.client}"
    if step.retries:
        words += f", retry {step.retries}"
    if step.took_ms is not None:
        words += f", took {step.took_ms:,} ms"
    return words
