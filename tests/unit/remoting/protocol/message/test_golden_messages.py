"""Every record and batch of messages.json is decoded as by the Java decoder."""

from __future__ import annotations

import json
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from remoting.protocol.errors import BodyError, RecordError
from remoting.protocol.message import batch, properties
from remoting.protocol.message import record as sys_flag
from remoting.protocol.message.record import body_crc, encode_record, host_bytes
from remoting.protocol.message.tags import tags_code
from remoting.protocol.message.view import RecordView

GOLDEN = json.loads((Path(__file__).parents[4] / "golden/messages.json").read_text("utf-8"))
READABLE = [case for case in GOLDEN["messages"] if case["name"] != "bad_magic" and case["decode"]]
HOST = host_bytes("127.0.0.1", 10911)


def named(cases: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda c: f"{c['name']}-{c['version']}")


def named_unreadable(*names: str) -> pytest.MarkDecorator:
    return named([case for case in GOLDEN["messages"] if case["name"] in names])


def host(text: str) -> tuple[str, int]:
    ip, _, port = text.rpartition(":")
    return str(ip_address(ip.strip("[]"))), int(port)


@named(READABLE)
def test_a_record_reads_as_java_reads_it(case: dict[str, Any]) -> None:
    view, java = RecordView(bytes.fromhex(case["hex"])), case["decode"]
    assert view.topic == java["topic"]
    assert view.queue_id == java["queueId"]
    assert view.flag == java["flag"]
    assert view.queue_offset == java["queueOffset"]
    assert view.physical_offset == java["commitLogOffset"]
    assert view.body_crc == java["bodyCRC"]
    assert view.size == java["storeSize"]
    assert view.born_timestamp_ms == java["bornTimestamp"]
    assert view.born_host == host(java["bornHost"])
    assert view.store_timestamp_ms == java["storeTimestamp"]
    assert view.store_host == host(java["storeHost"])
    assert view.reconsume_times == java["reconsumeTimes"]
    assert view.prepared_transaction_offset == java["preparedTransactionOffset"]


@named(READABLE)
def test_its_body_properties_and_ids_read_as_java_reads_them(case: dict[str, Any]) -> None:
    view, java = RecordView(bytes.fromhex(case["hex"])), case["decode"]
    assert view.stored_body.hex() == (case["stored_body_hex"] or "")
    assert view.body.hex() == (java["body_hex"] or "")
    assert view.properties == (java["properties"] or {})
    assert view.tags == java["tags"]
    assert view.keys == (java["keys"] or "").split()
    assert tags_code(view.tags) == java["tagsCode"]
    assert view.offset_id == java["msgId"] == case["client_offsetMsgId"]
    assert view.message_id == case["client_msgId"]


@named(READABLE)
def test_the_system_flag_is_kept_where_5_x_clears_its_lowest_bit(case: dict[str, Any]) -> None:
    stored = RecordView(bytes.fromhex(case["hex"])).sys_flag
    inflated = case["version"] == "5.3.3" and stored & sys_flag.COMPRESSED
    assert case["decode"]["sysFlag"] == (stored & ~sys_flag.COMPRESSED if inflated else stored)


@named(READABLE)
def test_only_a_wrong_crc_is_wrong(case: dict[str, Any]) -> None:
    view = RecordView(bytes.fromhex(case["hex"]))
    assert view.check_crc() == (case["name"] != "wrong_crc")


@named(READABLE)
def test_a_record_written_from_what_was_read_has_the_same_bytes(case: dict[str, Any]) -> None:
    raw = bytes.fromhex(case["hex"])
    view = RecordView(raw)
    assert raw == encode_record(
        topic=view.topic,
        body=view.stored_body,
        properties=view.properties_text,
        born_host=view.born_host_bytes,
        store_host=view.store_host_bytes,
        queue_id=view.queue_id,
        flag=view.flag,
        queue_offset=view.queue_offset,
        physical_offset=view.physical_offset,
        sys_flag=view.sys_flag,
        born_timestamp_ms=view.born_timestamp_ms,
        store_timestamp_ms=view.store_timestamp_ms,
        reconsume_times=view.reconsume_times,
        prepared_transaction_offset=view.prepared_transaction_offset,
        crc=view.body_crc,
        magic=view.magic,
    )


@named_unreadable("truncated", "bad_magic")
def test_a_cut_off_record_and_an_unknown_magic_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        RecordView(bytes.fromhex(case["hex"]))


@named_unreadable("compressed_corrupt", "compressed_unknown_type")
def test_a_body_that_java_cannot_inflate_is_refused_when_it_is_read(case: dict[str, Any]) -> None:
    view = RecordView(bytes.fromhex(case["hex"]))
    assert view.stored_body.hex() == case["stored_body_hex"]
    with pytest.raises(BodyError):
        _ = view.body


def test_every_message_of_the_file_is_in_one_of_these_tests() -> None:
    unreadable = {"truncated", "bad_magic", "compressed_corrupt", "compressed_unknown_type"}
    readable = {case["name"] for case in READABLE}
    assert {case["name"] for case in GOLDEN["messages"]} == readable | unreadable


@named(GOLDEN["batch_bodies"])
def test_a_batch_body_reads_as_java_reads_it_and_writes_the_same_bytes(
    case: dict[str, Any],
) -> None:
    body = bytes.fromhex(case["hex"])
    elements = list(batch.iter_elements(body))
    assert [
        {"flag": e.flag, "body_hex": e.body.hex(), "properties": properties.decode(e.properties)}
        for e in elements
    ] == case["decode"]
    assert batch.encode((e.flag, bytes(e.body), bytes(e.properties)) for e in elements) == body


def test_a_topic_of_200_bytes_is_refused_as_java_refuses_it() -> None:
    assert GOLDEN["encode_topic_200_bytes"].keys() == {"4.9.7", "5.3.3"}
    with pytest.raises(ValueError, match="200 bytes, more than 127"):
        encode_record(topic="t" * 200, body=b"", born_host=HOST, store_host=HOST)


@pytest.mark.parametrize("case", GOLDEN["crc32"], ids=lambda c: c["utf8"][:12])
def test_the_crc_has_31_bits(case: dict[str, Any]) -> None:
    assert body_crc(case["utf8"].encode()) == case["crc32"]
