"""For any records, the fast path gives what the fallback gives, or raises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remoting.protocol.message.tags import TagExpression
from spark_connector.decode import fallback, fast
from spark_connector.decode.decoder import Decoder
from spark_connector.decode.layout import walk
from spark_connector.decode.model import DecodedBatch, DecodeSettings, NeedsFallback, Selection
from spark_connector.errors import DecodeError
from spark_connector.options import OnDecodeError
from spark_connector.schema import KAFKA_COLUMNS, STORE_COLUMNS, Column
from tests.unit.spark_connector.decode import records as made

EVERYTHING = tuple((STORE_COLUMNS | KAFKA_COLUMNS).values())
buffers = st.lists(made.records(), min_size=1, max_size=12).map(b"".join)
offsets = st.none() | st.integers(0, 50)
tags = st.sampled_from([None, "*", "A", "true || A || gibt es nicht", "grün"])
columns = st.lists(st.sampled_from(EVERYTHING), min_size=1, unique=True).map(tuple)


def fast_decode(buffer: bytes, settings: DecodeSettings, selection: Selection) -> DecodedBatch:
    starts = walk(buffer)
    assert starts is not None
    return fast.decode(buffer, starts, settings, selection)


def slow_decode(buffer: bytes, settings: DecodeSettings, selection: Selection) -> DecodedBatch:
    starts = walk(buffer)
    if starts is None:
        starts = fallback.positions(buffer, settings)
    return fallback.decode(buffer, starts, settings, selection)


def agree(quick: DecodedBatch, slow: DecodedBatch) -> None:
    quick.batch.validate(full=True)
    assert quick.batch.schema.equals(slow.batch.schema)
    assert quick.batch.to_pylist() == slow.batch.to_pylist()
    assert (quick.skipped, quick.damaged) == (slow.skipped, slow.damaged)
    assert quick.inflated_bytes == slow.inflated_bytes


@given(buffer=buffers)
def test_regular_records_are_decoded_by_the_fast_path(buffer: bytes) -> None:
    settings = DecodeSettings(EVERYTHING, "broker-a", verify_crc=True)
    selection = Selection(file="00000000000000000000")
    agree(fast_decode(buffer, settings, selection), slow_decode(buffer, settings, selection))


@given(buffer=buffers, first=offsets, end=offsets, text=tags, chosen=columns)
def test_offsets_and_tags_choose_the_same_rows(
    buffer: bytes, first: int | None, end: int | None, text: str | None, chosen: tuple[Column, ...]
) -> None:
    settings = DecodeSettings(chosen, "broker-a")
    expression = None if text is None else TagExpression.parse(text)
    selection = Selection(first_offset=first, end_offset=end, tags=expression)
    agree(fast_decode(buffer, settings, selection), slow_decode(buffer, settings, selection))


@given(
    buffer=st.lists(
        made.records(bodies=made.plain_bodies | made.compressed_bodies), min_size=1, max_size=8
    ).map(b"".join),
    decompress=st.booleans(),
)
def test_compressed_bodies_are_inflated_by_the_fast_path(buffer: bytes, decompress: bool) -> None:
    settings = DecodeSettings(EVERYTHING, "broker-a", decompress=decompress)
    selection = Selection()
    agree(fast_decode(buffer, settings, selection), slow_decode(buffer, settings, selection))


def outcome(decode: Any, *arguments: Any) -> DecodedBatch | str:
    """Return the rows, or the error's text."""
    try:
        found: DecodedBatch = decode(*arguments)
    except DecodeError as error:
        return str(error)
    return found


odd_records = made.records(
    bodies=made.plain_bodies | made.compressed_bodies | made.broken_bodies,
    texts=made.tidy_texts | made.odd_texts,
    times=made.times | made.longs,
    crcs=st.sampled_from([None, None, 0, 0xFFFFFFFF]),
)


@given(
    buffer=st.lists(odd_records, min_size=1, max_size=6).map(b"".join),
    chosen=columns,
    verify=st.booleans(),
    on_error=st.sampled_from(OnDecodeError),
)
def test_odd_records_are_read_the_same_or_left_to_the_fallback(
    buffer: bytes, chosen: tuple[Column, ...], verify: bool, on_error: OnDecodeError
) -> None:
    settings = DecodeSettings(chosen, "broker-a", verify_crc=verify, on_decode_error=on_error)
    try:
        quick = fast_decode(buffer, settings, Selection())
    except NeedsFallback:
        outcome(slow_decode, buffer, settings, Selection())
        return
    agree(quick, slow_decode(buffer, settings, Selection()))


@given(texts=st.lists(made.odd_texts | made.tidy_texts, min_size=1, max_size=5))
@example([b"x", b"x", b"x\x01"])
@example([b"a\x01b\x02\x01nameless\x02"])
def test_properties_are_read_the_same_or_left_to_the_fallback(texts: list[bytes]) -> None:
    buffer = b"".join(made.record(properties=text) for text in texts)
    settings = DecodeSettings((STORE_COLUMNS["properties"], STORE_COLUMNS["tags"]), "broker-a")
    try:
        quick = fast_decode(buffer, settings, Selection())
    except NeedsFallback:
        return
    agree(quick, slow_decode(buffer, settings, Selection()))


@given(buffer=buffers, data=st.data())
def test_damage_is_never_read_as_valid_data(buffer: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(buffer) - 1))
    damaged = bytearray(buffer)
    damaged[at] = data.draw(st.integers(0, 255))
    starts = walk(damaged)
    settings = DecodeSettings(EVERYTHING, "broker-a")
    if starts is None:
        with pytest.raises(DecodeError):
            slow_decode(damaged, settings, Selection())
        return
    try:
        quick = fast.decode(damaged, starts, settings, Selection())
    except NeedsFallback:
        return
    agree(quick, slow_decode(damaged, settings, Selection()))


@given(
    buffer=st.binary(max_size=400),
    starts=st.lists(st.integers(0, 500), max_size=5),
    on_error=st.sampled_from(OnDecodeError),
)
def test_starts_without_a_record_are_no_rows(
    buffer: bytes, starts: list[int], on_error: OnDecodeError
) -> None:
    settings = DecodeSettings(EVERYTHING, "broker-a", on_decode_error=on_error)
    places = np.array(starts, dtype=np.int64)
    found = outcome(fallback.decode, buffer, places, settings, Selection())
    if isinstance(found, DecodedBatch):
        assert found.rows == 0
        assert found.skipped == len(starts)
    if starts:
        with pytest.raises(NeedsFallback):
            fast.decode(buffer, places, settings, Selection())


@given(
    buffer=st.lists(odd_records, min_size=1, max_size=12).map(b"".join),
    on_error=st.sampled_from([OnDecodeError.NULL, OnDecodeError.RAW]),
    max_rows=st.integers(1, 12),
    end=offsets,
)
def test_however_records_are_divided_they_are_the_same_rows(
    buffer: bytes, on_error: OnDecodeError, max_rows: int, end: int | None
) -> None:
    settings = DecodeSettings(
        EVERYTHING, "broker-a", on_decode_error=on_error, max_fallback_records=1
    )
    found = list(Decoder(settings).batches(buffer, end_offset=end, max_rows=max_rows))
    expected = slow_decode(buffer, settings, Selection(end_offset=end))
    assert [row for each in found for row in each.batch.to_pylist()] == expected.batch.to_pylist()
    assert sum(each.skipped for each in found) == expected.skipped
    assert sum(each.damaged for each in found) == expected.damaged
