"""Unique keys have RocketMQ's form, and repeat exactly when they should."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from spark_connector.sink.unique_keys import ColumnKeys, PositionKeys, key_of, random_keys


def texts(keys: pa.Array) -> list[str]:
    return [key.decode() for key in keys.to_pylist()]


def test_keys_by_position_repeat_with_the_run_and_the_partition() -> None:
    keys = texts(PositionKeys("query/7", 3)(100, None, 50))
    assert keys == texts(PositionKeys("query/7", 3)(100, None, 50))
    assert len(set(keys)) == 50
    for other in (PositionKeys("query/8", 3), PositionKeys("query/7", 4)):
        assert not set(keys) & set(texts(other(100, None, 50)))


def test_keys_by_position_do_not_depend_on_the_batches_they_are_made_in() -> None:
    keys = PositionKeys("query/7", 3)
    assert texts(keys(5, None, 10)) == texts(keys(5, None, 4)) + texts(keys(9, None, 6))


def test_keys_by_position_continue_beyond_the_eight_digits_of_a_row() -> None:
    keys = texts(PositionKeys("r", 0)((1 << 32) - 2, None, 4))
    assert len(set(keys)) == 4
    assert [key[24:] for key in keys] == ["FFFFFFFE", "FFFFFFFF", "00000000", "00000001"]
    assert keys[1][:24] != keys[2][:24]


@pytest.mark.parametrize("make", [PositionKeys("r", 0), random_keys])
def test_keys_look_like_those_of_rocketmq(make: object) -> None:
    assert callable(make)
    for key in texts(make(0, None, 20)):
        assert re.fullmatch("[0-9A-F]{32}", key)


def test_random_keys_never_repeat() -> None:
    assert len({*texts(random_keys(0, None, 500)), *texts(random_keys(0, None, 500))}) == 1000


def test_a_column_gives_its_ids_as_they_are_and_other_values_hashed() -> None:
    ids = ["0A" * 16, "0B" * 28]
    column = pa.array([*ids, "order-1", "0a" * 16], type=pa.string()).cast(pa.binary())
    keys = texts(ColumnKeys(random_keys)(0, column, 4))
    assert keys[:2] == ids
    assert keys[2:] == [key_of(b"order-1").decode(), key_of(b"0a" * 16).decode()]


def test_rows_without_a_value_get_a_key_by_position() -> None:
    column = pa.array([None, b"", b"order-1"], type=pa.binary())
    by_position = PositionKeys("r", 0)
    keys = texts(ColumnKeys(by_position)(10, column, 3))
    assert keys[:2] == texts(by_position(10, None, 2))
    assert keys[2] == key_of(b"order-1").decode()
