"""Valid frames with invalid requests: each is answered, and the connection stays open."""

from __future__ import annotations

import re

import pytest

from remoting.protocol.codes import RequestCode, SerializeType
from remoting.protocol.command import Command, wire_names_of
from remoting.protocol.frame import encode
from remoting.protocol.own_codes import OwnRequestCode
from tests.integration.bad_input.peer import Peer, Target, as_msgpack, frame
from tests.unit.broker.harness import pull_command, send_command
from tests.unit.remoting.protocol.header_tables import REQUEST_HEADERS

CODES = sorted({*map(int, RequestCode), *map(int, OwnRequestCode)})

VALUES = {
    "texts": "abc",
    "ones": "1",
    "minus ones": "-1",
    "numbers above 64 bits": "9" * 29,
    "numbers of 5,000 digits": "9" * 5_000,
    "32-bit ends": "2147483648",
    "64-bit ends": "9223372036854775807",
    "fractions": "1.5",
    "other alphabets' digits": "\u0661\u0662",
    "empty texts": "",
    "control characters": "\x00\x01\x02\r\n",
    "long texts": "x" * 40_000,
    "paths": "../../../etc/passwd",
}

BODIES = {
    "not UTF-8": b"\xff\xfe\xfd",
    "an empty object": b"{}",
    "an empty list": b"[]",
    "null": b"null",
    "a number": b"5",
    "a text": b'"text"',
    "cut off": b'{"clientID":"a","consumerDataSet":[{"groupName":"g"',
    "wrong types": b'{"clientID":5,"consumerGroup":[],"mqSet":{},"topicList":"T","groupName":{}}',
    "lists of what they should not hold": b'{"clientID":"a","consumerDataSet":[1,null,"x",[]],'
    b'"producerDataSet":[[]],"mqSet":[5],"topicConfigList":[null],"groupConfigList":[7]}',
    "numbers out of range": b'{"groupName":"g","retryMaxTimes":' + b"9" * 400 + b"}",
    "infinity": b'{"groupName":"g","retryMaxTimes":1e999,"brokerId":NaN}',
    "objects as keys that never end": b'{"offsetTable":{{"topic":',
    "deep lists": b"[" * 200_000,
    "deep lists that end": b"[" * 200_000 + b"]" * 200_000,
    "deep objects": b'{"clientID":' * 200_000,
    "deep values": b'{"clientID":"a","consumerDataSet":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "deep object keys": b"{" * 200_000,
    "one text of 12 MiB": b'{"clientID":"' + b"x" * (12 << 20) + b'"}',
    "a list of 6 million numbers": b"[" + b"1," * 6_000_000 + b"1]",
    "3 million empty objects": b'{"consumerDataSet":[' + b"{}," * 3_000_000 + b"{}]}",
    "a million keys": b"{" + b",".join(b'"%d":0' % n for n in range(1_000_000)) + b"}",
    "keys that are all alike": b"{" + b'"a":0,' * 2_000_000 + b'"a":0}',
}

FAULT = re.compile(r"^\w*(Error|Exception|Warning)\b: |failed to serve")


def check_answer(answer: Command) -> None:
    """Check that an answer is a success or a clear refusal, not a handler's internal error."""
    assert answer.is_response
    if answer.code == 1:
        assert answer.remark
    assert not FAULT.search(answer.remark or ""), answer.remark


def fields_of(code: int, value: str) -> tuple[str, ...]:
    """Return the fields of a request that are set to ``value``."""
    header = REQUEST_HEADERS.get(code)
    names = ("topic", "consumerGroup") if header is None else wire_names_of(header)
    if value != "1":
        return names
    # A broker with a timeout of 1 ms is dead at the next scan, and its connection is closed.
    return tuple(name for name in names if not name.startswith("heartbeatTimeout"))


@pytest.mark.parametrize("serialize", [SerializeType.JSON, SerializeType.ROCKETMQ])
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_any_request_with_invalid_fields_is_answered(
    target: Target, value: str, serialize: SerializeType
) -> None:
    with target.peer() as peer:
        for code in CODES:
            names = fields_of(code, value)
            size = sum(map(len, names)) + len(names) * len(value)
            pairs = tuple((name, value if size < 500_000 else value[:1000]) for name in names)
            check_answer(peer.ask(Command(code, pairs=pairs, serialize=serialize)))


def test_any_request_without_its_fields_is_answered(target: Target) -> None:
    with target.peer() as peer:
        for code in CODES:
            check_answer(peer.ask(Command(code)))
            check_answer(peer.ask(Command(code, pairs=())))


SMALL = {name: body for name, body in BODIES.items() if len(body) < 1 << 20}
BIG = {name: body for name, body in BODIES.items() if name not in SMALL}
READERS = {
    "nameserver": (RequestCode.REGISTER_BROKER, OwnRequestCode.SUBSCRIBE_ROUTE),
    "broker": (
        RequestCode.HEART_BEAT,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    ),
}
"""Requests whose handlers read a body."""


def with_body(code: int, body: bytes) -> Command:
    """Return a request with valid fields, so that its handler reads the body."""
    pairs = tuple((name, "1") for name in fields_of(code, "1") if name not in {"bodyCrc32"})
    return Command(code, pairs=(*pairs, ("compressed", "false")), body=body)


@pytest.mark.parametrize("body", SMALL.values(), ids=SMALL)
def test_any_request_with_an_invalid_body_is_answered(target: Target, body: bytes) -> None:
    with target.peer() as peer:
        for code in CODES:
            check_answer(peer.ask(with_body(code, body)))


@pytest.mark.parametrize("body", BIG.values(), ids=BIG)
def test_a_huge_body_is_answered(target: Target, body: bytes) -> None:
    with target.peer() as peer:
        for code in READERS[target.name]:
            check_answer(peer.ask(with_body(code, body)))


@pytest.mark.parametrize("code", [-1, 0, 1, 29_999, 32_767, 65_536, 0x7FFF_FFFF, -0x8000_0000])
def test_an_unknown_request_code_is_answered_with_code_3(target: Target, code: int) -> None:
    with target.peer() as peer:
        answer = peer.ask(Command(code, body=b"whatever"))
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("topic", None, "the field topic is missing"),
        ("queueOffset", None, "the field queueOffset is missing"),
        ("queueOffset", "four", "the field queueOffset must be a number"),
        ("queueOffset", "9223372036854775808", "the field queueOffset must be a number"),
        ("queueId", "2147483648", "the field queueId must be a number"),
        ("queueId", "0x10", "the field queueId must be a number"),
    ],
)
def test_a_missing_or_non_numeric_field_is_named(
    broker: Target, field: str, value: str | None, expected: str
) -> None:
    pairs = dict(pull_command("T").all_pairs() or ())
    pairs.pop(field)
    if value is not None:
        pairs[field] = value
    with broker.peer() as peer:
        answer = peer.ask(Command(RequestCode.PULL_MESSAGE, pairs=tuple(pairs.items())))
        assert answer.code == 1
        assert expected.replace("number", "") in (answer.remark or "")


def test_a_field_of_a_route_request_that_is_missing_is_named(nameserver: Target) -> None:
    with nameserver.peer() as peer:
        answer = peer.ask(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC))
        assert answer.code == 1
        assert "the field topic is missing" in (answer.remark or "")


@pytest.mark.parametrize(
    "command",
    [
        pull_command("meanwhile", queue_id=-1),
        pull_command("meanwhile", queue_id=1 << 30),
        pull_command("meanwhile", queue_offset=-(1 << 63)),
        pull_command("meanwhile", queue_offset=(1 << 63) - 1),
        pull_command("meanwhile", max_msg_nums=-(1 << 31)),
        pull_command("meanwhile", max_msg_nums=(1 << 31) - 1),
        pull_command("meanwhile", max_msg_bytes=-1),
        pull_command("meanwhile", max_msg_bytes=(1 << 31) - 1),
        pull_command("meanwhile", suspend_timeout_millis=-(1 << 63), queue_offset=1 << 40),
        pull_command("meanwhile", sys_flag=-1, commit_offset=-1),
        pull_command("meanwhile", subscription="||||"),
        pull_command("meanwhile", subscription="a || " * 5_000),
        pull_command("meanwhile", subscription="a" * 100_000),
        pull_command("meanwhile", consumer_group="no/such group"),
        pull_command("meanwhile", consumer_group=""),
        pull_command("", queue_id=0),
        send_command("bad_input", queue_id=(1 << 31) - 1),
        send_command("bad_input", queue_id=-(1 << 31)),
        send_command("bad_input", default_topic_queue_nums=(1 << 31) - 1, queue_id=8),
        send_command("bad_input", default_topic="no-such-template"),
        send_command("bad_input", born_timestamp=-(1 << 63)),
        send_command("bad_input", reconsume_times=-(1 << 31)),
        send_command("bad_input", sys_flag=-1),
    ],
    ids=range(23),
)
def test_extreme_numbers_are_answered(broker: Target, command: Command) -> None:
    with broker.peer() as peer:
        check_answer(peer.ask(command))


@pytest.mark.parametrize(
    "value", ["-1", "0", "1", "2147483647", "-9223372036854775808", "9223372036854775807"]
)
def test_any_request_about_a_real_queue_with_extreme_numbers_is_answered(
    broker: Target, value: str
) -> None:
    names = {"topic": "numbers", "consumerGroup": "numbers", "group": "numbers", "queueId": "0"}
    with broker.peer() as peer:
        assert peer.ask(send_command("numbers")).code == 0
        for code in (*range(10, 40), *range(41, 43), 202, 208, 361):
            if code in {RequestCode.SEND_MESSAGE, RequestCode.UPDATE_AND_CREATE_TOPIC}:
                continue
            for one in (None, *fields_of(code, value)):
                pairs = tuple(
                    (
                        name,
                        value
                        if one in {None, name} and name not in names
                        else names.get(name, "0"),
                    )
                    for name in fields_of(code, value)
                )
                check_answer(peer.ask(Command(code, pairs=pairs)))


@pytest.mark.parametrize(
    "fields",
    [
        {"readQueueNums": "2147483647"},
        {"writeQueueNums": "65537"},
        {"readQueueNums": "-1"},
        {"perm": "-1"},
        {"perm": "16"},
        {"topicFilterType": "NO_TAG"},
        {"topic": "TBW102"},
    ],
    ids=range(7),
)
def test_a_topic_with_invalid_settings_is_refused(broker: Target, fields: dict[str, str]) -> None:
    pairs = {
        "topic": "senseless",
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        **fields,
    }
    with broker.peer() as peer:
        command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, pairs=tuple(pairs.items()))
        answer = peer.ask(command)
        assert answer.code == 1
        check_answer(answer)


@pytest.mark.parametrize("queues", [-1, 65_537, 0x7FFF_FFFF])
def test_a_group_with_invalid_settings_is_refused(broker: Target, queues: int) -> None:
    body = b'{"groupName":"senseless","retryQueueNums":%d}' % queues
    with broker.peer() as peer:
        answer = peer.ask(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))
        assert answer.code == 1
        check_answer(answer)


@pytest.mark.parametrize("key", ["kvConfigPath", "configStorePath", "configBlackList"])
def test_settings_that_name_files_are_not_changed_remotely(nameserver: Target, key: str) -> None:
    with nameserver.peer() as peer:
        body = f"{key}=/tmp/elsewhere\n".encode()
        assert peer.ask(Command(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)).code == 16


def test_many_bad_requests_in_a_row_are_each_answered(target: Target) -> None:
    with target.peer() as peer:
        for opaque in range(1000, 3000):
            peer.send(encode(Command(target.carrier, opaque=opaque, body=b"{")))
        assert {peer.read().opaque for _ in range(2000)} == set(range(1000, 3000))


# --- our own header codec, once it is agreed on


def agreed(target: Target) -> Peer:
    peer = target.peer()
    peer.agree_on_msgpack(target.carrier)
    return peer


def test_an_agreed_msgpack_request_is_answered_in_msgpack(target: Target) -> None:
    with agreed(target) as peer:
        peer.send(as_msgpack(target.harmless_request()))
        answer = peer.read()
        assert (answer.code, answer.serialize) == (0, SerializeType.MSGPACK)


@pytest.mark.parametrize("serialize", [SerializeType.JSON, SerializeType.MSGPACK])
@pytest.mark.parametrize(
    "values",
    [
        (),
        (None,) * 20,
        (True,) * 20,
        (1.5,) * 20,
        (-(1 << 63),) * 20,
        ((1 << 64) - 1,) * 20,
        ("x" * 100,) * 20,
        ("",) * 500,
    ],
    ids=range(8),
)
def test_any_msgpack_request_with_invalid_fields_is_answered(
    target: Target, values: tuple[object, ...], serialize: SerializeType
) -> None:
    with agreed(target) as peer:
        for code in CODES:
            body = b"{}" if serialize == SerializeType.JSON else b""
            peer.send(as_msgpack(Command(code, opaque=code, values=values, body=body)))
            check_answer(peer.read())


def wire(*values: bytes) -> bytes:
    """Return a msgpack header of these encoded values."""
    return bytes((0x90 | len(values),)) + b"".join(values)


NIL, NUMBER = b"\xc0", b"\x69"
BOMBS = {
    "lists within lists": b"\x91" * 100_000,
    "maps within maps": b"\x81\xa1a" * 100_000,
    "a list that claims 4 billion values": b"\xdd\xff\xff\xff\xff" + b"\xc0" * 100,
    "a map that claims 4 billion entries": b"\xdf\xff\xff\xff\xff" + b"\xa0\xa0" * 100,
    "a text that claims 4 GiB": wire(*[NUMBER] * 5, b"\xdb\xff\xff\xff\xffxx", NIL, NIL),
    "fields that claim 4 billion values": wire(
        *[NUMBER] * 5, NIL, b"\xdd\xff\xff\xff\xff" + b"\x01" * 100, NIL
    ),
    "extra that claims 4 billion entries": wire(
        *[NUMBER] * 5, NIL, NIL, b"\xdf\xff\xff\xff\xff\xa1a\xa1b"
    ),
    "more fields than may be": wire(
        *[NUMBER] * 5, NIL, b"\xdd\x00\x00\x02\x01" + b"\x01" * 513, NIL
    ),
    "nested fields": wire(*[NUMBER] * 5, NIL, b"\x91" * 50_000 + NIL, NIL),
    "an ext type": wire(*[NUMBER] * 5, NIL, b"\x91\xd6\xff\x00\x00\x00\x00", NIL),
    "an ext type that claims 4 GiB": wire(*[NUMBER] * 5, NIL, b"\x91\xc9\xff\xff\xff\xff\x05", NIL),
    "bytes as a code": wire(b"\xc4\x01a", *[NUMBER] * 4, NIL, NIL, NIL),
    "a code above 32 bits": wire(b"\xcf" + b"\xff" * 8, *[NUMBER] * 4, NIL, NIL, NIL),
    "a text that is not UTF-8": wire(*[NUMBER] * 5, b"\xa2\xff\xfe", NIL, NIL),
    "numbers as keys": wire(*[NUMBER] * 5, NIL, NIL, b"\x81\x01\xa1a"),
    "the never used byte": b"\xc1" * 100,
    "too few values": wire(NUMBER),
    "too many values": wire(*[NIL] * 9),
    "something behind the header": wire(*[NUMBER] * 5, NIL, NIL, NIL) + b"\xc0",
    "nothing": b"",
}


@pytest.mark.parametrize("header", BOMBS.values(), ids=BOMBS)
def test_a_msgpack_bomb_is_dropped(target: Target, header: bytes) -> None:
    with target.drops_a_peer() as peer:
        peer.agree_on_msgpack(target.carrier)
        peer.send(frame(header, serialize=2))
