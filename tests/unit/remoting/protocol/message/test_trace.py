"""Records of the message trace."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.message import trace
from remoting.protocol.message.trace import TraceRecord, decode, messages_of

WORDS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=20
).filter(lambda text: text != trace.ABSENT)
NUMBERS = st.integers(0, 2**31 - 1)

PUB = {
    "time_ms": NUMBERS,
    "region": WORDS,
    "group": WORDS,
    "topic": WORDS,
    "message_id": WORDS,
    "tags": WORDS,
    "keys": WORDS,
    "store_host": WORDS,
    "body_bytes": NUMBERS,
    "cost_ms": NUMBERS,
    "message_type": st.integers(0, 9),
    "offset_id": WORDS,
    "success": st.booleans(),
}
FIELDS: dict[str, dict[str, Any]] = {
    "Pub": PUB,
    "SubBefore": {
        **{name: PUB[name] for name in ("time_ms", "region", "group", "message_id", "keys")},
        "request_id": WORDS,
        "retries": NUMBERS,
    },
    "SubAfter": {
        **{name: PUB[name] for name in ("time_ms", "group", "message_id", "cost_ms", "keys")},
        "request_id": WORDS,
        "success": st.booleans(),
        "result": st.integers(0, 9),
    },
    "EndTransaction": {
        **{name: PUB[name] for name in ("time_ms", "region", "group", "topic", "message_id")},
        **{name: PUB[name] for name in ("tags", "keys", "store_host", "message_type")},
        "transaction_id": WORDS,
        "state": WORDS,
        "from_check": st.booleans(),
    },
    "Recall": {
        **{name: PUB[name] for name in ("time_ms", "region", "group", "topic", "message_id")},
        "success": st.booleans(),
    },
}
RECORDS = st.sampled_from(sorted(FIELDS)).flatmap(
    lambda kind: st.builds(lambda **read: TraceRecord(kind=kind, **read), **FIELDS[kind])
)


@given(st.lists(RECORDS))
def test_records_survive_a_round_trip(records: list[TraceRecord]):
    body = "".join(record.encode() for record in records).encode()
    assert decode(body) == records


@given(st.binary())
def test_any_bytes_are_read(body: bytes):
    decode(body)


@given(st.lists(RECORDS), st.data())
def test_a_damaged_record_costs_no_other(records: list[TraceRecord], data: Any):
    texts = [record.encode() for record in records]
    at = data.draw(st.integers(0, len(texts)))
    texts.insert(at, data.draw(st.text(st.characters(exclude_categories=["Cs"]))) + "\x02")
    found = decode("".join(texts).encode())
    assert [record for record in found if record in records][:at] == records[:at]
    assert len(found) >= len(records)


def test_the_text_of_a_record_is_rocketmqs():
    record = TraceRecord(
        kind="Pub",
        time_ms=7,
        region="r",
        group="g",
        topic="t",
        message_id="i",
        store_host="h:1",
        body_bytes=3,
        cost_ms=2,
        message_type=trace.TracedMessageType.DELAYED,
        offset_id="o",
        success=False,
    )
    # Java writes an absent tag and absent keys so.
    assert (
        record.encode() == "Pub 7 r g t i null null h:1 3 2 3 o false".replace(" ", "\x01") + "\x02"
    )


CAPTURED = [
    # Java 4.9.7 at a 4.9 broker, and 5.3.3; the fields of a record separated by commas,
    # and the ids shortened.
    "Pub,1795539431389,DefaultRegion,java-shop,T,FD00A0,plain,o-1 o-2,127.0.0.1:37479,3,26,0,7F67,"
    "true",
    "Pub,1795539431417,DefaultRegion,java-shop,T,FD00F8,half,null,127.0.0.1:37479,3,3,1,7FCF,true",
    "EndTransaction,1795539431430,DefaultRegion,java-shop,T,FD00F8,half,null,127.0.0.1:37479,2,FD00F8,"
    "COMMIT_MESSAGE,false",
    "SubBefore,1795539431447,null,java-billing,FD0007,FD00F8,0,null",
    "SubAfter,FD0007,FD00F8,0,true,null,0,1795539431447,java-billing",
    "SubAfter,FD0002,FD00A0,2,false,o-1 o-2,4,1795539431418,java-billing",
    "Recall,1795540579070,DefaultRegion,java-shop,T,FD0005,true",
]


def test_records_of_java_are_read_and_written_alike():
    body = "".join(text.replace(",", "\x01") + "\x02" for text in CAPTURED)
    found = decode(body.encode())
    assert "".join(each.encode() for each in found) == body
    assert [each.kind for each in found] == [text.partition(",")[0] for text in CAPTURED]


def record(kind: str, *values: object) -> bytes:
    return "\x01".join((kind, *map(str, values))).encode() + b"\x02"


def test_records_of_older_and_newer_clients_are_read():
    pub = (7, "r", "g", "t", "i", "tag", "k", "h:1", 3, 2, 0)
    [first] = decode(record("Pub", *pub, "false"))
    assert (first.success, first.offset_id, first.client_host) == (False, "", "")
    [newer] = decode(record("Pub", *pub, "o", "true", "10.0.0.1", "more"))
    assert (newer.success, newer.offset_id, newer.client_host) == (True, "o", "10.0.0.1")
    [old] = decode(record("SubAfter", "q", "i", 5, "true", "k"))
    assert (old.cost_ms, old.success, old.result, old.time_ms, old.group) == (5, True, 0, 0, "")
    # The last field of a cloud's record is empty.
    [cloud] = decode(record("SubAfter", "q", "i", 5, "false", "k", 4, ""))
    assert (cloud.success, cloud.result) == (False, 4)


def test_what_is_no_record_is_passed_over():
    good = record("Recall", 7, "r", "g", "t", "i", "true")
    bad = [
        *(b"", b"Pub\x02", b"Other\x011\x02", record("Recall", "x", "r", "g", "t", "i", "true")),
        *(record("SubBefore", 1, "r", "g", "q", "i", "many", "k"), record("Recall", 7, "r", "g")),
    ]
    assert [each.message_id for each in decode(good.join([b"", *bad, b""]))] == ["i"] * 7


@given(st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 20_000)), max_size=12))
def test_trace_messages_keep_within_their_limits(sizes: list[tuple[int, int]]):
    records = [
        TraceRecord(kind="Recall", topic="t" * topic, message_id=f"{number}", keys="k" * keys)
        for number, (topic, keys) in enumerate(sizes)
    ]
    messages = list(messages_of(records))
    assert [each for message in messages for each in decode(message.body)] == [
        TraceRecord(kind="Recall", topic=each.topic, message_id=each.message_id) for each in records
    ]
    assert sum(message.records for message in messages) == len(records)
    for message in messages:
        assert len(message.body) <= trace.MAX_BODY_BYTES
        assert len(" ".join(message.keys)) <= trace.MAX_KEYS_BYTES
        assert {each.message_id for each in decode(message.body)} <= set(message.keys)
