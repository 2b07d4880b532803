"""What a decoder makes of buffers, and its errors."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remoting.protocol.message import properties
from remoting.protocol.message.compression import compress
from remoting.protocol.message.record import Buffer, host_bytes
from remoting.protocol.message.tags import TagExpression
from spark_connector.decode import fallback
from spark_connector.decode.decoder import Decoder
from spark_connector.decode.layout import walk
from spark_connector.decode.model import MAX_FALLBACK_RECORDS, DecodedBatch, DecodeSettings
from spark_connector.errors import DecodeError
from spark_connector.options import OnDecodeError
from spark_connector.schema import COLUMNS, KAFKA_COLUMNS, STORE_COLUMNS, Column, arrow_schema
from tests.unit.spark_connector.decode.records import V6, numbered, record

ALL = tuple(COLUMNS.values())
BODY = (COLUMNS["body"],)
BODY_AND_CRC = (COLUMNS["body"], STORE_COLUMNS["crcOk"])
FULL = properties.encode(
    {"KEYS": "k1 k2", "TAGS": "A", "UNIQ_KEY": "0A" * 16, "__SHARDINGKEY": "grün"}
)


class Whole(Decoder):
    """A decoder that also makes one batch of a buffer."""

    def decode(self, buffer: Buffer, **given: Any) -> DecodedBatch:
        (batch,) = self.batches(buffer, **given)
        return batch


def decoder(columns: Iterable[Column] = ALL, **more: Any) -> Whole:
    return Whole(DecodeSettings(tuple(columns), "broker-a", **more))


def test_a_message_becomes_a_row_of_all_its_parts() -> None:
    buffer = record(
        body=b"hello",
        properties=FULL,
        queue_id=3,
        queue_offset=17,
        flag=5,
        reconsume_times=2,
        born_timestamp_ms=1_700_000_000_123,
        store_timestamp_ms=1_700_000_000_456,
    )
    found = decoder().decode(buffer)
    assert found.batch.to_pylist() == [
        {
            "topic": "orders",
            "brokerName": "broker-a",
            "queueId": 3,
            "queueOffset": 17,
            "body": b"hello",
            "keys": "k1 k2",
            "tags": "A",
            "bornTimestamp": datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC),
            "storeTimestamp": datetime(2023, 11, 14, 22, 13, 20, 456000, tzinfo=UTC),
            "bornHost": "10.0.0.1:40000",
            "reconsumeTimes": 2,
            "sysFlag": 0,
            "flag": 5,
            "messageId": "0A" * 16,
            "properties": [
                ("KEYS", "k1 k2"),
                ("TAGS", "A"),
                ("UNIQ_KEY", "0A" * 16),
                ("__SHARDINGKEY", "grün"),
            ],
        }
    ]
    assert found.rows == 1


def test_kafka_names_hold_the_same_message() -> None:
    own, bare = b"h\x01v1\x02", record(properties=b"UNIQ_KEY\x01A")
    buffer = record(body=b"hello", properties=own + FULL, queue_id=3, store_timestamp_ms=1000)
    row, empty = decoder(KAFKA_COLUMNS.values()).decode(buffer + bare).batch.to_pylist()
    assert row["key"] == b"k1 k2"
    assert row["value"] == b"hello"
    assert (row["topic"], row["partition"], row["offset"]) == ("orders", 3, 0)
    assert row["timestamp"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert row["timestampType"] == 1
    # Properties of RocketMQ's own are no headers.
    assert (row["headers"], empty["headers"]) == ([{"key": "h", "value": b"v1"}], [])


def test_a_message_without_properties_has_nulls_and_the_offset_id() -> None:
    buffer = record(store_host=host_bytes("10.0.0.9", 10911), physical_offset=255)
    (row,) = decoder().decode(buffer).batch.to_pylist()
    assert (row["keys"], row["tags"], row["properties"]) == (None, None, [])
    assert row["messageId"] == "0A00000900002A9F00000000000000FF"


def test_hosts_of_ipv6_are_bracketed() -> None:
    (row,) = decoder().decode(record(born_host=V6, store_host=V6)).batch.to_pylist()
    assert row["bornHost"] == "[2001:db8::7]:10911"
    assert row["messageId"] == "20010DB800000000000000000000000700002A9F0000000000000000"


def test_columns_come_in_the_order_requested() -> None:
    chosen = [COLUMNS["tags"], COLUMNS["body"], COLUMNS["queueOffset"]]
    batch = decoder(chosen).decode(numbered(2)).batch
    assert batch.schema.equals(arrow_schema(chosen))
    assert batch.to_pylist()[1] == {"tags": "T1", "body": b"body 1", "queueOffset": 1}


def test_each_row_has_its_file_name() -> None:
    chosen = (STORE_COLUMNS["file"], STORE_COLUMNS["storeSize"])
    buffer = record(body=b"x")
    (row,) = decoder(chosen).decode(buffer, file="0" * 20).batch.to_pylist()
    assert row == {"file": "0" * 20, "storeSize": len(buffer)}


def test_an_empty_buffer_is_an_empty_batch() -> None:
    found = decoder().decode(b"", first_offset=7)
    assert found.batch.schema.equals(arrow_schema(ALL))
    assert found.rows == 0


def test_offsets_outside_the_range_are_omitted() -> None:
    found = decoder().decode(numbered(10), first_offset=3, end_offset=6)
    assert found.batch.column("queueOffset").to_pylist() == [3, 4, 5]
    assert found.skipped == 0


def test_a_range_behind_all_records_is_empty() -> None:
    found = decoder().decode(numbered(10), first_offset=20)
    assert found.rows == 0


def test_tags_are_compared_exactly_though_their_hashes_are_equal() -> None:
    buffer = b"".join(
        record(properties=properties.encode({"TAGS": tag}), queue_offset=offset)
        for offset, tag in enumerate(["Aa", "BB", "Aa"])
    )
    found = decoder().decode(buffer, tags=TagExpression.parse("Aa"))
    assert found.batch.column("queueOffset").to_pylist() == [0, 2]


def test_known_starts_choose_the_records() -> None:
    buffer = b"garbage" + record(queue_offset=1) + b"more garbage" + record(queue_offset=2)
    size = len(record())
    starts = np.array([7, 7 + size + 12])
    found = decoder().decode(buffer, starts=starts)
    assert found.batch.column("queueOffset").to_pylist() == [1, 2]


def test_starts_may_come_in_any_order() -> None:
    buffer = numbered(3)
    starts = walk(buffer)
    assert starts is not None
    found = decoder().decode(buffer, starts=starts[::-1])
    assert found.batch.column("queueOffset").to_pylist() == [2, 1, 0]


def test_a_file_is_read_as_it_is_mapped(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(numbered(5) + bytes(100))
    starts = walk(numbered(5))
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        found = decoder().decode(mapped, starts=starts)
    assert found.rows == 5


def test_a_buffer_may_be_used_again_once_the_batch_is_made() -> None:
    buffer = bytearray(numbered(100))
    batch = decoder().decode(memoryview(buffer)).batch
    before = batch.to_pylist()
    buffer[:] = bytes(len(buffer))
    assert batch.to_pylist() == before
    buffer.clear()


def test_batches_hold_so_many_rows_at_most() -> None:
    found = list(decoder().batches(numbered(10), max_rows=4))
    assert [each.rows for each in found] == [4, 4, 2]


def test_batches_hold_so_many_bytes_at_most_unless_one_record_has_more() -> None:
    small, large = record(body=b"x" * 10), record(body=b"x" * 1000)
    buffer = small * 3 + large + small * 2
    found = list(decoder().batches(buffer, max_bytes=2 * len(small)))
    assert [each.rows for each in found] == [2, 1, 1, 2]


def test_batches_are_divided_while_their_bodies_inflate_to_too_much() -> None:
    body, bits = compress(bytes(10_000))
    buffer = record(body=body, sys_flag=bits) * 5
    found = list(decoder(BODY, max_inflated_bytes=20_000).batches(buffer))
    assert [each.rows for each in found] == [2, 1, 2]
    assert [each.inflated_bytes for each in found] == [20_000, 10_000, 20_000]


def test_one_odd_record_leaves_the_others_to_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = record(queue_offset=700, properties=b"TAGS\x01\x02KEYS\x01k\x01k")
    buffer = numbered(700) + odd + numbered(600)
    slowly = []
    one_by_one = fallback.decode

    def counted(*arguments: Any) -> DecodedBatch:
        slowly.append(len(arguments[1]))
        return one_by_one(*arguments)

    monkeypatch.setattr(fallback, "decode", counted)
    found = decoder().decode(buffer)
    assert found.rows == 1301
    assert found.batch.column("keys").to_pylist()[700] == "k\x01k"
    assert found.batch.column("tags").to_pylist()[699:702] == ["T0", None, "T0"]
    assert len(slowly) == 1
    assert slowly[0] <= MAX_FALLBACK_RECORDS


def damaged_body() -> bytes:
    return record(queue_id=2, queue_offset=5, body=b"hullo", crc=1)


def test_a_wrong_crc_is_an_error_that_names_the_message() -> None:
    with pytest.raises(DecodeError) as caught:
        decoder(verify_crc=True).decode(damaged_body())
    assert str(caught.value) == (
        "the message at offset 5 of queue 2 of topic orders on broker broker-a can't be decoded: "
        "the CRC of its body is not the one stored with it; "
        "set onDecodeError to null or raw to read on"
    )


@pytest.mark.parametrize(("policy", "body"), [("null", None), ("raw", b"hullo")])
def test_a_wrong_crc_is_null_or_raw_and_counted_by_option(policy: str, body: object) -> None:
    buffer = numbered(2) + damaged_body()
    chosen = decoder(BODY_AND_CRC, verify_crc=True, on_decode_error=OnDecodeError(policy))
    found = chosen.decode(buffer)
    assert found.batch.to_pylist()[1:] == [
        {"body": b"body 1", "crcOk": True},
        {"body": body, "crcOk": False},
    ]
    assert (found.rows, found.damaged, found.skipped) == (3, 1, 0)


def test_the_crc_column_is_set_even_if_a_mismatch_is_no_error() -> None:
    (row,) = decoder(BODY_AND_CRC).decode(damaged_body()).batch.to_pylist()
    assert row == {"body": b"hullo", "crcOk": False}


@pytest.mark.parametrize(
    ("bits", "reason"), [(0x1, "does not inflate"), (0x401, "compressed in an unknown way: type 4")]
)
def test_a_body_that_does_not_inflate_is_an_error(bits: int, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decoder(BODY).decode(record(body=b"not compressed", sys_flag=bits))


def test_a_body_is_not_inflated_unless_selected() -> None:
    broken = record(body=b"not compressed", sys_flag=1)
    assert decoder((COLUMNS["queueId"],)).decode(broken).damaged == 0
    found = decoder(BODY, decompress=False).decode(broken)
    assert found.batch.to_pylist() == [{"body": b"not compressed"}]


def broken_record() -> bytes:
    broken = bytearray(record(queue_offset=1))
    broken[4] ^= 1
    return bytes(broken)


def test_a_damaged_record_is_an_error() -> None:
    with pytest.raises(DecodeError, match=r"from broker broker-a is damaged: .*its magic is"):
        decoder().decode(record() + broken_record() + record(queue_offset=2))


@pytest.mark.parametrize("policy", [OnDecodeError.NULL, OnDecodeError.RAW])
def test_damaged_records_are_skipped_and_counted_by_option(policy: OnDecodeError) -> None:
    buffer = record() + broken_record() + record(queue_offset=2)
    found = decoder(on_decode_error=OnDecodeError(policy)).decode(buffer)
    assert found.batch.column("queueOffset").to_pylist() == [0, 2]
    assert (found.rows, found.skipped) == (2, 1)


@pytest.mark.parametrize("rest", [b"\0" * 200, b"xyz", record()[:-1]])
def test_damage_that_cannot_be_skipped_is_an_error_with_every_option(rest: bytes) -> None:
    with pytest.raises(DecodeError, match="where the next one begins can't be determined"):
        decoder(on_decode_error=OnDecodeError.RAW).decode(record() + rest)


def test_bytes_that_are_not_utf_8_are_shown_as_such() -> None:
    buffer = record(topic=b"caf\xe9", properties=b"KEYS\x01\xff")
    (row,) = decoder().decode(buffer).batch.to_pylist()
    assert (row["topic"], row["keys"]) == (
        "caf\N{REPLACEMENT CHARACTER}",
        "\N{REPLACEMENT CHARACTER}",
    )


def test_of_equal_names_the_last_one_wins() -> None:
    (row,) = decoder().decode(record(properties=b"TAGS\x01a\x02TAGS\x01b")).batch.to_pylist()
    assert (row["tags"], row["properties"]) == ("b", [("TAGS", "b")])


def test_a_time_beyond_those_of_spark_is_null() -> None:
    buffer = record(born_timestamp_ms=2**62, store_timestamp_ms=-(2**63))
    (row,) = decoder().decode(buffer).batch.to_pylist()
    assert (row["bornTimestamp"], row["storeTimestamp"]) == (None, None)
