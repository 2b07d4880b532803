"""Reading the files that an export wrote: JSON lines or Parquet.

JSON lines of ``read --json`` and ``message find --json`` have the same fields, as far as they are
used here.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any, Final, Literal

import msgspec

import client
from pocketmq.export.writers import ExportError
from pocketmq.formats import SourceError, lines
from remoting.protocol.limits import MAX_MESSAGE_BYTES
from remoting.protocol.message.properties import keys_of

MAX_LINE_BYTES: Final = 8 * MAX_MESSAGE_BYTES
"""Longest JSON line: a byte of the body takes up to six characters, and there are properties."""

ROWS: Final = 500
"""Most rows of a Parquet file that are read at a time."""

ROWS_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of these rows, by the mean size of the file's rows."""


class ExportedMessage(msgspec.Struct):
    """One message of an exported file; its fields are the JSON lines'.

    A message without ``broker`` and ``queue`` was not in a queue, as far as is known. The readers
    yield messages with bytes as body.
    """

    topic: str
    body: Any
    encoding: Literal["utf-8", "base64", "json"] = "utf-8"
    broker: str | None = None
    queue: Annotated[int, msgspec.Meta(ge=0)] | None = None
    tag: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}
    flag: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0

    def data(self, line: bytes) -> bytes:
        """Return the bytes of a JSON line's body. Raises ValueError if it has another encoding."""
        if self.encoding == "json":
            # As it is in the line: a number may have more digits than a float.
            return bytes(msgspec.json.decode(line, type=dict[str, msgspec.Raw])["body"])
        if not isinstance(self.body, str):
            raise ValueError(f"with encoding {self.encoding} the body is text")  # noqa: TRY004 - of input
        if self.encoding == "base64":
            return base64.b64decode(self.body, validate=True)
        return self.body.encode()


def json_messages(stream: IO[bytes]) -> Iterator[ExportedMessage]:
    """Yield the messages of JSON lines. Raises ``SourceError``, which names the line."""
    decode = msgspec.json.Decoder(ExportedMessage).decode
    for number, line in lines(stream, MAX_LINE_BYTES, "the most that an exported message takes"):
        if not line.strip():
            continue
        try:
            message = decode(line)
            message.body = message.data(line)
        except (ValueError, TypeError, RecursionError) as error:
            raise SourceError(f"line {number} is not an exported message: {error}") from error
        yield message


def parquet_messages(path: Path) -> tuple[int, Iterator[ExportedMessage]]:
    """Return the number of messages in a Parquet file, and the messages.

    Raises:
        SourceError: it is not a Parquet file of an export; while iterating too.
        ExportError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an optional extra
        from pyarrow import parquet  # noqa: PLC0415 - as above
    except ImportError as error:
        raise ExportError(
            "Parquet needs pyarrow, which is not installed: pip install 'pocketmq[parquet]', or"
            " export with --format jsonl"
        ) from error
    columns = ["topic", "brokerName", "queueId", "body", "keys", "tags", "flag", "properties"]
    try:
        file = parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{path} can't be read as Parquet ({error}): choose another --format"
        ) from error
    if missing := set(columns) - set(file.schema_arrow.names):
        raise SourceError(
            f"{path} has no column {min(missing)}: give a file that `message export` wrote"
        )

    # Large messages fill the memory with fewer rows: their average size limits a batch.
    groups = (file.metadata.row_group(number) for number in range(file.num_row_groups))
    size, count = sum(group.total_byte_size for group in groups), file.metadata.num_rows
    at_once = max(1, min(ROWS, ROWS_BYTES * count // max(size, 1)))

    def messages() -> Iterator[ExportedMessage]:
        number = 0
        try:
            for batch in file.iter_batches(batch_size=at_once, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield msgspec.convert(_fields(row), ExportedMessage)
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            raise SourceError(
                f"row {number} of {path} is not an exported message: {error}"
            ) from error

    return count, messages()


def _fields(row: dict[str, Any]) -> dict[str, object]:
    return {
        "topic": row["topic"],
        "broker": row["brokerName"],
        "queue": row["queueId"],
        "body": bytes(row["body"]),
        "tag": row["tags"],
        "keys": keys_of(row["keys"] or ""),
        "flag": row["flag"] or 0,
        "properties": dict(row["properties"] or ()),
    }


class QueueMapping:
    """Where the messages of each exported queue go: all of one queue to one queue, in order.

    A queue goes to the one with its broker and number. A broker that the topic doesn't have stands
    for a broker that it has, and too high a number starts over.
    """

    def __init__(self, queues: list[client.MessageQueue]) -> None:
        self._queues: dict[str, list[client.MessageQueue]] = {}
        for queue in sorted(queues):
            self._queues.setdefault(queue.broker_name, []).append(queue)
        self._stands_for: dict[str, str] = {}

    def target(self, message: ExportedMessage) -> client.MessageQueue | None:
        """Return the queue for a message; None: any."""
        if message.broker is None or message.queue is None:
            return None
        name = message.broker
        if name not in self._queues:
            brokers = list(self._queues)
            following = brokers[len(self._stands_for) % len(brokers)]
            name = self._stands_for.setdefault(name, following)
        queues = self._queues[name]
        return queues[message.queue % len(queues)]
