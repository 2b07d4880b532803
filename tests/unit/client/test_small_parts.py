"""Durations and instants, serdes, back-off, heartbeats, forks, received messages."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

import client
from client import Instance, Producer, PullConsumer, PushConsumer, serde
from client.config import ConsumerOptions
from client.consumer.options import PushOptions
from client.consumer.received import ReceivedMessage
from client.errors import UnreadableMessage, UsageError
from client.lifecycle import Lifecycle, LifecycleState
from client.network.heartbeat import Members
from client.positions import check_group, check_topic_name, instant, milliseconds, seconds
from client.wire.backoff import Backoff
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.heartbeat import HeartbeatData, SubscriptionData
from remoting.protocol.message import compression
from remoting.protocol.message.record import encode_record, host_bytes
from remoting.protocol.queue import MessageQueue

QUEUE = MessageQueue("T", "a", 2)


def test_durations_are_seconds_or_timedeltas():
    assert seconds(1) == 1.0
    assert seconds(timedelta(milliseconds=250)) == 0.25
    for bad in (-1, "1", None, True, float("nan")):
        with pytest.raises(UsageError):
            seconds(bad)  # type: ignore[arg-type] # what is tested


def test_instants_need_a_time_zone_and_round_trip():
    at = datetime(2026, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)
    assert instant(milliseconds(at)) == at
    with pytest.raises(UsageError, match="no time zone"):
        milliseconds(at.replace(tzinfo=None))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("begin", client.FIRST),
        ("earliest", client.FIRST),
        ("First", client.FIRST),
        ("end", client.LAST),
        ("latest", client.LAST),
        ("LAST", client.LAST),
        ("17", 17),
        ("2026-01-31T12:00+00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31).astimezone(UTC)),
    ],
)
def test_start_from_is_written_as_on_the_command_line(text: str, place: Any):
    assert PushOptions.gather({"start_from": text}, env={}).start_from == place
    assert ConsumerOptions.gather({"start_from": text}, env={}).start_from == place


def test_start_from_may_be_some_time_ago():
    ago = timedelta(hours=1.5)
    before = datetime.now(UTC)
    start = PushOptions.gather({"start_from": "-1.5h"}, env={}).start_from
    assert isinstance(start, datetime)
    assert before <= start + ago <= datetime.now(UTC)


@pytest.mark.parametrize("bad", ["soon", "", "-1y", f"-{'9' * 400}h", True, None, 1.5])
def test_start_from_is_nothing_else(bad: Any):
    with pytest.raises(UsageError, match=r"is not begin, end|start_from can't be"):
        PushOptions.gather({"start_from": bad}, env={})


def test_a_send_status_is_written_by_name():
    assert str(client.SendStatus.OK) == f"{client.SendStatus.OK}" == "OK"
    assert client.SendStatus.FLUSH_DISK_TIMEOUT == 10


def test_the_format_of_a_typed_serde_is_checked():
    wrong: Any = "yaml"
    with pytest.raises(UsageError, match=r"format can't be 'yaml'.*json or msgpack"):
        serde.typed(Order, format=wrong)


@dataclass
class Order:
    number: int


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (serde.raw, b"\x00\xff"),
        (serde.text, "grüß"),
        (serde.json, {"a": [1, None, "ü"]}),
        (serde.msgpack, {"a": [1, b"x"]}),
        (serde.typed(Order), Order(5)),
        (serde.typed(Order, format="msgpack"), Order(5)),
    ],
    ids=repr,
)
def test_serdes_round_trip(kind: Any, value: Any):
    assert kind.loads(kind.dumps(value)) == value


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 12345678901234567890123])
def test_json_reads_a_whole_number_of_any_length_as_it_is(number: int):
    assert serde.json.loads(b'{"wei":%d}' % number) == {"wei": number}


def test_a_typed_serde_checks_what_it_reads():
    with pytest.raises(ValueError, match="number"):
        serde.typed(Order).loads(b'{"number":"x"}')
    with pytest.raises(ValueError, match="number"):
        serde.typed(Order, format="msgpack").loads(serde.msgpack.dumps({"number": "x"}))


class Model:
    """Has the methods of a pydantic model that ``typed`` uses."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.number == self.number

    __hash__ = None  # type: ignore[assignment] # as a model that isn't frozen

    def model_dump(self, *, by_alias: bool) -> dict[str, Any]:
        assert by_alias
        return {"Number": self.number}

    def model_dump_json(self, *, by_alias: bool) -> str:
        return serde.json.dumps(self.model_dump(by_alias=by_alias)).decode()

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if type(value["Number"]) is not int:
            raise ValueError("number")
        return cls(value["Number"])

    @classmethod
    def model_validate_json(cls, text: bytes) -> Model:
        return cls.model_validate(serde.json.loads(text))


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_a_typed_serde_for_a_pydantic_model_lets_the_model_read_and_write(form: Any):
    kind, plain = serde.typed(Model, format=form), getattr(serde, form)
    assert plain.loads(kind.dumps(Model(5))) == {"Number": 5}
    assert kind.loads(kind.dumps(Model(5))) == Model(5)
    with pytest.raises(ValueError, match="number"):
        kind.loads(plain.dumps({"Number": "x"}))


class Plain:
    """A class that nothing can read."""


@dataclass
class Holder:
    parts: list[Plain]


@dataclass
class Anything:
    value: object
    more: dict[str, Any]


@pytest.mark.parametrize("kind", [Plain, Holder, list[Plain], 5])
@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_a_class_that_could_never_be_read_is_refused_when_the_serde_is_made(kind: Any, form: Any):
    with pytest.raises(UsageError, match=r"typed can't read .*is not supported"):
        serde.typed(kind, format=form)


def test_a_field_may_hold_any_value():
    kind = serde.typed(Anything)
    assert kind.loads(kind.dumps(Anything([1], {"a": None}))) == Anything([1], {"a": None})


@pytest.mark.parametrize("wrong", [Order, Order(1), serde.typed, json.dumps, "json"])
def test_a_serde_without_dumps_or_loads_is_refused_when_a_client_is_made(wrong: Any):
    made = (
        lambda: Producer(serde=wrong),
        lambda: PullConsumer(group="g", serde=wrong),
        lambda: PushConsumer(group="g", subscribe={"T": "*"}, serde=wrong),
        lambda: Instance(serde=wrong),
    )
    for make in made:
        with pytest.raises(UsageError, match="lacks dumps or loads"):
            make()


@dataclass
class Delivery:
    at: datetime
    parcel: UUID
    rooms: dict[int, bytes]


AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DELIVERY = Delivery(AT, UUID(int=7), {1: b"x"})
DELIVERY_PACKED = (
    b"\x83\xa2at\xd6\xff" + int(AT.timestamp()).to_bytes(4) + b"\xa6parcel\xd9$"
    b"00000000-0000-0000-0000-000000000007\xa5rooms\x81\x01\xc4\x01x"
)


def test_msgpack_writes_instants_as_its_timestamps_and_ids_as_text():
    kind = serde.typed(Delivery, format="msgpack")
    assert kind.dumps(DELIVERY) == serde.msgpack.dumps(DELIVERY) == DELIVERY_PACKED
    assert kind.loads(DELIVERY_PACKED) == DELIVERY
    assert serde.msgpack.loads(DELIVERY_PACKED)["at"] == AT
    assert (
        serde.msgpack.loads(serde.msgpack.dumps(AT.replace(tzinfo=None))) == "2026-01-02T03:04:05"
    )


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91" * 5000, b"\xa1\xff", b"\xc0\xc0"])
@pytest.mark.parametrize("kind", [serde.msgpack, serde.typed(Order, format="msgpack")], ids=repr)
def test_what_is_not_msgpack_is_a_value_error(kind: Any, body: bytes):
    with pytest.raises(ValueError):  # noqa: PT011 - the library's own words
        kind.loads(body)


def test_msgpack_refuses_a_value_without_a_form():
    with pytest.raises(TypeError, match="object"):
        serde.msgpack.dumps({"a": object()})


def test_pauses_double_to_their_bound_with_jitter_and_begin_again():
    backoff = Backoff(random.Random(1), first=0.1, most=0.5)
    pauses = [backoff.next() for _ in range(6)]
    for pause, bound in zip(pauses, [0.1, 0.2, 0.4, 0.5, 0.5, 0.5], strict=True):
        assert bound / 2 <= pause <= bound
    backoff.reset()
    assert backoff.next() <= 0.1


def test_a_heartbeat_names_each_group_once_with_all_subscriptions():
    members = Members()
    assert members.empty
    members.add_producer("p")
    members.add_producer("p")
    first = lambda: [SubscriptionData(topic="A", sub_string="*")]  # noqa: E731
    second = lambda: [SubscriptionData(topic="B", sub_string="x")]  # noqa: E731
    members.add_consumer("c", first)
    members.add_consumer("c", second)
    [heartbeat] = members.heartbeats("id")
    body = decode(HeartbeatData, heartbeat.body)
    assert body.client_id == "id"
    assert [producer.group_name for producer in body.producer_data_set] == ["p"]
    [consumer] = body.consumer_data_set
    assert consumer.consume_type == "CONSUME_ACTIVELY"
    assert {one.topic for one in consumer.subscription_data_set} == {"A", "B"}
    assert members.consuming
    assert not members.remove_producer("p")
    assert members.remove_producer("p")
    assert not members.remove_consumer("c", first)
    assert members.remove_consumer("c", second)
    assert members.empty


def test_use_before_start_and_after_close_is_an_error():
    life = Lifecycle("producer")
    with pytest.raises(UsageError, match="not started"):
        life.check()
    life.state = LifecycleState.OPEN
    life.check()
    life.state = LifecycleState.CLOSED
    with pytest.raises(UsageError, match="closed"):
        life.check()


def test_use_in_a_fork_is_an_error():
    script = """
import os
from client.lifecycle import Lifecycle, LifecycleState

life = Lifecycle("producer")
life.state = LifecycleState.OPEN
if os.fork() == 0:
    try:
        life.check()
    except ValueError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
life.check()
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "before this process was forked" in done.stdout


@pytest.mark.parametrize("group", ["", "a b", "g" * 256, "DEFAULT_PRODUCER", "DEFAULT_CONSUMER"])
def test_bad_groups_are_refused(group: str):
    with pytest.raises(UsageError):
        check_group(group)


def test_bad_topics_are_refused():
    check_topic_name("T")
    with pytest.raises(UsageError):
        check_topic_name("a/b")


def received(body: bytes, sys_flag: int = 0, kind: Any = serde.raw) -> ReceivedMessage[Any]:
    host = host_bytes("10.0.0.1", 1234)
    record = encode_record(
        topic="T",
        body=body,
        properties=b"UNIQ_KEY\x01ID\x02TAGS\x01paid\x02KEYS\x01a b\x02p\x01v",
        born_host=host,
        store_host=host,
        queue_id=2,
        queue_offset=17,
        physical_offset=99,
        sys_flag=sys_flag,
        born_timestamp_ms=1_700_000_000_000,
        store_timestamp_ms=1_700_000_000_250,
        reconsume_times=3,
    )
    return ReceivedMessage(record, 0, QUEUE, kind)


def test_a_received_message_shows_what_was_sent():
    message = received(b'{"a":1}', kind=serde.json)
    assert message.body == b'{"a":1}'
    assert message.value == {"a": 1}
    assert (message.topic, message.queue, message.offset, message.id) == ("T", QUEUE, 17, "ID")
    assert (message.tag, message.keys, message.retries) == ("paid", ["a", "b"], 3)
    assert message.properties["p"] == "v"
    assert message.born_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert message.stored_at - message.born_at == timedelta(milliseconds=250)
    assert "T/a/2" in repr(message)


def test_the_id_of_a_batched_message_is_its_own_also_from_a_broker_that_appends_another():
    message = received(b"x")
    record = bytes(message.raw)
    text = b"UNIQ_KEY\x01MINE\x02a\x01b\x02UNIQ_KEY\x01BATCH"
    own = message.properties_text
    patched = record.replace(len(own).to_bytes(2, "big") + own, len(text).to_bytes(2, "big") + text)
    size = len(record) + len(text) - len(own)
    patched = size.to_bytes(4, "big") + patched[4:]
    assert ReceivedMessage(patched, 0, QUEUE, serde.raw).id == "MINE"
    assert ReceivedMessage(patched, 0, QUEUE, serde.raw).message_id == "BATCH"


def test_a_compressed_body_is_inflated_and_a_broken_one_says_which():
    packed, flags = compression.compress(b"x" * 5000)
    assert received(packed, flags).body == b"x" * 5000
    with pytest.raises(UnreadableMessage, match="offset 17"):
        _ = received(b"garbage", flags).body


def test_a_value_the_serde_cannot_read_says_which():
    with pytest.raises(UnreadableMessage, match="offset 17"):
        _ = received(b"{", kind=serde.json).value
