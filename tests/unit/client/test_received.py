"""The fast scan of an answer finds what reading record by record finds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import serde
from client.consumer.received import COPY_BELOW, ReceivedMessage, messages_of
from remoting.protocol.errors import RecordError
from remoting.protocol.message.record import COMPRESSED, encode_record, host_bytes
from remoting.protocol.message.view import RecordView, iter_records
from remoting.protocol.queue import MessageQueue

QUEUE = MessageQueue("T", "a", 2)
V4, V6 = host_bytes("10.0.0.1", 1234), host_bytes("fe80::1", 1234)
FIELDS = (
    "topic",
    "size",
    "magic",
    "body_crc",
    "queue_id",
    "flag",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "born_timestamp_ms",
    "born_host",
    "store_timestamp_ms",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "properties_text",
    "properties",
    "unique_id",
    "offset_id",
)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    return encode_record(
        topic=draw(st.sampled_from(["T", "Other", "T2", "t" * 127])),
        body=draw(st.binary(max_size=40)),
        properties=draw(
            st.sampled_from([b"", b"UNIQ_KEY\x01ID", b"TAGS\x01a\x02KEYS\x01k", b"TAGS\x01\xff"])
        ),
        born_host=draw(st.sampled_from([V4, V6])),
        store_host=draw(st.sampled_from([V4, V4, V6])),
        queue_id=2,
        queue_offset=draw(st.integers(0, 2**40)),
        physical_offset=draw(st.integers(0, 2**40)),
        sys_flag=0,
        born_timestamp_ms=1,
        store_timestamp_ms=2,
        reconsume_times=3,
    )


def facts(view: RecordView) -> list[Any]:
    body = bytes(view.stored_body) if view.sys_flag & COMPRESSED else view.body
    return [body, *(getattr(view, field) for field in FIELDS)]


def outcome(read: Any) -> list[list[Any]] | None:
    try:
        return [facts(view) for view in read()]
    except RecordError:
        return None


@given(st.lists(records(), max_size=6), st.data())
def test_any_answer_whole_or_damaged_reads_the_same(whole: list[bytes], data: st.DataObject):
    answer = bytearray(b"".join(whole))
    for _ in range(data.draw(st.integers(0, 3)) if answer else 0):
        answer[data.draw(st.integers(0, len(answer) - 1))] = data.draw(st.integers(0, 255))
    body = bytes(answer[: data.draw(st.integers(max(0, len(answer) - 5), len(answer)))])
    before, behind = data.draw(st.binary(max_size=9)), data.draw(st.sampled_from([b"", body]))
    read = memoryview(before + body + behind)[len(before) : len(before) + len(body)]
    right = outcome(lambda: iter_records(body))
    assert outcome(lambda: messages_of(body, QUEUE, serde.raw)) == right
    assert outcome(lambda: messages_of(read, QUEUE, serde.raw, body_at=len(before))) == right


@given(st.lists(records(), max_size=6), st.sets(st.sampled_from(["a", "b", "\ufffd"])))
def test_messages_of_other_tags_are_omitted(whole: list[bytes], tags: set[str]):
    body = b"".join(whole)
    right = [facts(view) for view in iter_records(body) if view.tags in tags]
    found = messages_of(body, QUEUE, serde.raw, tags=frozenset(tags))
    assert [facts(message) for message in found] == right


def record(body: bytes, topic: str = "T", properties: bytes = b"UNIQ_KEY\x01ID") -> bytes:
    return encode_record(
        topic=topic,
        body=body,
        properties=properties,
        born_host=V4,
        store_host=V4,
        queue_id=2,
        queue_offset=17,
    )


RECORD = record(b"x" * 1000)


@pytest.mark.parametrize(
    ("read", "is_kept"),
    [(b"h" * 10 + RECORD, True), (b"h" * 3000 + RECORD, False)],
    ids=["its answer's own", "of many"],
)
def test_a_message_does_not_keep_a_larger_read_in_memory(read: bytes, is_kept: bool):
    begin = len(read) - len(RECORD)
    view = memoryview(read)[begin:]
    [message] = messages_of(view, QUEUE, serde.raw, body_at=begin)
    assert (message.body, message.topic, message.raw) == (b"x" * 1000, "T", RECORD)
    assert (message.raw.obj is read) == is_kept


@pytest.mark.parametrize("size", [10, COPY_BELOW], ids=["copied", "not copied"])
def test_messages_know_their_queue_and_offset(size: int):
    whole = record(b"x" * size)
    for message in messages_of(memoryview(whole * 3), QUEUE, serde.raw):
        assert isinstance(message, ReceivedMessage)
        assert (message.queue, message.offset, message.id) == (QUEUE, 17, "ID")
        assert (message.body, message.topic) == (b"x" * size, "T")
        assert message.raw == whole
        assert message.value == message.body
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            _ = message.nonsense  # type: ignore[attr-defined] - that is the point


def test_a_repeated_message_has_the_topic_that_it_was_sent_to():
    again = record(b"x", "%RETRY%g", b"RETRY_TOPIC\x01T\x02UNIQ_KEY\x01ID")
    settler: Any = object()
    [pushed] = messages_of(again, QUEUE, serde.raw, settler)
    [pulled] = messages_of(again, QUEUE, serde.raw)
    assert (pushed.topic, pulled.topic) == ("T", "%RETRY%g")
