"""Messages, names and registrations above their limits are refused with a reason."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import zstandard

import client
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.group import LockBatchRequestBody, SubscriptionGroupConfig
from remoting.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import CreateTopicRequestHeader, RegisterBrokerRequestHeader
from remoting.protocol.headers.pull import GetMaxOffsetRequestHeader, OffsetResponseHeader
from remoting.protocol.limits import (
    MAX_BATCH_MESSAGES,
    MAX_INFLATED_MESSAGE_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_LENGTH,
)
from remoting.protocol.message import batch
from tests.integration.bad_input.conftest import Servers
from tests.integration.bad_input.peer import PATIENCE, Peer, Target
from tests.integration.bad_input.test_requests import check_answer
from tests.unit.broker.harness import pull_command, send_command

MIB = 1024 * 1024

ILLEGAL_NAMES = {
    "a path upwards": "../../etc",
    "an absolute path": "/etc/passwd",
    "dots": "..",
    "one dot": ".",
    "a path below": "a/b",
    "a path of Windows": "a\\..\\b",
    "a null character": "a\x00b",
    "a space": "a b",
    "blanks": "   ",
    "a line end": "topic\n",
    "a dot within": "a.b",
    "other letters": "\u0442\u043e\u043f\u0438\u043a",
    "beyond the basic plane": "\U0001d54f",
    "a path behind a prefix": "%RETRY%../../etc",
    "a path behind another": "%DLQ%/etc",
}


def max_offset(peer: Peer, topic: str) -> int:
    header = GetMaxOffsetRequestHeader(topic=topic, queue_id=0)
    answer = peer.ask(Command.request(RequestCode.GET_MAX_OFFSET, header))
    assert answer.code == 0, answer.remark
    return answer.read(OffsetResponseHeader).offset


# --- names


@pytest.mark.parametrize("name", [*ILLEGAL_NAMES.values(), ""], ids=[*ILLEGAL_NAMES, "no name"])
def test_an_illegal_name_is_refused_and_creates_no_file(
    peer: Peer, broker: Target, name: str
) -> None:
    group = SubscriptionGroupConfig(group_name=name)
    requests = [
        send_command(name),
        send_command(name, code=RequestCode.SEND_BATCH_MESSAGE, batch=True),
        pull_command(name),
        pull_command("meanwhile", consumer_group=name),
        Command.request(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            CreateTopicRequestHeader(
                topic=name,
                default_topic="TBW102",
                read_queue_nums=1,
                write_queue_nums=1,
                perm=6,
                topic_filter_type="SINGLE_TAG",
                topic_sys_flag=0,
                order=False,
            ),
        ),
        Command.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode(group)),
        Command.request(
            RequestCode.HEART_BEAT,
            body=encode(HeartbeatData("c", [], [ConsumerData(group_name=name)])),
        ),
        Command.request(
            RequestCode.HEART_BEAT, body=encode(HeartbeatData("c", [ProducerData(name)], []))
        ),
        Command.request(
            RequestCode.LOCK_BATCH_MQ,
            body=encode(LockBatchRequestBody(consumer_group=name, client_id="c")),
        ),
    ]
    for request in requests:
        answer = peer.ask(request)
        assert answer.code in {1, 17, 26}, request
        check_answer(answer)
    store = store_of(broker)
    names = {path.name for path in (store / "consumequeue").iterdir()}
    assert all(part.replace("-", "").replace("_", "").isalnum() for part in names), names
    assert not (store.parent / "etc").exists()


def store_of(target: Target) -> Path:
    command = target.process.command
    return Path(command[command.index("--store") + 1])


def test_a_topic_of_maximum_length_is_accepted_and_a_longer_one_is_not(peer: Peer) -> None:
    assert peer.ask(send_command("t" * MAX_TOPIC_LENGTH)).code == 0
    answer = peer.ask(send_command("t" * (MAX_TOPIC_LENGTH + 1)))
    assert answer.code == 1
    assert f"at most {MAX_TOPIC_LENGTH}" in (answer.remark or "")


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_the_brokers_own_topics_accept_no_message(peer: Peer, topic: str) -> None:
    assert peer.ask(send_command(topic)).code == 16


# --- sizes


def test_a_body_of_maximum_size_is_accepted_and_a_larger_one_is_not(peer: Peer, topic: str) -> None:
    assert peer.ask(send_command(topic, bytes(MAX_MESSAGE_BYTES))).code == 0
    answer = peer.ask(send_command(topic, bytes(MAX_MESSAGE_BYTES + 1)))
    assert answer.code == 13
    assert "maxMessageSize" in (answer.remark or "")
    assert max_offset(peer, topic) == 1


def test_properties_that_leave_room_for_a_retry_are_accepted_and_larger_ones_are_not(
    peer: Peer, topic: str
) -> None:
    refused = peer.ask(send_command(topic, properties="k\x01" + "v" * (MAX_PROPERTIES_BYTES - 2)))
    assert refused.code == 13
    sizes = re.search(r"take (\d+) bytes.* use at most (\d+)", refused.remark or "")
    assert sizes is not None
    taken, most = map(int, sizes.groups())
    fits = "k\x01" + "v" * (MAX_PROPERTIES_BYTES - 2 - (taken - most))
    assert peer.ask(send_command(topic, properties=fits)).code == 0
    answer = peer.ask(send_command(topic, properties=f"{fits}v"))
    assert answer.code == 13
    assert max_offset(peer, topic) == 1


@pytest.mark.parametrize(
    "properties",
    [
        "\x01\x01\x01\x02\x02\x02",
        "no separator",
        "\x00" * 1000,
        "KEYS\x01a\x02" * 1000,
        "\x01value without a name\x02",
        "TAGS\x01" + "\U0001d54f" * 1000,
        "UNIQ_KEY\x01../../etc\x02",
        "DELAY\x01nine\x02",
    ],
    ids=range(8),
)
async def test_odd_properties_are_stored_or_refused_and_break_no_reader(
    peer: Peer, topic: str, servers: Servers, properties: str
) -> None:
    answer = peer.ask(send_command(topic, b"odd", properties=properties))
    assert answer.code in {0, 13}
    assert peer.ask(send_command(topic, b"plain")).code == 0
    found = await read(servers, topic, 2 - (answer.code != 0))
    for message in found:
        assert isinstance(message.properties, dict)
        assert isinstance(message.keys, list)
        assert isinstance(message.tag, str | None)
        assert message.id
    assert found[-1].body == b"plain"


@pytest.mark.parametrize("bits", [0x10, 0x20, 0x30])
async def test_flags_that_lie_about_addresses_do_not_shift_the_record(
    peer: Peer, topic: str, servers: Servers, bits: int
) -> None:
    assert peer.ask(send_command(topic, b"first", sys_flag=bits)).code == 0
    assert peer.ask(send_command(topic, b"second")).code == 0
    assert [message.body for message in await read(servers, topic, 2)] == [b"first", b"second"]


# --- batches


def element(
    body: bytes = b"body",
    properties: bytes = b"",
    *,
    body_length: int | None = None,
    properties_length: int | None = None,
) -> bytes:
    """An element of a batch, whose lengths may lie."""
    return (
        struct.pack(">iiii", 0, 0, 0, 0)
        + struct.pack(">i", len(body) if body_length is None else body_length)
        + body
        + struct.pack(">h", len(properties) if properties_length is None else properties_length)
        + properties
    )


GOOD = element()
BATCHES = {
    "nothing": b"",
    "a part of the first numbers": GOOD[:10],
    "cut off in a body": GOOD + GOOD[:21],
    "cut off in the properties": GOOD + element(properties=b"a\x01b")[:-1],
    "a negative body": GOOD + element(body_length=-1),
    "a body beyond the end": GOOD + element(body_length=1000),
    "a body of 2 GiB": GOOD + element(body_length=0x7FFF_FFFF),
    "negative properties": GOOD + element(properties_length=-1),
    "properties beyond the end": GOOD + element(properties_length=32767),
    "a byte too many": GOOD + b"\x00",
    "zeros, not a multiple of an empty message": bytes(1000),
    "0x7f all over": b"\x7f" * 1000,
    "more messages than may be": element(b"") * (MAX_BATCH_MESSAGES + 1),
    "more bytes than may be": element(bytes(MIB)) * 5,
    "properties that get too long": GOOD + element(properties=b"a\x01" + b"b" * 32_760),
}


@pytest.mark.parametrize("body", BATCHES.values(), ids=BATCHES)
def test_a_batch_with_an_invalid_message_is_refused_as_a_whole(
    peer: Peer, topic: str, body: bytes
) -> None:
    assert peer.ask(send_command(topic)).code == 0
    command = send_command(topic, body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
    answer = peer.ask(command)
    assert answer.code == 13
    assert answer.remark
    assert max_offset(peer, topic) == 1


def test_a_batch_sent_as_one_message_is_one(peer: Peer, topic: str) -> None:
    body = batch.encode([(0, b"a", b""), (0, b"b", b"")])
    assert peer.ask(send_command(topic, body)).code == 0
    assert max_offset(peer, topic) == 1


# --- decompression bombs


BOMB_BYTES = MAX_INFLATED_MESSAGE_BYTES + 1
ZLIB, LZ4, ZSTD = 0x301, 0x101, 0x201
UNREADABLE = {
    "a zlib bomb": (zlib.compress(bytes(BOMB_BYTES)), ZLIB),
    "a zlib bomb of old": (zlib.compress(bytes(BOMB_BYTES)), 0x1),
    "a zlib bomb of 256 MiB": (zlib.compress(bytes(256 * MIB)), ZLIB),
    "an LZ4 bomb": (lz4.frame.compress(bytes(BOMB_BYTES)), LZ4),
    "a zstd bomb": (zstandard.ZstdCompressor().compress(bytes(BOMB_BYTES)), ZSTD),
    "a zstd bomb that tells no size": (
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(BOMB_BYTES)),
        ZSTD,
    ),
    "a zstd bomb that lies about its size": (
        b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 7 + b"\x0f" + bytes(20),
        ZSTD,
    ),
    "no zlib": (b"plain", ZLIB),
    "no LZ4": (b"plain", LZ4),
    "no zstd": (b"plain", ZSTD),
    "an unknown kind": (b"plain", 0x701),
    "zlib cut off": (zlib.compress(b"x" * 100)[:-6], ZLIB),
    "LZ4 cut off": (lz4.frame.compress(b"x" * 100)[:-6], LZ4),
    "zstd cut off": (zstandard.ZstdCompressor().compress(b"x" * 100)[:-6], ZSTD),
}


async def read(servers: Servers, topic: str, number: int) -> list[client.ReceivedMessage[bytes]]:
    """Read a number of messages of a topic with our client."""
    found: list[client.ReceivedMessage[bytes]] = []
    async with client.PullConsumer(servers.nameserver.address, group="limits") as consumer:
        queues = await consumer.queues(topic)
        consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, client.BEGIN)
        while len(found) < number:
            more = await consumer.get_many(number, timeout=PATIENCE)
            assert more, f"{len(found)} of {number}"
            found += more
    return found


async def test_a_body_that_does_not_inflate_is_unreadable_and_the_client_continues(
    peer: Peer, topic: str, servers: Servers
) -> None:
    for body, bits in UNREADABLE.values():
        assert peer.ask(send_command(topic, body, sys_flag=bits)).code == 0
        assert peer.ask(send_command(topic, b"readable")).code == 0
    found = await read(servers, topic, 2 * len(UNREADABLE))
    for (body, _), bad, good in zip(UNREADABLE.values(), found[::2], found[1::2], strict=True):
        with pytest.raises(client.UnreadableMessage, match="can't be read"):
            _ = bad.body
        with pytest.raises(client.UnreadableMessage):
            _ = bad.value
        assert bytes(bad.stored_body) == body
        assert good.value == b"readable"


# --- registrations at a name server


def numbered(*parts: bytes | int) -> bytes:
    """A compressed registration: texts get their length before them, numbers stand alone."""
    return zlib.compress(
        b"".join(
            struct.pack(">i", part)
            if isinstance(part, int)
            else struct.pack(">i", len(part)) + part
            for part in parts
        )
    )


VERSION = b'{"counter":1,"timestamp":1}'
REGISTRATIONS = {
    "a bomb of 256 MiB": zlib.compress(bytes(256 * MIB)),
    "a bomb just below the bound": zlib.compress(bytes(63 * MIB)),
    "no zlib": b"plain text",
    "cut off": numbered(VERSION, 0, b"[]")[:-8],
    "a negative length": numbered(-1),
    "a length of 2 GiB": numbered(0x7FFF_FFFF),
    "a negative number of topics": numbered(VERSION, -1, b"[]"),
    "2 billion topics": numbered(VERSION, 0x7FFF_FFFF, b"T 1 1 6 SINGLE_TAG"),
    "fewer topics than announced": numbered(VERSION, 5, b"T 1 1 6 SINGLE_TAG"),
    "a topic with too few words": numbered(VERSION, 1, b"T 1 1", b"[]"),
    "a topic with a text as number": numbered(VERSION, 1, b"T one 1 6 SINGLE_TAG", b"[]"),
    "a topic that is not UTF-8": numbered(VERSION, 1, b"\xff\xfe 1 1 6 SINGLE_TAG", b"[]"),
    "a version that is deep": numbered(b"[" * 1_000_000, 0, b"[]"),
    "filter servers that are deep": numbered(VERSION, 0, b"[" * 1_000_000),
    "filter servers that are no list": numbered(VERSION, 0, b"{}"),
}


def registration(body: bytes, **fields: Any) -> Command:
    header = RegisterBrokerRequestHeader(
        **{
            "broker_name": "false-broker",
            "broker_addr": "192.0.2.1:10911",
            "cluster_name": "DefaultCluster",
            "ha_server_addr": "192.0.2.1:10912",
            "broker_id": 0,
            **fields,
        }
    )
    return Command.request(RequestCode.REGISTER_BROKER, header, body=body)


@pytest.mark.parametrize("body", REGISTRATIONS.values(), ids=REGISTRATIONS)
def test_a_compressed_registration_with_a_false_size_is_refused(
    nameserver: Target, body: bytes
) -> None:
    with nameserver.peer() as peer:
        answer = peer.ask(registration(body, compressed=True))
        assert answer.code == 1
        check_answer(answer)


def test_a_registration_with_another_checksum_is_refused(nameserver: Target) -> None:
    with nameserver.peer() as peer:
        answer = peer.ask(registration(b"{}", body_crc32=12345))
        assert (answer.code, answer.remark) == (1, "crc32 not match")


@pytest.mark.parametrize(
    "fields",
    [
        {"broker_name": ""},
        {"broker_name": "x" * 300},
        {"broker_name": "a\x00b"},
        {"broker_addr": ""},
        {"broker_addr": "x" * 300},
        {"cluster_name": "\r\n"},
        {"broker_id": -1},
    ],
    ids=range(7),
)
def test_a_registration_under_an_impossible_name_is_refused(
    nameserver: Target, fields: dict[str, Any]
) -> None:
    with nameserver.peer() as peer:
        answer = peer.ask(registration(b"", **fields))
        assert answer.code == 1
        check_answer(answer)
