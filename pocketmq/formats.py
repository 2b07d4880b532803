"""Messages as lines, JSON lines, CSV or one blob, for ``send`` and ``read``.

Input is read lazily and with a bound: a line longer than the largest message is an error before it
is read completely.
"""

from __future__ import annotations

import base64
import codecs
import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from client.positions import instant
from remoting.protocol.accelerated import json_dumps
from remoting.protocol.limits import MAX_MESSAGE_BYTES
from remoting.protocol.message.properties import keys_of

if TYPE_CHECKING:
    from client.consumer.received import ReceivedMessage


FORMATS: Final = ("text", "jsonl", "csv", "raw")

COLUMNS: Final = (
    "topic",
    "broker",
    "queue",
    "offset",
    "id",
    "tag",
    "keys",
    "born_at",
    "stored_at",
    "retries",
    "properties",
    "body",
    "encoding",
)
"""Columns of the CSV, and fields of a JSON line."""

Writer = Callable[[Iterable["ReceivedMessage[bytes]"]], None]


def writer(form: str, stream: IO[bytes]) -> Writer:
    """Return a function that writes messages to ``stream``.

    Args:
        form: one of ``FORMATS``: ``text`` writes one body per line, ``raw`` writes bodies without
            separators.
    """
    if form == "jsonl":
        return lambda messages: _write(stream, (json_dumps(facts(m)) + b"\n" for m in messages))
    if form == "csv":
        _write(stream, [_csv_line(COLUMNS)])
        return lambda messages: _write(stream, (_csv_row(m) for m in messages))
    end = b"\n" if form == "text" else b""
    return lambda messages: _write(stream, (m.body + end for m in messages))


def facts(message: ReceivedMessage[bytes]) -> dict[str, object]:
    """Return a message as a JSON object; a body that isn't UTF-8 is encoded in base64."""
    text, encoding = body_text(message.body)
    return {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.offset,
        "id": message.id,
        "tag": message.tag,
        "keys": message.keys,
        "born_at": iso(message.born_at),
        "stored_at": iso(message.stored_at),
        "retries": message.retries,
        "properties": dict(message.properties),
        "body": text,
        "encoding": encoding,
    }


def iso(at: datetime | None) -> str | None:
    """Return a time in ISO 8601 with milliseconds; None for None."""
    return None if at is None else at.isoformat(timespec="milliseconds")


def iso_of_ms(timestamp_ms: int | None) -> str | None:
    """Return RocketMQ's milliseconds since 1970 in ISO 8601; None for a time that is not set."""
    if timestamp_ms is None or timestamp_ms <= 0:
        return None
    return iso(instant(timestamp_ms))


def body_text(body: bytes) -> tuple[str, str]:
    """Return a body as text, and its encoding: ``utf-8`` or ``base64``."""
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
    # A field with a character of the line's end is quoted: also with a carriage return alone.
    csv.writer(buffer, lineterminator="\r\n").writerow(values)
    return f"{buffer.getvalue()[:-2]}\n".encode()


def _write(stream: IO[bytes], pieces: Iterable[bytes]) -> None:
    stream.write(b"".join(pieces))
    stream.flush()


class SourceError(ValueError):
    """The input is not in the given format; the text names the line."""


@dataclass(frozen=True, slots=True)
class InputEntry:
    """A message to send, as read from the input."""

    body: bytes
    keys: tuple[str, ...] = ()
    tag: str | None = None
    sharding_key: str | None = None


@dataclass(frozen=True, slots=True)
class Fields:
    """The JSON fields or CSV columns from which the parts of a message are taken.

    Attributes:
        body: None: the whole line is the body.
        key, tag, sharding_key: None: the message has none.
    """

    body: str | None = None
    key: str | None = None
    tag: str | None = None
    sharding_key: str | None = None

    @property
    def named(self) -> list[str]:
        """The fields that every object or row must have."""
        names = (self.body, self.key, self.tag, self.sharding_key)
        return [name for name in names if name is not None]


def entries(stream: IO[bytes], form: str, fields: Fields) -> Iterator[InputEntry]:
    """Yield the messages in ``stream``.

    Args:
        form: one of ``FORMATS``.
        fields: used for ``jsonl`` and ``csv``.

    Raises:
        SourceError: the input is not in that format.
    """
    readers: dict[str, Callable[[], Iterator[InputEntry]]] = {
        "text": lambda: (InputEntry(_chomp(line)) for _, line in lines(stream)),
        "jsonl": lambda: _json_lines(stream, fields),
        "csv": lambda: _rows(stream, fields),
        "raw": lambda: iter([_blob(stream)]),
    }
    return readers[form]()


def lines(
    stream: IO[bytes],
    max_bytes: int = MAX_MESSAGE_BYTES,
    why: str = "the most that a message holds",
) -> Iterator[tuple[int, bytes]]:
    """Yield line numbers, from 1, and lines with their line ends, without a byte order mark.

    Raises:
        SourceError: a line is longer than ``max_bytes``.
    """
    number = 0
    while line := stream.readline(max_bytes + 2):
        number += 1
        if len(line) > max_bytes and not line.endswith(b"\n"):
            raise SourceError(f"line {number} is longer than {max_bytes} bytes, {why}")
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        yield number, line


def _chomp(line: bytes) -> bytes:
    if line.endswith(b"\n"):
        return line[: -2 if line.endswith(b"\r\n") else -1]
    return line


def _blob(stream: IO[bytes]) -> InputEntry:
    body = stream.read(MAX_MESSAGE_BYTES + 1)
    if len(body) > MAX_MESSAGE_BYTES:
        raise SourceError(
            f"the input is longer than {MAX_MESSAGE_BYTES} bytes, the most that a message holds"
        )
    return InputEntry(body)


def _json_lines(stream: IO[bytes], fields: Fields) -> Iterator[InputEntry]:
    # A body stays as it is in the line, and whole numbers are exact: orjson makes floats of those
    # with more than 64 bits.
    decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
    for number, line in lines(stream):
        text = _chomp(line)
        if not text.strip():
            continue
        try:
            # A ``Raw`` isn't checked for this.
            text.decode()
            raw = decode(text)
            value = raw | {
                name: msgspec.json.decode(raw[name]) for name in fields.named if name in raw
            }
        except (ValueError, RecursionError) as error:
            raise SourceError(f"line {number} is not a JSON object: {error}") from error
        if fields.body in raw and not isinstance(value[fields.body], str):
            value[fields.body] = msgspec.json.format(raw[fields.body], indent=-1)
        yield _entry(value, fields, text, number)


def _rows(stream: IO[bytes], fields: Fields) -> Iterator[InputEntry]:
    csv.field_size_limit(MAX_MESSAGE_BYTES)
    record = _Record(lines(stream))
    reader = csv.reader(record, strict=True)
    try:
        header = next(reader, None)
        record.take()
        for row in reader:
            text = record.take()
            if header is None or not row:
                continue
            if len(row) != len(header):
                raise SourceError(
                    f"line {reader.line_num} has {len(row)} columns; the header has {len(header)}"
                )
            yield _entry(dict(zip(header, row, strict=True)), fields, text, reader.line_num)
    except (csv.Error, UnicodeDecodeError) as error:
        raise SourceError(f"line {reader.line_num + 1} is not CSV in UTF-8: {error}") from error


class _Record(Iterable[str]):
    """Lines for the CSV reader, which keeps the bytes of the current record."""

    def __init__(self, lines: Iterator[tuple[int, bytes]]) -> None:
        self._lines = lines
        self._taken: list[bytes] = []
        self._size = 0

    def __iter__(self) -> Iterator[str]:
        for number, line in self._lines:
            self._taken.append(line)
            self._size += len(line)
            if self._size > MAX_MESSAGE_BYTES:
                raise SourceError(
                    f"the row that ends in line {number} is longer than {MAX_MESSAGE_BYTES} bytes"
                )
            yield line.decode()

    def take(self) -> bytes:
        """Return the bytes of the record that was read, and start the next one."""
        text = _chomp(b"".join(self._taken))
        self._taken.clear()
        self._size = 0
        return text


def _entry(value: Mapping[str, Any], fields: Fields, text: bytes, number: int) -> InputEntry:
    for name in fields.named:
        if name not in value:
            raise SourceError(
                f"line {number} has no {name!r}; it has {', '.join(value) or 'nothing'}"
            )
    body = text
    if fields.body is not None:
        content = value[fields.body]
        body = content.encode() if isinstance(content, str) else content
    return InputEntry(
        body,
        tuple(keys_of(_as_word(value, fields.key) or "")),
        _as_word(value, fields.tag),
        _as_word(value, fields.sharding_key),
    )


def _as_word(value: Mapping[str, Any], name: str | None) -> str | None:
    """Return a field as key, tag or sharding key; None for an empty one."""
    if name is None or value[name] is None:
        return None
    word = value[name]
    if isinstance(word, list):
        word = " ".join(str(part) for part in word)
    return str(word) or None
