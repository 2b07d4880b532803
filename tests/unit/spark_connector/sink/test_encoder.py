"""The encoder gives what the simple one gives, and brokers can read it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.network.routes import by_sharding_key
from remoting.protocol.message import batch as batches
from remoting.protocol.message import properties
from spark_connector.errors import ConnectorError
from spark_connector.limits import SINK_MAX_BATCH_ROWS
from spark_connector.sink.encoder import Encoder
from tests.unit.spark_connector.sink.frames import frame, frames, lanes, queues_of, recipe
from tests.unit.spark_connector.sink.reference import plain_parcels


def encoded(batch: Any, **options: Any) -> list[Any]:
    return list(Encoder(recipe(batch, **options), queues_of).encode(batch))


def messages(parcels: list[Any]) -> list[tuple[bytes, dict[str, str], int]]:
    """Body, properties and flag of each message, batch after batch."""
    found = []
    for parcel in parcels:
        if parcel.properties is not None:
            text = properties.decode(parcel.properties.encode())
            found.append((bytes(parcel.body), text, parcel.flag))
            continue
        for element in batches.iter_elements(parcel.body):
            text = properties.decode(element.properties)
            found.append((bytes(element.body), text, element.flag))
    return found


@given(frames(), st.sampled_from([64, 200, 1 << 20]), st.integers(0, 1))
def test_the_fast_encoder_equals_the_plain_one(batch: Any, limit: int, level: int) -> None:
    topic = None if "topic" in batch.schema.names else "flights"
    made = recipe(batch, topic=topic, max_batch_bytes=limit, delay_level=level)
    encoder = Encoder(made, queues_of)
    expected = plain_parcels(batch, made, queues_of, 0)
    assert lanes(list(encoder.encode(batch))) == lanes(expected)


@given(frames(), st.sampled_from(["hashKeys", "roundRobin"]))
def test_every_row_leaves_exactly_once(batch: Any, partitioner: str) -> None:
    batch = batch.select([name for name in batch.schema.names if name in {"body", "keys", "tags"}])
    if "keys" not in batch.schema.names:
        partitioner = "roundRobin"
    bodies = [body for body, _, _ in messages(encoded(batch, partitioner=partitioner))]
    assert sorted(bodies) == sorted(batch.column("body").to_pylist())


def test_columns_become_properties() -> None:
    batch = frame(
        body=[b"late"],
        keys=["DL1 DL2"],
        tags=["arrival"],
        properties=[[("carrier", "DL"), ("CLUSTER", "old"), ("KEYS", "other")]],
        flag=[5],
        uniqKey=["0A" * 16],
    )
    ((body, text, flag),) = messages(encoded(batch))
    assert (body, flag) == (b"late", 5)
    assert text == {"UNIQ_KEY": "0A" * 16, "TAGS": "arrival", "KEYS": "DL1 DL2", "carrier": "DL"}


def test_keys_and_tags_of_the_map_are_used_where_the_columns_are_null() -> None:
    entries = [("KEYS", "k"), ("TAGS", "t"), ("UNIQ_KEY", "u")]
    batch = frame(body=[b"1", b"2"], keys=[None, "mine"], properties=[entries, entries])
    first, second = (text for _, text, _ in messages(encoded(batch)))
    assert (first["KEYS"], first["TAGS"]) == ("k", "t")
    assert (second["KEYS"], second["TAGS"]) == ("mine", "t")
    assert "u" not in {first["UNIQ_KEY"], second["UNIQ_KEY"]}


def test_a_key_selects_the_same_queue_as_in_other_clients() -> None:
    keys = [f"order-{number % 7}" for number in range(100)]
    batch = frame(body=[b"%d" % number for number in range(100)], shardingKey=keys)
    for parcel in encoded(batch):
        for element in batches.iter_elements(parcel.body):
            key = keys[int(bytes(element.body))]
            assert parcel.queue == by_sharding_key(queues_of("flights"), key)


def test_the_order_of_a_queue_is_the_order_of_its_rows() -> None:
    batch = frame(
        body=[b"%d" % number for number in range(5000)],
        shardingKey=[f"order-{number % 13}" for number in range(5000)],
    )
    for lane in lanes(encoded(batch, max_batch_bytes=2000)).values():
        numbers = [int(body) for body, _, _ in messages(lane)]
        assert numbers == sorted(numbers)


def test_rows_for_any_queue_are_spread_over_all_of_them() -> None:
    assert [parcel.messages for parcel in encoded(frame(body=[b"x"] * 2048))] == [256] * 8
    assert [parcel.messages for parcel in encoded(frame(body=[b"x"] * 300))] == [300]
    assert max(p.messages for p in encoded(frame(body=[b"x"] * 80_000))) <= SINK_MAX_BATCH_ROWS


def test_a_large_message_is_sent_alone() -> None:
    batch = frame(body=[b"a", b"b" * 5000, b"c"])
    assert [parcel.messages for parcel in encoded(batch, max_batch_bytes=1024)] == [1, 1, 1]


def test_delayed_rows_leave_one_by_one() -> None:
    batch = frame(body=[b"now", b"later", b"now too"], delayLevel=[None, 3, 0])
    batched, alone = encoded(batch)
    assert batched.messages == 2
    assert properties.decode(alone.properties.encode())["DELAY"] == "3"
    assert alone.body == b"later"


def test_a_time_of_delivery_goes_before_the_option() -> None:
    due = datetime(2030, 1, 1, tzinfo=UTC)
    batch = frame(body=[b"a", b"b"], deliverTimestamp=[due, None])
    timed, delayed = (text for _, text, _ in messages(encoded(batch, delay_level=2)))
    assert (timed.get("DELAY"), timed["TIMER_DELIVER_MS"]) == (None, "1893456000000")
    assert (delayed["DELAY"], delayed.get("TIMER_DELIVER_MS")) == ("2", None)


def test_the_option_delays_rows_whose_column_does_not_say() -> None:
    batch = frame(body=[b"a", b"b"], delayLevel=[None, 0])
    batched, alone = encoded(batch, delay_level=2)
    assert (batched.first_row, alone.first_row) == (1, 0)


def test_rows_are_numbered_over_all_batches_of_a_task() -> None:
    batch = frame(body=[b"a", b"b"])
    encoder = Encoder(recipe(batch), queues_of)
    first, second = (messages(list(encoder.encode(batch))) for _ in range(2))
    keys = {text["UNIQ_KEY"] for _, text, _ in first + second}
    assert len(keys) == 4
    assert encoder.rows == 4
    again = Encoder(recipe(batch), queues_of)
    assert messages(list(again.encode(batch))) == first


def test_large_batches_are_encoded_in_slices() -> None:
    batch = frame(body=[b"x" * 99] * 100, properties=[[("a", "b" * 100)]] * 100)
    parcels = list(Encoder(recipe(batch), queues_of, slice_bytes=1000).encode(batch))
    assert len(parcels) >= 20
    assert [parcel.first_row for parcel in parcels] == sorted(p.first_row for p in parcels)
    assert sum(parcel.messages for parcel in parcels) == 100


def test_bodies_may_be_text_and_columns_of_other_layouts() -> None:
    batch = pa.record_batch(
        {
            "body": pa.array(["grün"], type=pa.large_string()),
            "keys": pa.array([b"k"], type=pa.binary()),
            "tags": pa.array(["t"], type=pa.string_view()),
        }
    )
    ((body, text, _),) = messages(encoded(batch))
    assert body == "grün".encode()
    assert (text["KEYS"], text["TAGS"]) == ("k", "t")


def test_keys_given_as_bytes_have_to_be_text() -> None:
    keys = pa.array([b"fine", None, b"\xff"], type=pa.binary())
    batch = pa.record_batch({"body": pa.array([b"x"] * 3), "keys": keys})
    with pytest.raises(ConnectorError, match=r"row 2 of the task .*its keys are not UTF-8"):
        encoded(batch)
    assert len(messages(encoded(batch.slice(0, 2)))) == 2


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body": [b"x", None]}, "row 1 of the task can't be sent: its body is null"),
        ({"body": [b"x", b""]}, "row 1 .*its body is empty"),
        ({"body": [b"x" * (4 * 1024 * 1024 + 1)]}, "row 0 .*its body has 4194305 bytes"),
        ({"body": [b"x"], "tags": ["a\x02b"]}, "row 0 .*its tags hold 0x02"),
        ({"body": [b"x"], "keys": ["a" * 40_000]}, "row 0 .*its properties take 40"),
        ({"body": [b"x"], "properties": [[("a\x01", "b")]]}, r"row 0 .*'a\\x01' holds 0x01"),
        ({"body": [b"x"], "properties": [[("", "b")]]}, "row 0 .*empty name"),
        ({"body": [b"x", b"y"], "properties": [[], [("a", "")]]}, "row 1 .*'a' is empty"),
        ({"body": [b"x"], "properties": [[("a", "b\x02c")]]}, "row 0 .*'a' holds 0x02"),
        ({"body": [b"x"], "delayLevel": [-1]}, "row 0 .*delay level is -1"),
        ({"body": [b"x"], "queueId": [9], "brokerName": ["broker-a"]}, "no queue 9 at broker"),
        ({"body": [b"x"], "queueId": [1]}, "a queue 1 at each of the brokers broker-a, broker-b"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(ConnectorError, match=words):
        encoded(frame(**columns))


@pytest.mark.parametrize("topics", [["flights", None], ["flights", ""], [None, None]])
def test_a_row_without_a_topic_is_named(topics: list[str | None]) -> None:
    row = 1 if topics[0] else 0
    with pytest.raises(ConnectorError, match=f"row {row} of the task .*its topic is null or empty"):
        encoded(frame(body=[b"x", b"y"], topic=topics), topic=None)


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "no such/name"])
def test_a_topic_that_nobody_may_send_to_is_refused(topic: str) -> None:
    with pytest.raises(ConnectorError, match="rows can't be written to the topic"):
        encoded(frame(body=[b"x"], topic=[topic]), topic=None)


def test_an_empty_batch_gives_nothing() -> None:
    assert encoded(frame(body=[])) == []
