"""Messages written as text, JSON lines, CSV or raw."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from client.consumer.received import ReceivedMessage
from pocketmq.formats import COLUMNS, writer
from remoting.protocol.queue import MessageQueue


class Message:
    """The fields of a received message that a sink reads."""

    topic = "orders"
    queue = MessageQueue("orders", "broker-a", 3)
    offset = 7
    id = "ID1"
    tag = "paid"
    keys = ("a", "b")
    born_at = stored_at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    retries = 0
    properties: dict[str, str] = {"TAGS": "paid"}  # noqa: RUF012 - never changed

    def __init__(self, body: bytes) -> None:
        self.body = body


def written(form: str, *bodies: bytes) -> bytes:
    stream = io.BytesIO()
    messages = cast("list[ReceivedMessage[bytes]]", [Message(body) for body in bodies])
    writer(form, stream)(messages)
    return stream.getvalue()


def test_text_has_one_body_per_line_and_raw_has_only_bodies() -> None:
    assert written("text", b"one", b"\xff") == b"one\n\xff\n"
    assert written("raw", b"one", b"\xff") == b"one\xff"


def test_a_json_line_has_everything() -> None:
    line: dict[str, Any] = json.loads(written("jsonl", "tea ☕".encode()))
    assert line == {
        "topic": "orders",
        "broker": "broker-a",
        "queue": 3,
        "offset": 7,
        "id": "ID1",
        "tag": "paid",
        "keys": ["a", "b"],
        "born_at": "2026-01-31T12:00:00.000+00:00",
        "stored_at": "2026-01-31T12:00:00.000+00:00",
        "retries": 0,
        "properties": {"TAGS": "paid"},
        "body": "tea ☕",
        "encoding": "utf-8",
    }
    assert tuple(line) == COLUMNS


def test_a_body_that_is_no_text_is_base64() -> None:
    line = json.loads(written("jsonl", b"\xff\x00"))
    assert (line["body"], line["encoding"]) == ("/wA=", "base64")


@pytest.mark.parametrize("body", ['a,"b"\nc', "a\rb", "a\r\nb"])
def test_csv_has_a_header_and_can_be_read_back(body: str) -> None:
    text = written("csv", body.encode()).decode()
    assert text.endswith(",utf-8\n")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert rows[0]["body"] == body
    assert rows[0]["keys"] == "a b"
    assert json.loads(rows[0]["properties"]) == {"TAGS": "paid"}
