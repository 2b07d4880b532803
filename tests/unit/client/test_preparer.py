"""From an application's message to one that is ready for the wire."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest

from client import serde
from client.config import ProducerOptions
from client.errors import UsageError
from client.message import Message
from client.producer.preparer import Preparer, check_batch
from remoting.protocol.limits import MAX_MESSAGE_BYTES
from remoting.protocol.message import compression, properties, sys_flag
from remoting.protocol.queue import MessageQueue


def preparer(kind: Any = serde.raw, **options: Any) -> Preparer[Any]:
    numbers = count()
    return Preparer(
        ProducerOptions(**options),
        kind,
        lambda: f"ID{next(numbers)}",
        lambda: 1_700_000_000_000,
        lambda: 50.0,
    )


def props(text: str) -> Mapping[str, str]:
    return properties.decode(text.encode())


def test_every_message_has_a_unique_id_and_what_it_was_given():
    item = preparer().prepare(
        "T", b"x", tag="paid", keys=["o-1", "o-2"], properties={"a": "1", "ü": "é"}, flag=7
    )
    assert props(item.properties) == {
        "UNIQ_KEY": "ID0",
        "TAGS": "paid",
        "KEYS": "o-1 o-2",
        "a": "1",
        "ü": "é",
    }
    assert (item.id, item.flag, item.born_ms, item.deadline) == ("ID0", 7, 1_700_000_000_000, 53.0)
    assert not item.alone


def test_a_message_object_says_the_same_as_arguments():
    message = Message("T", b"x", tag="t", keys=["k"], properties={"p": "v"}, sharding_key="s")
    item = preparer().message(message, None)
    assert props(item.properties) == {"UNIQ_KEY": "ID0", "TAGS": "t", "KEYS": "k", "p": "v"}
    assert item.sharding_key == "s"


@pytest.mark.parametrize(
    "arguments",
    [{"delay_level": 3}, {"wait": False}, {"timeout": 9.0}],
    ids=["delayed", "not waiting for the disk", "own timeout"],
)
def test_what_differs_from_its_company_is_not_batched(arguments: dict[str, Any]):
    assert preparer().prepare("T", b"x", **arguments).alone


def test_retry_topics_and_compressed_bodies_are_not_batched():
    assert preparer().prepare("%RETRY%g", b"x").alone
    assert preparer().prepare("T", b"x" * 5000).alone


def test_delay_and_wait_become_properties():
    item = preparer().prepare("T", b"x", delay_level=3, wait=False)
    assert props(item.properties)["DELAY"] == "3"
    assert props(item.properties)["WAIT"] == "false"
    assert item.delayed


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_bodies_from_4096_bytes_are_compressed(kind: str):
    make = preparer(compress=kind)
    body = b"abc" * 2000
    assert make.prepare("T", body[:4095]).sys_flag == 0
    item = make.prepare("T", body[:4096])
    assert item.sys_flag & sys_flag.COMPRESSED
    assert compression.decompress(item.body, item.sys_flag, max_bytes=10_000) == body[:4096]


def test_a_body_that_does_not_shrink_is_sent_as_it_is():
    noise = random.Random(1).randbytes(5000)
    item = preparer().prepare("T", noise)
    assert (item.body, item.sys_flag, item.alone) == (noise, 0, False)


def test_nothing_is_compressed_when_that_is_switched_off():
    assert preparer(compress=None).prepare("T", b"x" * 10_000).sys_flag == 0


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
        ({"properties": {"KEYS": "x"}}, "meaning of its own"),
        ({"properties": {"a": "b\x02"}}, "0x02"),
        ({"properties": {"a": ""}}, "empty"),
        ({"properties": {"a": 5}}, "not text"),
        ({"properties": {"a": "x" * 33_000}}, "32767"),
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
    full = {"topic": "T", "body": b"x", **arguments}
    with pytest.raises(UsageError) as caught:
        preparer().prepare(**full)
    assert words in str(caught.value)


def test_a_broker_may_have_more_delay_levels():
    item = preparer(max_delay_level=30).prepare("T", b"x", delay_level=30)
    assert props(item.properties)["DELAY"] == "30"
    with pytest.raises(UsageError, match="use 1 to 30"):
        preparer(max_delay_level=30).prepare("T", b"x", delay_level=31)


def test_the_largest_body_is_accepted():
    assert len(preparer(compress=None).prepare("T", b"x" * MAX_MESSAGE_BYTES).body) > 0


def test_bytearrays_and_views_are_bodies_too():
    assert preparer().prepare("T", bytearray(b"ab")).body == b"ab"
    assert preparer().prepare("T", memoryview(b"ab")).body == b"ab"


def test_a_serde_writes_the_body_and_its_failure_is_a_usage_error():
    assert preparer(serde.json).prepare("T", {"a": 1}).body == b'{"a":1}'
    with pytest.raises(UsageError, match=r"client\.serde\.json can't write"):
        preparer(serde.json).prepare("T", object())


def test_a_chosen_queue_is_the_lane_and_a_key_waits_for_the_route():
    queue = MessageQueue("T", "a", 3)
    assert preparer().prepare("T", b"x", queue=queue).lane == queue
    keyed = preparer().prepare("T", b"x", sharding_key="k")
    assert keyed.lane == "T"
    assert keyed.queue([queue]) == queue


def test_a_batch_has_one_topic_no_delays_and_a_bounded_size():
    make = preparer(compress=None)
    with pytest.raises(UsageError, match="at least one"):
        check_batch([])
    with pytest.raises(UsageError, match="one topic only"):
        check_batch([make.prepare("A", b"x"), make.prepare("B", b"x")])
    with pytest.raises(UsageError, match="delayed"):
        check_batch([make.prepare("A", b"x", delay_level=1), make.prepare("A", b"x")])
    with pytest.raises(UsageError, match="retry topics"):
        check_batch([make.prepare("%RETRY%g", b"x"), make.prepare("%RETRY%g", b"x")])
    big = make.prepare("A", b"x" * (MAX_MESSAGE_BYTES // 2))
    with pytest.raises(UsageError, match="too large"):
        check_batch([big, big])
    check_batch([make.prepare("A", b"x"), make.prepare("A", b"y")])
