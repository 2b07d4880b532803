"""Write exported messages as JSON lines or as a Parquet file.

A JSON line has every field of the record. A Parquet file has the columns of the Spark connector's
batches, made by its decoder: those of ``format("rocketmq")`` for a cluster's messages, those of
``format("rocketmq.store")`` for a store's. The file is renamed to its name when it is complete.
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

import client
from pocketmq.formats import body_text, iso
from remoting.durable_file import sync_directory
from remoting.protocol.accelerated import json_dumps, json_loads
from remoting.protocol.errors import BodyError
from remoting.protocol.message.tags import TagExpression

STDOUT: Final = Path("-")


@contextmanager
def output_file(path: Path) -> Iterator[IO[bytes]]:
    """A stream to a temporary file, which gets its name at the end of the block without an error.

    Args:
        path: the name; ``-`` for stdout. A file of that name is replaced.

    Raises:
        OSError: it can't be written; nothing is left of it.
    """
    if path == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = path.with_name(path.name + ".part")
    if path.is_dir():
        raise IsADirectoryError(21, "it is a directory", str(path))
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
    sync_directory(path.parent)


PORTION: Final = 1000
"""Messages of a portion at most."""

Message = client.ReceivedMessage[bytes]
Where = int | client.Place | datetime


class ExportError(Exception):
    """An export can't be started or finished; the text has the reason and a remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSelection:
    """Which messages are wanted.

    Attributes:
        topic: where they are stored.
        queues: ``ID`` or ``BROKER/ID``; none for all.
        begin: in each queue the first one.
        end: in each queue the first one that is not wanted any more.
        tags: one of these tags.
        key: one of the message's keys, or its id.
    """

    topic: str
    queues: tuple[str, ...] = ()
    begin: Where = client.BEGIN
    end: Where = client.END
    tags: TagExpression
    key: str | None = None

    def wants(self, message: Message) -> bool:
        """Whether a message of a wanted place is one of them."""
        if not self.tags.is_all and not self.tags.matches(message.tags):
            return False
        return self.key is None or self.key in {*message.keys, message.id, message.offset_id}


class Portion(NamedTuple):
    """Some messages of one queue, in their order.

    Attributes:
        messages: those that are wanted.
        passed: how many numbers of the queue are done with them.
        damage: of messages that can't be read, in sentences.
        file: of the log, that they were read from; None when nobody knows.
    """

    messages: list[Message]
    passed: int
    damage: list[str]
    file: str | None = None


def fault_of(message: Message) -> str | None:
    """Why a message can't be given out as it was sent; None for a sound one."""
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
"""Of a Parquet file: enough for its columns to compress well."""

Body = tuple[object, str]
"""A body in a JSON line, and its ``encoding`` there."""


class ExportWriter(Protocol):
    """Takes messages and writes them."""

    def write(self, portion: Portion) -> None:
        """The messages of a portion. Raises ``ExportError``, ``OSError``."""
        ...

    def close(self) -> None:
        """End the file. Raises ``OSError``."""
        ...

    def abandon(self) -> None:
        """Discard the file."""
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
        return json_loads(message.body), "json"
    except ValueError:
        return body_text(message.body)


BODIES: Final[dict[str, Callable[[Message], Body]]] = {
    "auto": lambda message: body_text(message.body),
    "text": _text,
    "base64": lambda message: (base64.b64encode(message.body).decode(), "base64"),
    "json": _json,
}
"""Encodings of bodies in JSON lines; the field ``encoding`` has the one that was used."""


class JsonLines:
    """One JSON object a line."""

    def __init__(self, stream: IO[bytes], body: str) -> None:
        self._stream = stream
        self._body = BODIES[body]

    def write(self, portion: Portion) -> None:
        """See ``ExportWriter``."""
        lines = [json_dumps(self._line(message)) + b"\n" for message in portion.messages]
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
            "born_at": _time(lambda: iso(message.born_at)),
            "stored_at": _time(lambda: iso(message.stored_at)),
            "born_host": _host(message.born_host),
            "store_host": _host(message.store_host),
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


def _time(text: Callable[[], str | None]) -> str | None:
    try:
        return text()
    except (ValueError, OverflowError, OSError):
        # A producer may send any number.
        return None


def _host(host: tuple[str, int]) -> str:
    ip, port = host
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


class Parquet:
    """A Parquet file, compressed with zstd.

    Args:
        stream: where to.
        of_store: whether it has the columns of a store's messages.
        row_group_bytes: what is held in memory before it is written.

    Raises:
        ExportError: what it takes is not installed.
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
        # Otherwise its finalizer would write the footer to a stream that is closed by then.
        self._writer.is_open = False
