"""A member of the demo's consumer group: a separate process, so that it can be killed.

    python -m examples.demo.member '{"nameserver": ..., ...}'

It writes each handled flight to the journal and events to stdout, one JSON object per line. It
leaves the group when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

import client
from examples.demo.journal import JournalWriter
from remoting.runtime import tasks as loop

MAX_RETRIES: Final = 2
SUSPEND: Final = 0.5
"""Seconds a queue is suspended after the first failure of a message; doubled after the second."""

HANDOVER: Final = 2.0
"""Seconds until the queues of a killed member are taken over."""

COMMIT_PERIOD: Final = 0.5
"""Seconds between commits: short, so that the displayed lag is up to date."""


class MemberSettings(msgspec.Struct, frozen=True):
    """The settings of a member.

    Attributes:
        nameserver: the name server, ``host:port``.
        group: the consumer group.
        topic: the topic.
        journal: the path of the journal.
        orderly: whether to consume each queue in order.
        cancelled: the row of the flight for which the handler fails; empty for none.
    """

    nameserver: str
    group: str
    topic: str
    journal: str
    orderly: bool = False
    cancelled: str = ""


class MemberEvent(msgspec.Struct, frozen=True):
    """An event of a member.

    Attributes:
        what: ``gained`` or ``lost`` a queue, ``idle`` without queues, or ``dead`` for a message
            that became a dead letter.
        queue: the queue id, or -1.
        text: details for the display.
    """

    what: str
    queue: int = -1
    text: str = ""


class FlightCancelled(Exception):
    """The demo's handler fails for one flight."""


async def serve(settings: MemberSettings) -> None:
    """Consume as a member of the group until standard input is closed."""
    writer, cancelled = JournalWriter(Path(settings.journal)), settings.cancelled.encode()

    async def handle(message: client.ReceivedMessage[bytes]) -> None:
        line = message.body
        if line == cancelled:
            raise FlightCancelled
        writer.write(message.queue.queue_id, message.offset, line)

    consumer = client.PushConsumer(
        settings.nameserver,
        group=settings.group,
        subscribe={settings.topic: "*"},
        handler=handle,
        order=client.Orderly(max_retries=MAX_RETRIES, suspend=SUSPEND)
        if settings.orderly
        else None,
        start_from=client.FIRST,
        on_event=lambda event: _write_event(event, settings.topic),
        handover_timeout=HANDOVER,
        commit_period=COMMIT_PERIOD,
    )
    async with consumer:
        running = asyncio.get_running_loop()
        ended = asyncio.Event()
        running.add_reader(sys.stdin.fileno(), _at_end_of_stdin, ended)
        serving = asyncio.create_task(consumer.run())
        ending = asyncio.create_task(ended.wait())
        await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        await consumer.stop()
        await serving


def _at_end_of_stdin(ended: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        ended.set()


def _write_event(event: client.Event, topic: str) -> None:
    written = _event_of(event, topic)
    if written is not None:
        sys.stdout.buffer.write(msgspec.json.encode(written) + b"\n")
        sys.stdout.buffer.flush()


def _event_of(event: client.Event, topic: str) -> MemberEvent | None:
    match event:
        case client.QueueGained(queue=queue) if queue.topic == topic:
            return MemberEvent("gained", queue.queue_id)
        case client.QueueLost(queue=queue) if queue.topic == topic:
            return MemberEvent("lost", queue.queue_id)
        case client.NoQueues(members=members, queues=queues, docs=docs):
            return MemberEvent(
                "idle", text=f"{members} members but only {queues} queues: see {docs}"
            )
        case client.MessageDeadLettered(queue=queue, offset=offset):
            return MemberEvent("dead", queue.queue_id, f"the flight at offset {offset}")
    return None


if __name__ == "__main__":
    loop.run(serve(msgspec.json.decode(sys.argv[1], type=MemberSettings)))
