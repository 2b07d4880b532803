"""Reading exported files."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import client
from pocketmq.cli.sending import SentMarks
from pocketmq.export.readers import (
    MAX_LINE_BYTES,
    ExportedMessage,
    QueueMapping,
    json_messages,
    parquet_messages,
)
from pocketmq.formats import SourceError, body_text


@given(st.binary())
def test_any_input_is_messages_or_a_source_error(data: bytes) -> None:
    with suppress(SourceError):
        assert all(isinstance(one.body, bytes) for one in json_messages(io.BytesIO(data)))


@given(st.binary(), st.lists(st.text()), st.dictionaries(st.text(), st.text()), st.integers(0))
def test_what_was_written_is_read(
    body: bytes, keys: list[str], properties: dict[str, str], queue: int
) -> None:
    text, encoding = body_text(body)
    line = {"topic": "t", "body": text, "encoding": encoding, "keys": keys, "queue": queue % 2**31}
    line |= {"properties": properties, "more": [1]}
    (found,) = json_messages(io.BytesIO(json.dumps(line).encode()))
    assert (found.body, found.keys, found.properties) == (body, keys, properties)


@pytest.mark.parametrize(
    "line",
    [
        '{"body": "x"}',
        '{"topic": "t"}',
        '{"topic": 1, "body": "x"}',
        '{"topic": "t", "body": 1}',
        '{"topic": "t", "body": "x", "encoding": "rot13"}',
        '{"topic": "t", "body": "x", "queue": -1}',
        '{"topic": "t", "body": "x", "flag": 2147483648}',
        '{"topic": "t", "body": "x", "properties": {"a": 1}}',
        '{"topic": "t", "body": "x", "encoding": "bytes"}',
        '{"topic": "t", "body": ' + "[" * 100_000 + ', "encoding": "json"}',
        "[]",
        "x" * 100,
    ],
)
def test_a_line_that_is_no_message_is_named(line: str) -> None:
    good = '{"topic": "t", "body": "x"}\n\n'
    messages = json_messages(io.BytesIO((good + line).encode()))
    assert next(messages).body == b"x"
    with pytest.raises(SourceError, match="line 3 is not an exported message"):
        next(messages)


def test_a_number_of_any_length_is_read() -> None:
    line = '{"topic": "t", "body": 1' + "0" * 400 + ', "encoding": "json"}'
    (found,) = json_messages(io.BytesIO(line.encode()))
    assert found.body == b"1" + b"0" * 400


def test_an_endless_line_is_refused_before_it_is_read() -> None:
    stream = io.BytesIO(b"x" * (MAX_LINE_BYTES + 1000))
    with pytest.raises(SourceError, match="line 1 is longer"):
        next(json_messages(stream))
    assert stream.tell() < MAX_LINE_BYTES + 100


def test_another_parquet_file_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"topic": ["t"]}), tmp_path / "other.parquet")
    with pytest.raises(SourceError, match="has no column body"):
        parquet_messages(tmp_path / "other.parquet")


def test_large_messages_of_a_parquet_file_are_read_few_at_a_time(tmp_path: Path) -> None:
    large, count = bytes(range(256)) * 4096, 60
    rows = {"topic": "t", "brokerName": "a", "queueId": 0, "body": large, "keys": "", "tags": ""}
    rows |= {"flag": 0, "properties": [("n", "1")]}
    types = [pa.string(), pa.string(), pa.int32(), pa.binary(), pa.string(), pa.string()]
    types += [pa.int32(), pa.map_(pa.string(), pa.string())]
    schema = pa.schema(list(zip(rows, types, strict=True)))
    with pq.ParquetWriter(tmp_path / "large", schema, use_dictionary=False) as file:
        for _ in range(count):
            file.write_table(pa.Table.from_pylist([rows], schema=schema))
    total, messages = parquet_messages(tmp_path / "large")
    assert next(messages).body == large
    assert pa.total_allocated_bytes() < total * len(large) / 2
    assert sum(1 for _ in messages) == count - 1


def queue(broker: str, number: int) -> client.MessageQueue:
    return client.MessageQueue("t", broker, number)


def message(broker: str | None, number: int | None) -> ExportedMessage:
    return ExportedMessage("t", b"", broker=broker, queue=number)


def test_a_queue_goes_to_itself_or_to_one_that_stands_for_it() -> None:
    mapping = QueueMapping([queue("a", 0), queue("a", 1), queue("b", 0), queue("b", 1)])
    assert mapping.target(message("b", 1)) == queue("b", 1)
    assert mapping.target(message("x", 1)) == queue("a", 1)
    assert mapping.target(message("y", 5)) == queue("b", 1)
    assert mapping.target(message("x", 0)) == queue("a", 0)
    assert mapping.target(message("z", 0)) == queue("a", 0)
    assert mapping.target(message(None, None)) is None


def test_marks_are_those_of_the_file(tmp_path: Path) -> None:
    marks = SentMarks.load(tmp_path / "marks", "in", "t")
    for number in range(5):
        assert not marks.has(number)
        marks.start(number)
    marks.unsent -= {0, 2, 4}
    marks.save(tmp_path / "marks")
    found = SentMarks.load(tmp_path / "marks", "in", "t")
    assert [found.has(number) for number in range(6)] == [True, False, True, False, True, False]
