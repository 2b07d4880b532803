"""Messages that were read, written as text, JSON lines, CSV or as they are."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Iterable
from typing import IO, TYPE_CHECKING, Final

from remoting.protocol.accelerated import json_dumps

if TYPE_CHECKING:
    from client.consumer.received import ReceivedMessage

FORMATS: Final = ("text", "jsonl", "csv", "raw")

COLUMNS: Final = (
    *("topic", "broker", "queue", "offset", "id", "tag", "keys"),
    *("born_at", "stored_at", "retries", "properties", "body", "encoding"),
)
"""Of the CSV, and the fields of a JSON line."""

Writer = Callable[[Iterable["ReceivedMessage[bytes]"]], None]


def writer(form: str, stream: IO[bytes]) -> Writer:
    """A function that writes messages to ``stream``.

    Args:
        form: one of ``FORMATS``: ``text`` writes a body a line, ``raw`` bodies with nothing
            between them.
    """
    if form == "jsonl":
        return lambda messages: _write(stream, (json_dumps(facts(m)) + b"\n" for m in messages))
    if form == "csv":
        _write(stream, [_csv_line(COLUMNS)])
        return lambda messages: _write(stream, (_csv_row(m) for m in messages))
    end = b"\n" if form == "text" else b""
    return lambda messages: _write(stream, (m.body + end for m in messages))


def facts(message: ReceivedMessage[bytes]) -> dict[str, object]:
    """A message as a JSON object; a body that isn't UTF-8 is written in base64."""
    text, encoding = body_text(message.body)
    return {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.offset,
        "id": message.id,
        "tag": message.tag,
        "keys": message.keys,
        "born_at": message.born_at.isoformat(timespec="milliseconds"),
        "stored_at": message.stored_at.isoformat(timespec="milliseconds"),
        "retries": message.retries,
        "properties": dict(message.properties),
        "body": text,
        "encoding": encoding,
    }


def body_text(body: bytes) -> tuple[str, str]:
    """A body as text, and how: ``utf-8`` or ``base64``."""
    try:
        return body.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"


def _csv_row(message: ReceivedMessage[bytes]) -> bytes:
    values = facts(message)
    values["keys"] = " ".join(message.keys)
    values["properties"] = json_dumps(values["properties"]).decode()
    return _csv_line(values[column] for column in COLUMNS)


def _csv_line(values: Iterable[object]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(values)
    return buffer.getvalue().encode()


def _write(stream: IO[bytes], pieces: Iterable[bytes]) -> None:
    stream.write(b"".join(pieces))
    stream.flush()
