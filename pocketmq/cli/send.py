"""``pocketmq send``."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import click

import client
from client.limits import MAX_DELAY_LEVEL
from pocketmq import output
from pocketmq.background import BackgroundReader
from pocketmq.cli.completion import topic_names
from pocketmq.cli.running import json_option, nameserver_option, run
from pocketmq.formats import FORMATS, Fields, InputEntry, SourceError, entries
from remoting.tasks import stop_signal

WINDOW: Final = 10_000
"""Messages sent and not yet acknowledged: enough for any network, little memory."""

ERRORS_SHOWN: Final = 5
"""Errors that are printed; further ones are only counted."""

PACE_STEP: Final = 0.02
"""Seconds: ``--rate`` lets messages get ahead of schedule by up to this time, and then waits."""

TRANSACTIONS_AT_ONCE: Final = 100
"""Transactions under way: each is two requests of its own, which hide each other's latency."""

GROUP: Final = "pocketmq-send"
"""The producer group unless ``--group`` is given."""

ENDS: Final = {
    "commit": (client.TransactionState.COMMIT, "committed"),
    "rollback": (client.TransactionState.ROLLBACK, "rolled back"),
    "leave": (client.TransactionState.UNKNOWN, "left open"),
}
"""What ``--transaction`` does with each message, and its participle."""


def _split_property(
    _: click.Context, __: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    table: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        table[name] = value
    return table


def _delay_level(_: click.Context, __: click.Parameter, text: str | None) -> int:
    if text is None:
        return 0
    if text.isdecimal() and 0 < (level := int(text)) <= MAX_DELAY_LEVEL:
        return level
    raise click.BadParameter(
        f"{text!r} is not a delay level: give 1 to {MAX_DELAY_LEVEL}; the broker's setting"
        " messageDelayLevel says how long each is"
    )


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
    callback=_split_property,
    metavar="NAME=VALUE",
    help="A property; may be repeated.",
)
@click.option("--queue", metavar="BROKER/ID", help="Send to this queue only.")
@click.option(
    "--delay",
    callback=_delay_level,
    metavar="LEVEL",
    help="Deliver later, by a delay level of the broker: 1 is 1 s, 5 is 1 min, 18 is 2 h.",
)
@click.option(
    "--transaction",
    type=click.Choice(list(ENDS)),
    help="Send each message in a transaction, and end it so; leave: a checker decides.",
)
@click.option(
    "--group", help=f"The producer group; its checkers decide with leave.  [default: {GROUP}]"
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages per second.")
@nameserver_option
@json_option
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
    delay: int,
    transaction: str | None,
    group: str | None,
    rate: float | None,
    nameserver: str,
    as_json: bool,
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
    if delay and transaction is not None:
        raise click.UsageError("a message of a transaction can't be delayed")
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
            delay_level=delay,
        )

    with _input(text, path, form, fields) as items:
        messages = map(message_of, items)
        one = text is not None
        wanted = SendCommand(topic, group or GROUP, transaction, rate, one=one, as_json=as_json)
        complete = run(_send(nameserver, messages, wanted))
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
        yield entries(_stdin(), form, fields)
        return
    try:
        stream: IO[bytes] = path.open("rb")
    except OSError as problem:
        raise click.ClickException(f"{path}: {problem.strerror}") from problem
    with stream:
        yield entries(stream, form, fields)


def _stdin() -> IO[bytes]:
    """Return standard input as a separate file object.

    The interpreter closes ``sys.stdin`` at exit, and crashes if a thread is reading from it.
    """
    try:
        descriptor = sys.stdin.fileno()
    except OSError:
        return sys.stdin.buffer
    return open(descriptor, "rb", closefd=False)


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
    one: bool
    as_json: bool


async def _send(
    nameserver: str, messages: Iterator[client.Message[bytes]], wanted: SendCommand
) -> bool:
    """Send all messages; return whether all were acknowledged and the input was read to its end."""
    stop = stop_signal()
    started = time.monotonic()
    problem: SourceError | None = None
    # The broker may ask about what was left open while further messages are sent.
    checker = None if wanted.transaction is None else lambda _: client.TransactionState.UNKNOWN
    async with client.Producer(
        nameserver, group=wanted.group, transaction_checker=checker
    ) as producer:
        with output.progress(f"sending to {wanted.topic}", None, shown=not wanted.one) as bar:
            sending = _Sending(producer, bar, wanted.transaction)
            try:
                await sending.send_all(BackgroundReader(messages), stop, wanted.rate)
            except SourceError as error:
                problem = error
            await sending.wait_for_room(1)
    _report(sending, time.monotonic() - started, wanted)
    if problem is not None:
        raise problem
    return sending.failed == 0 and not stop.is_set()


class _Sending:
    """Sends the messages of the reader, with a bounded number in flight.

    Attributes:
        sent, failed, size: acknowledged messages, failed messages, and bytes of the acknowledged.
        errors: the first errors.
        last: receipt of the last acknowledged message.
    """

    def __init__(
        self, producer: client.Producer[bytes], bar: output.Progress, transaction: str | None
    ) -> None:
        self._producer = producer
        self._bar = bar
        self._end = None if transaction is None else ENDS[transaction][0]
        self._window = WINDOW if transaction is None else TRANSACTIONS_AT_ONCE
        self._transactions: set[asyncio.Task[client.Receipt]] = set()
        self._in_flight = 0
        self._moved = asyncio.Event()
        self.sent = self.failed = self.size = 0
        self.errors: list[str] = []
        self.last: client.Receipt | None = None

    async def send_all(
        self,
        reader: BackgroundReader[client.Message[bytes]],
        stop: asyncio.Event,
        rate: float | None,
    ) -> None:
        """Send until the input ends or a stop signal arrives."""
        pace = _Pace(rate, stop)
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                taking = asyncio.ensure_future(reader.take())
                await asyncio.wait([taking, stopped], return_when=asyncio.FIRST_COMPLETED)
                if not taking.done():
                    taking.cancel()
                    return
                if not (items := taking.result()):
                    return
                for item in items:
                    await pace.wait()
                    if stop.is_set():
                        return
                    await self._send(item)
        finally:
            stopped.cancel()

    async def _send(self, message: client.Message[bytes]) -> None:
        await self.wait_for_room(self._window)
        while True:
            try:
                future = self._start(message)
            except client.BufferFull:
                await self.wait_for_room(self._in_flight)
                continue
            except client.UsageError as error:
                self._count_failure(error)
                return
            break
        self._in_flight += 1
        size = len(message.body)
        future.add_done_callback(lambda done: self._acknowledged(done, size))

    def _start(self, message: client.Message[bytes]) -> asyncio.Future[client.Receipt]:
        if self._end is None:
            return self._producer.send_nowait(message)
        task = asyncio.create_task(self._transact(message, self._end))
        self._transactions.add(task)
        task.add_done_callback(self._transactions.discard)
        return task

    async def _transact(
        self, message: client.Message[bytes], end: client.TransactionState
    ) -> client.Receipt:
        transaction = self._producer.transaction(message)
        await transaction.start()
        assert transaction.receipt is not None
        if end is client.TransactionState.UNKNOWN:
            await transaction.defer()
        elif not await (
            transaction.commit()
            if end is client.TransactionState.COMMIT
            else transaction.rollback()
        ):
            raise client.PocketMQError(
                "the half message is stored, but the broker has not confirmed its end",
                topic=message.topic,
                hint="the broker asks the group's checkers later",
            )
        return transaction.receipt

    async def wait_for_room(self, limit: int) -> None:
        """Wait until fewer than ``limit`` messages are in flight."""
        while self._in_flight >= max(limit, 1):
            self._moved.clear()
            await self._moved.wait()

    def _acknowledged(self, future: asyncio.Future[client.Receipt], size: int) -> None:
        self._in_flight -= 1
        self._moved.set()
        error = None if future.cancelled() else future.exception()
        if error is not None or future.cancelled():
            self._count_failure(error)
            return
        self.sent += 1
        self.size += size
        self.last = future.result()
        self._bar.advance(1)

    def _count_failure(self, error: BaseException | None) -> None:
        self.failed += 1
        if len(self.errors) < ERRORS_SHOWN:
            self.errors.append(str(error or "cancelled"))


class _Pace:
    """Limits the rate of messages; a stop signal ends the wait."""

    def __init__(self, rate: float | None, stop: asyncio.Event) -> None:
        self._rate = rate
        self._stop = stop
        self._count = 0
        self._started = time.monotonic()

    async def wait(self) -> None:
        """Wait until the next message is due."""
        if self._rate is None:
            return
        ahead = self._count / self._rate - (time.monotonic() - self._started)
        self._count += 1
        if ahead > 0 and (ahead >= PACE_STEP or self._rate < 1 / PACE_STEP):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), ahead)


def _report(tally: _Sending, seconds: float, wanted: SendCommand) -> None:
    for text in tally.errors:
        click.echo(f"not sent: {text}", err=True)
    facts: dict[str, object] = {
        "topic": wanted.topic,
        "sent": tally.sent,
        "failed": tally.failed,
        "bytes": tally.size,
        "seconds": round(seconds, 3),
    }
    verb = "sent"
    if wanted.transaction is not None:
        verb = ENDS[wanted.transaction][1]
        facts["transaction"] = wanted.transaction
    if tally.last is not None and tally.sent == 1:
        facts |= {"queue": str(tally.last.queue), "id": tally.last.id}
        text = f"{verb} to {tally.last.queue}, id {tally.last.id}"
        if wanted.transaction is None:
            # That of a half message is not the offset at which consumers get it.
            facts["offset"] = tally.last.offset
            text = f"sent to {tally.last.queue} at offset {tally.last.offset}, id {tally.last.id}"
    else:
        text = (
            f"{verb} {output.count(tally.sent, 'message')}, {output.count(tally.size, 'byte')},"
            f" to {wanted.topic} in {seconds:.2f} s"
        )
    if tally.failed:
        text += f"; {tally.failed} not acknowledged"
    output.done(text, facts, as_json=wanted.as_json)
