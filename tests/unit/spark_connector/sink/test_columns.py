"""Which frames can be written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_connector.errors import OptionError
from spark_connector.schema import COLUMNS, KAFKA_COLUMNS, STORE_COLUMNS, Column
from spark_connector.sink.columns import Rows, choose, writable
from spark_connector.sink.placing import BY_COLUMN, BY_HASH, deciding_columns


def test_kafkas_names_and_any_case_are_understood() -> None:
    fields = [("value", "string"), ("KEY", "binary"), ("Tags", "varchar(20)")]
    assert choose(fields) == {"body": "value", "keys": "KEY", "tags": "Tags"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([("keys", "string")], "no column 'body' or 'value', but keys"),
        ([("body", "binary"), ("value", "string")], "'body' and 'value' to write both mean body"),
        ([("body", "int")], "'body' to write is of type int, it has to be binary or string"),
        ([("body", "binary"), ("tag", "string")], "the sink has no column 'tag'.*mean 'tags'"),
        (
            [("body", "binary"), ("properties", "string")],
            "has to be array<.*> or map<string,string>",
        ),
    ],
)
def test_a_frame_that_does_not_fit_is_refused(fields: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        choose(fields)


def test_headers_of_kafkas_sink_are_properties() -> None:
    kind = KAFKA_COLUMNS["headers"].arrow
    headers = pa.array([None, [("x", b"0")], [("a", b"1"), ("b", None)], None, []], type=kind)
    batch = pa.record_batch({"value": pa.array([b""] * 4), "headers": headers.slice(1)})
    rows = Rows.of(batch, {"body": "value", "properties": "headers"}, 0)
    expected = [[(b"x", b"0")], [(b"a", b"1"), (b"b", None)], None, []]
    assert rows.get("properties").to_pylist() == expected


@pytest.mark.parametrize("columns", [COLUMNS, STORE_COLUMNS, KAFKA_COLUMNS])
def test_a_frame_that_was_read_is_written_without_what_only_a_read_message_has(
    columns: dict[str, Column],
) -> None:
    fields = [(name, column.ddl) for name, column in columns.items()]
    wanted = {"topic", "body", "keys", "tags", "flag", "properties"}
    if columns is KAFKA_COLUMNS:
        wanted -= {"tags", "flag"}
    assert choose(writable(fields)).keys() == wanted


def test_a_place_is_kept_on_request_and_in_a_frame_that_was_not_read() -> None:
    place = [("brokerName", "string"), ("queueId", "int"), ("body", "binary")]
    read = [*place, ("queueOffset", "bigint")]
    assert writable(place) == writable(read, keep_place=True) == place
    # The same name with another type is a mistake that choose() reports.
    assert ("queueOffset", "string") in writable([("queueOffset", "string")])


@pytest.mark.parametrize(
    ("partitioner", "names", "expected"),
    [
        (None, ["body"], ()),
        (None, ["body", "keys"], ()),
        (None, ["body", "shardingKey"], BY_HASH),
        (None, ["body", "shardingKey", "queueId"], BY_COLUMN),
        ("hashKeys", ["body", "keys"], BY_HASH),
        ("column", ["body", "queueId", "brokerName"], BY_COLUMN),
    ],
)
def test_the_columns_decide_the_queue_unless_the_option_does(
    partitioner: str | None, names: list[str], expected: tuple[str, ...]
) -> None:
    assert tuple(deciding_columns(partitioner, names)) == expected


@pytest.mark.parametrize(
    ("partitioner", "names", "words"),
    [
        ("column", ["body"], "needs the column queueId"),
        ("hashKeys", ["body"], "needs the column shardingKey or keys"),
        ("hashKeys", ["body", "keys", "queueId"], "hashKeys does not use the column queueId"),
        ("roundRobin", ["body", "shardingKey"], "does not use the column shardingKey"),
        (None, ["body", "brokerName"], "does not use the column brokerName"),
    ],
)
def test_an_option_that_contradicts_the_columns_is_refused(
    partitioner: str | None, names: list[str], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        deciding_columns(partitioner, names)
