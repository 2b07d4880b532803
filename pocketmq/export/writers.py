"""Writing exported messages as JSON lines or as a Parquet file.

A JSON line has every field of the record. A Parquet file has the columns of the Spark connector,
written by its decoder: those of ``format("rocketmq")`` for messages of a cluster, those of
``format("rocketmq.store")`` for messages of a store. The file is written under a temporary name and
renamed when it is complete.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Protocol

import msgspec

import client
from pocketmq.formats import body_text, iso
from remoting.addresses import address_text
from remoting.protocol.errors import BodyError
from remoting.protocol.message.tags import TagExpression
from remoting.runtime.durable_file import sync_path

STDOUT: Final = Path("-")


@contextmanager
def output_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file, which is renamed to ``path`` when the block ends without an error.

    Args:
        path: the final name; a file is replaced, also one behind a link, and a device or pipe is
            written to. ``-`` for stdout.

    Raises:
        OSError: the file can't be written; the temporary file is deleted.
    """
    if path == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.is_dir():
        raise IsADirectoryError(21, "it is a directory", str(path))
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            yield stream
        return
    path = path.resolve()
    part = path.with_name(path.name + ".part")
    stream = part.open("wb")
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


PORTION: Final = 1000
"""Most messages in a portion."""

Message = client.ReceivedMessage[bytes]
Where = int | client.Place | datetime


class ExportError(Exception):
    """An export can't be started or finished; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSelection:
    """The messages to export.

    Attributes:
        topic: the topic they are stored in.
        queues: ``ID`` or ``BROKER/ID``; empty for all queues.
        begin: the first message of each queue.
        end: the first message of each queue that is not exported any more.
        tags: only messages with one of these tags.
        sql: a filter for the broker in place of the tags; None for none.
        key: only messages with this key or id.
    """

    topic: str
    queues: tuple[str, ...] = ()
    begin: Where = client.BEGIN
    end: Where = client.END
    tags: TagExpression
    sql: str | None = None
    key: str | None = None

    def wants(self, message: Message) -> bool:
        """Return whether a message of a selected queue and range has a selected tag and key."""
        if not self.tags.is_all and not self.tags.matches(message.tags):
            return False
        return self.key is None or self.key in {*message.keys, message.id, message.offset_id}


class Portion(NamedTuple):
    """Some messages of one queue, in order.

    Attributes:
        messages: the selected messages.
        passed: number of offsets of the queue that this portion covers.
        damage: one sentence about each message that can't be read.
        file: the log file they were read from; None if unknown.
    """

    messages: list[Message]
    passed: int
    damage: list[str]
    file: str | None = None


def fault_of(message: Message) -> str | None:
    """Return why a message can't be exported as it was sent; None if it is sound."""
    if not message.check_crc():
        return _sentence(message, "the CRC of its body is not the one stored with it")
    try:
        _ = message.body
    except (BodyError, client.UnreadableMessage) as error:
        return _sentence(message, str(error))
    return None


def _sentence(message: Message, reason: str) -> str:
    return f"message {message.offset} of {message.queue} is left out: {reason}"


ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
"""Size of a Parquet row group: large enough for columns to compress well."""

Body = tuple[object, str]
"""A body in a JSON line, and the value of its field ``encoding``."""


class ExportWriter(Protocol):
    """Writes messages to a file."""

    def write(self, portion: Portion) -> None:
        """Write the messages of a portion. Raises ``ExportError``, ``OSError``."""
        ...

    def close(self) -> None:
        """Finish the file. Raises ``OSError``."""
        ...

    def abandon(self) -> None:
        """Stop without finishing the file, after an error."""
        ...


def _text(message: Message) -> Body:
    try:
        return message.body.decode(), "utf-8"
    except UnicodeDecodeError:
        raise ExportError(
            f"the body of message {message.offset} of {message.queue} is not UTF-8: use --body auto"
            " or --body base64"
        ) from None


def _json(message: Message) -> Body:
    try:
        # For what ``format`` doesn't check: UTF-8, and numbers that readers refuse.
        msgspec.json.decode(message.body)
        return msgspec.Raw(msgspec.json.format(message.body, indent=-1)), "json"
    except (ValueError, RecursionError):
        return body_text(message.body)


BODIES: Final[dict[str, Callable[[Message], Body]]] = {
    "auto": lambda message: body_text(message.body),
    "text": _text,
    "base64": lambda message: (base64.b64encode(message.body).decode(), "base64"),
    "json": _json,
}
"""Encodings of bodies in JSON lines; the field ``encoding`` names the one used."""


class JsonLines:
    """Writes one JSON object per line."""

    def __init__(self, stream: IO[bytes], body: str) -> None:
        self._stream = stream
        self._body = BODIES[body]

    def write(self, portion: Portion) -> None:
        """See ``ExportWriter``."""
        lines = [msgspec.json.encode(self._line(message)) + b"\n" for message in portion.messages]
        self._stream.write(b"".join(lines))

    def close(self) -> None:
        """See ``ExportWriter``."""
        self._stream.flush()

    def abandon(self) -> None:
        """See ``ExportWriter``."""

    def _line(self, message: Message) -> dict[str, object]:
        body, encoding = self._body(message)
        return {
            "topic": message.topic,
            "broker": message.queue.broker_name,
            "queue": message.queue_id,
            "offset": message.offset,
            "id": message.id,
            "offset_id": message.offset_id,
            "tag": message.tag,
            "keys": message.keys,
            "born_at": iso(message.born_at),
            "stored_at": iso(message.stored_at),
            "born_host": address_text(message.born_host),
            "store_host": address_text(message.store_host),
            "retries": message.reconsume_times,
            "flag": message.flag,
            "sys_flag": message.sys_flag,
            "physical_offset": message.physical_offset,
            "size": message.size,
            "prepared_transaction_offset": message.prepared_transaction_offset,
            "properties": message.properties,
            "body": body,
            "encoding": encoding,
        }


class Parquet:
    """Writes a Parquet file, compressed with zstd.

    Args:
        stream: the file to write to.
        of_store: use the columns of messages of a store.
        row_group_bytes: bytes held in memory before they are written.

    Raises:
        ExportError: a required package is not installed.
    """

    def __init__(
        self, stream: IO[bytes], *, of_store: bool, row_group_bytes: int = ROW_GROUP_BYTES
    ) -> None:
        try:
            import pyarrow as pa  # noqa: PLC0415 - an optional extra
            from pyarrow import parquet  # noqa: PLC0415 - as above

            from spark_connector import schema  # noqa: PLC0415 - it needs numpy too
            from spark_connector.decode import decoder, model  # noqa: PLC0415 - as above
        except ImportError as error:
            raise ExportError(
                f"Parquet needs pyarrow and numpy, and {error.name} is not installed: pip install"
                " 'pocketmq[parquet]', or use --format jsonl"
            ) from error
        columns = schema.STORE_COLUMNS if of_store else schema.COLUMNS
        self._columns = tuple(columns.values())
        self._schema = schema.arrow_schema(self._columns)

        def make_decoder(broker: str) -> Any:
            return decoder.Decoder(model.DecodeSettings(self._columns, broker))

        self._make_decoder = make_decoder
        self._decoders: dict[str, Any] = {}
        self._make_table = pa.Table.from_batches
        self._writer = parquet.ParquetWriter(stream, self._schema, compression="zstd")
        self._waiting: list[Any] = []
        self._waiting_bytes = 0
        self._row_group_bytes = row_group_bytes

    def write(self, portion: Portion) -> None:
        """See ``ExportWriter``."""
        if not portion.messages:
            return
        broker = portion.messages[0].queue.broker_name
        decoder = self._decoders.get(broker)
        if decoder is None:
            decoder = self._make_decoder(broker)
            self._decoders[broker] = decoder
        records = b"".join(message.raw for message in portion.messages)
        for decoded in decoder.batches(records, file=portion.file):
            self._waiting.append(decoded.batch)
            self._waiting_bytes += decoded.batch.nbytes
            if self._waiting_bytes >= self._row_group_bytes:
                self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(self._make_table(self._waiting, schema=self._schema))
        self._waiting, self._waiting_bytes = [], 0

    def close(self) -> None:
        """See ``ExportWriter``."""
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """See ``ExportWriter``."""
        # Otherwise the writer's finalizer would write the footer to the closed stream.
        self._writer.is_open = False
