"""From an application's message to one ready to be sent."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from client import serde
from client.config import ProducerOptions
from client.errors import UsageError
from client.message import Message
from client.producer.columns import MessageColumns, Preparer
from remoting.protocol.limits import MAX_MESSAGE_BYTES
from remoting.protocol.message import batch as batches
from remoting.protocol.message import compression, properties
from remoting.protocol.message import record as sys_flag
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.queue import MessageQueue

ID_BYTES = len("UNIQ_KEY\x01ID0")


def preparer(kind: Any = serde.raw, **options: Any) -> Preparer[Any]:
    return Preparer(
        ProducerOptions(**options), kind, ID_BYTES, lambda: 1_700_000_000_000, lambda: 50.0
    )


def prepare(
    body: Any = b"x", topic: str = "T", timeout: Any = None, made: Any = None, **arguments: Any
) -> MessageColumns:
    return (made or preparer()).prepare(Message(topic, body, **arguments), timeout)


def props(columns: MessageColumns) -> Mapping[str, str]:
    columns.seal(lambda number: [f"ID{one}" for one in range(number)])
    return properties.decode(columns.texts[0])


def test_every_message_has_a_unique_id_and_what_it_was_given():
    columns = prepare(tag="paid", keys=["o-1", "o-2"], properties={"a": "1", "ü": "é"})
    assert props(columns) == {
        "UNIQ_KEY": "ID0",
        "TAGS": "paid",
        "KEYS": "o-1 o-2",
        "a": "1",
        "ü": "é",
    }
    assert (columns.ids, columns.born_ms, columns.deadline) == (["ID0"], 1_700_000_000_000, 53.0)
    assert columns.size == 22 + len(columns.texts[0]) + len(columns.bodies[0])
    assert not columns.fixed


@pytest.mark.parametrize(
    "arguments",
    [{"delay_level": 3}, {"wait": False}, {"timeout": 9.0}, {"flag": 7}],
    ids=["delayed", "not waiting for the disk", "own timeout", "flagged"],
)
def test_messages_with_special_fields_are_not_batched(arguments: dict[str, Any]):
    assert prepare(**arguments).fixed


def test_retry_topics_and_compressed_bodies_are_not_batched():
    assert prepare(topic="%RETRY%g").fixed
    assert prepare(b"x" * 5000).fixed


@pytest.mark.parametrize(("tag", "stored"), [(" a\t", "a"), ("a b", "a b"), (" ", None)])
def test_blanks_around_a_tag_are_removed_as_in_a_subscription(tag: str, stored: str | None) -> None:
    assert props(prepare(tag=tag)).get("TAGS") == stored
    assert stored is None or TagExpression.parse(tag).matches(stored)


def test_delay_and_wait_become_properties():
    found = props(prepare(delay_level=3, wait=False))
    assert (found["DELAY"], found["WAIT"]) == ("3", "false")


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_bodies_from_4096_bytes_are_compressed(kind: str):
    make = preparer(compress=kind)
    body = b"abc" * 2000
    assert prepare(body[:4095], made=make).sys_flag == 0
    columns = prepare(body[:4096], made=make)
    assert columns.sys_flag & sys_flag.COMPRESSED
    [packed] = columns.bodies
    assert compression.decompress(packed, columns.sys_flag, max_bytes=10_000) == body[:4096]


def test_a_body_that_does_not_shrink_is_sent_as_it_is():
    noise = random.Random(1).randbytes(5000)
    columns = prepare(noise)
    assert (columns.bodies, columns.sys_flag, columns.fixed) == ([noise], 0, False)


def test_nothing_is_compressed_when_that_is_switched_off():
    assert prepare(b"x" * 10_000, made=preparer(compress=None)).sys_flag == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"topic": ""}, "blank"),
        ({"topic": "a.b"}, "illegal characters"),
        ({"topic": "t" * 128}, "128 characters"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "only brokers write"),
        ({"body": b""}, "can't be empty"),
        ({"body": "text"}, "has to be bytes, not str"),
        ({"body": None}, "has to be bytes, not NoneType"),
        ({"body": b"x" * (MAX_MESSAGE_BYTES + 1)}, "too large"),
        ({"tag": "a\x01b"}, "0x01"),
        ({"tag": "paid || refunded"}, "a message has one tag"),
        ({"keys": "o-1"}, "write ['o-1']"),
        ({"keys": ["a b"]}, "blank"),
        ({"keys": [""]}, "empty"),
        ({"properties": {"KEYS": "x"}}, "KEYS is reserved"),
        ({"properties": {"TIMER_OUT_MS": "1"}, "delay": 60}, "TIMER_OUT_MS is reserved"),
        ({"properties": {"a": "b\x02"}}, "0x02"),
        ({"properties": {"a": ""}}, "empty"),
        ({"properties": {"a": 5}}, "not text"),
        ({"properties": {"a": "x" * 33_000}}, "32767"),
        ({"tag": "\udce9"}, "'\\udce9', which is not UTF-8"),
        ({"tag": 5}, "not text"),
        ({"keys": ["\udce9"]}, "not UTF-8"),
        ({"keys": [b"o-1"]}, "not text"),
        ({"keys": 5}, "not text"),
        ({"properties": {"a": "é\udce9"}}, "not UTF-8"),
        ({"properties": {"\udce9": "a" * 9000}}, "not UTF-8"),
        ({"properties": "a"}, "not text"),
        ({"deliver_at": 1_700_000_000.5}, "has to be a datetime"),
        ({"delay_level": -1}, "delay_level"),
        ({"delay_level": 19}, "max_delay_level="),
        ({"delay_level": True}, "delay_level"),
        ({"flag": 2**31}, "32 signed bits"),
        ({"timeout": -1}, "timeout"),
        ({"sharding_key": 5}, "has to be text"),
        ({"queue": MessageQueue("Other", "a", 0)}, "another topic"),
        ({"queue": MessageQueue("T", "a", 0), "sharding_key": "k"}, "either"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_sending(arguments: dict[str, Any], words: str):
    with pytest.raises(UsageError) as caught:
        prepare(**arguments)
    assert words in str(caught.value)


def test_a_broker_may_have_more_delay_levels():
    make = preparer(max_delay_level=30)
    assert props(prepare(delay_level=30, made=make))["DELAY"] == "30"
    with pytest.raises(UsageError, match="use 1 to 30"):
        prepare(delay_level=31, made=make)


def test_the_largest_body_is_accepted():
    columns = prepare(b"x" * MAX_MESSAGE_BYTES, made=preparer(compress=None))
    assert len(columns.bodies[0]) == MAX_MESSAGE_BYTES


def test_bytearrays_and_views_are_bodies_too():
    assert prepare(bytearray(b"ab")).bodies == [b"ab"]
    assert prepare(memoryview(b"ab")).bodies == [b"ab"]


def test_a_serde_writes_the_body_and_its_failure_is_a_usage_error():
    assert prepare({"a": 1}, made=preparer(serde.json)).bodies == [b'{"a":1}']
    with pytest.raises(UsageError, match=r"client\.serde\.json can't write"):
        prepare(object(), made=preparer(serde.json))


def test_a_chosen_queue_is_the_lane_and_a_key_waits_for_the_route():
    queue = MessageQueue("T", "a", 3)
    assert prepare(queue=queue).lane == queue
    keyed = prepare(sharding_key="k")
    assert (keyed.lane, keyed.sharding_key) == ("T", "k")


def batch(*messages: Message[bytes]) -> MessageColumns:
    return preparer(compress=None).prepare_batch(messages, None)


def test_a_batch_has_one_topic_no_delays_and_a_bounded_size():
    with pytest.raises(UsageError, match="at least one"):
        batch()
    with pytest.raises(UsageError, match="one topic only"):
        batch(Message("A", b"x"), Message("B", b"x"))
    with pytest.raises(UsageError, match="delayed"):
        batch(Message("A", b"x", delay_level=1), Message("A", b"x"))
    with pytest.raises(UsageError, match="retry topics"):
        batch(Message("%RETRY%g", b"x"), Message("%RETRY%g", b"x"))
    big = Message("A", b"x" * (MAX_MESSAGE_BYTES // 2))
    with pytest.raises(UsageError, match="too large"):
        batch(big, big)


def test_a_batch_keeps_tags_and_flags_and_leaves_as_one_request():
    made = batch(
        Message("A", b"x"), Message("A", b"y", tag="t", flag=7), Message("A", b"z", keys=["k"])
    )
    made.seal(lambda number: [f"ID{one}" for one in range(number)])
    elements = list(batches.iter_elements(made.payload().body))
    assert made.fixed
    assert [(element.flag, bytes(element.body)) for element in elements] == [
        *((0, b"x"), (7, b"y"), (0, b"z"))
    ]
    assert [properties.decode(bytes(element.properties)) for element in elements] == [
        {"UNIQ_KEY": "ID0"},
        {"UNIQ_KEY": "ID1", "TAGS": "t"},
        {"UNIQ_KEY": "ID2", "KEYS": "k"},
    ]
