"""``pocketmq message import``."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

import client
from client.producer.columns import RESERVED
from pocketmq import output
from pocketmq.cli.completion import topic_names
from pocketmq.cli.running import (
    Call,
    call_options,
    dry_run_option,
    run,
)
from pocketmq.cli.sending import Sending, SentMarks, rate_option, standard_input
from pocketmq.export.readers import (
    ExportedMessage,
    QueueMapping,
    json_messages,
    parquet_messages,
)
from pocketmq.export.writers import STDOUT, ExportError
from pocketmq.formats import SourceError
from remoting.runtime.tasks import stop_signal

GROUP: Final = "pocketmq-import"
"""The producer group of the import."""

SAVE_SECONDS: Final = 1.0
"""Between two writes of the file of ``--progress``: a kill repeats at most this much."""


@dataclass(frozen=True, slots=True)
class ImportSource:
    """An opened input.

    Attributes:
        name: its path; ``-`` for stdin.
        messages: not yet read, but for the first one's topic.
        total: how many there are; None if unknown.
    """

    name: str
    messages: Iterator[ExportedMessage]
    total: int | None


@click.command(name="import", epilog="Example: pocketmq message import orders.jsonl --topic copy")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--topic", shell_complete=topic_names, help="Send to this topic, not to the exported one."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "parquet"]),
    help="[default: parquet for FILE.parquet, else jsonl]",
)
@click.option(
    "--progress",
    "progress_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Note here what has been sent, and leave that out the next time.",
)
@rate_option
@dry_run_option
@call_options
def import_(
    path: Path,
    topic: str | None,
    form: str | None,
    progress_file: Path | None,
    rate: float | None,
    dry_run: bool,
    call: Call,
) -> None:
    """Send the messages that `message export` wrote to FILE, or with - to stdin.

    They keep body, tag, keys, properties and flag, and get a new id. All messages of one queue go
    to one queue, in order: to the same one if the topic has it.

    A message that wasn't acknowledged is reported, and the exit code is 1. With --progress the next
    call sends these and what follows. After a kill, what was sent in the last second is sent again.
    """
    form = form or ("parquet" if path.suffix == ".parquet" else "jsonl")
    if form == "parquet" and path == STDOUT:
        raise click.UsageError("a Parquet file can't be read from stdin: give its name")
    with ExitStack() as opened:
        try:
            source = _open(path, form, opened)
            first = next(source.messages, None)
            topic = topic or (first.topic if first is not None else "")
            rest = itertools.chain([] if first is None else [first], source.messages)
            source = ImportSource(source.name, rest, source.total)
            if dry_run or first is None:
                _check(source, topic, as_json=call.as_json)
                return
            marks = None
            if progress_file is not None:
                marks = SentMarks.load(progress_file, source.name, topic)
        except (SourceError, ExportError) as problem:
            raise click.ClickException(str(problem)) from problem
        except OSError as problem:
            raise click.ClickException(
                f"{problem.filename or path}: {problem.strerror or problem}"
            ) from problem
        importing = _Importing(source, topic, marks, progress_file)
        complete = run(importing.run(call.nameserver, rate, as_json=call.as_json))
    sys.exit(0 if complete else 1)


def _open(path: Path, form: str, opened: ExitStack) -> ImportSource:
    if form == "parquet":
        total, messages = parquet_messages(path)
        return ImportSource(str(path.resolve()), messages, total)
    if path == STDOUT:
        return ImportSource("-", json_messages(standard_input()), None)
    stream = opened.enter_context(path.open("rb"))
    return ImportSource(str(path.resolve()), json_messages(stream), None)


def _check(source: ImportSource, topic: str, *, as_json: bool) -> None:
    """Read the input to its end; report what an import would send. Raises ``SourceError``."""
    messages = size = 0
    for message in source.messages:
        messages += 1
        size += len(message.body)
    facts = {"topic": topic, "messages": messages, "bytes": size, "applied": False}
    text = f"would send {output.count(messages, 'message')}, {output.count(size, 'byte')}"
    output.done(f"{text}, to {topic}", facts, as_json=as_json)


class _Importing:
    """Sends the messages of an input, except those that its marks have."""

    def __init__(
        self,
        source: ImportSource,
        topic: str,
        marks: SentMarks | None,
        progress_file: Path | None,
    ) -> None:
        self._source = source
        self._topic = topic
        self._marks = marks
        self._file = progress_file
        # The reader's thread looks at these while the loop changes the marks.
        self._before = None if marks is None else marks.copy()
        self._skipped = 0

    async def run(self, nameserver: str, rate: float | None, *, as_json: bool) -> bool:
        """Return whether all was acknowledged and the input was read to its end.

        Raises:
            SourceError: the input is malformed; what precedes that place has been sent.
        """
        stop = stop_signal()
        label = f"importing to {self._topic}"
        async with client.Instance(nameserver) as instance:
            mapping = QueueMapping(await instance.admin().queues(self._topic))
            producer = instance.producer(group=GROUP)
            with output.progress(label, self._source.total) as advance:
                sending = Sending(producer, advance, marks=self._marks)

                async def save_by_time() -> None:
                    while True:
                        await asyncio.sleep(SAVE_SECONDS)
                        await self._save()

                saving = asyncio.create_task(save_by_time())
                try:
                    problem = await sending.send_all(self._messages(mapping, advance), stop, rate)
                finally:
                    saving.cancel()
                    await asyncio.gather(saving, return_exceptions=True)
                    await self._save()
        text = f"imported {sending.summary(self._topic)}"
        if self._skipped:
            text += f"; {self._skipped} were there already"
        facts = {"topic": self._topic, "skipped": self._skipped}
        sending.report(text, facts, as_json=as_json)
        if problem is not None:
            raise problem
        return sending.failed == 0 and not stop.is_set()

    def _messages(
        self, mapping: QueueMapping, advance: output.Advance
    ) -> Iterator[tuple[int, client.Message[bytes]]]:
        for number, message in enumerate(self._source.messages):
            # Also for what is skipped, so that later messages of its queue follow it.
            target = mapping.target(message)
            if self._before is not None and self._before.has(number):
                self._skipped += 1
                advance(1)
                continue
            yield (
                number,
                client.Message(
                    self._topic,
                    message.body,
                    tag=message.tag,
                    keys=message.keys,
                    properties={
                        name: value
                        for name, value in message.properties.items()
                        if name not in RESERVED
                    },
                    queue=target,
                    flag=message.flag,
                ),
            )

    async def _save(self) -> None:
        if self._marks is not None and self._file is not None:
            await asyncio.to_thread(self._marks.copy().save, self._file)
