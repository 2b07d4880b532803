"""The columns, and the selection of columns."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from spark_connector.errors import ConnectorError
from spark_connector.schema import (
    COLUMNS,
    KAFKA_COLUMNS,
    STORE_COLUMNS,
    arrow_schema,
    ddl,
    fields_of,
    select,
)


def test_the_columns_of_a_message_as_ddl() -> None:
    assert ddl(COLUMNS.values()) == (
        "topic string, brokerName string, queueId int, queueOffset bigint, body binary, "
        "keys string, tags string, bornTimestamp timestamp, storeTimestamp timestamp, "
        "bornHost string, reconsumeTimes int, sysFlag int, flag int, messageId string, "
        "properties map<string,string>"
    )


def test_a_store_has_more_columns() -> None:
    assert list(STORE_COLUMNS) == [*COLUMNS, "physicalOffset", "storeSize", "file", "crcOk"]


def test_kafka_names_are_those_of_its_source() -> None:
    assert ddl(KAFKA_COLUMNS.values()) == (
        "key binary, value binary, topic string, partition int, offset bigint, "
        "timestamp timestamp, timestampType int, headers array<struct<key:string,value:binary>>"
    )


def test_times_are_microseconds_in_utc() -> None:
    schema = arrow_schema([COLUMNS["storeTimestamp"], COLUMNS["properties"]])
    assert schema.field("storeTimestamp").type == pa.timestamp("us", tz="UTC")
    assert schema.field("storeTimestamp").nullable
    assert schema.field("properties").type.item_field.nullable


def test_a_subset_in_any_order_can_be_chosen() -> None:
    chosen = select([("tags", "string", True), ("body", "binary", True)])
    assert chosen == (COLUMNS["tags"], COLUMNS["body"])


def test_columns_survive_pickling() -> None:
    columns = tuple((STORE_COLUMNS | KAFKA_COLUMNS).values())
    assert pickle.loads(pickle.dumps(columns)) == columns


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("boddy", "binary")], "has a column 'boddy'; perhaps 'body' is meant"),
        ([("Body", "binary")], "has a column 'Body'; perhaps 'body' is meant"),
        ([("queueid", "int")], "perhaps 'queueId' is meant"),
        ([("zzzzzz", "int")], "has a column 'zzzzzz'; there are topic, brokerName"),
        ([("crcOk", "boolean")], "has a column 'crcOk'"),
        ([("queueId", "bigint")], "column queueId is bigint; read it as int and cast"),
        ([("body", "binary"), ("body", "binary")], "has column body twice"),
        ([], "the schema has no columns; choose from topic"),
    ],
)
def test_a_schema_that_is_no_subset_is_an_error(
    fields: list[tuple[str, str]], expected: str
) -> None:
    with pytest.raises(ConnectorError) as caught:
        select([(name, kind, True) for name, kind in fields])
    assert expected in str(caught.value)


def test_columns_of_a_store_are_chosen_from_its_own() -> None:
    assert select([("crcOk", "boolean", True)], STORE_COLUMNS) == (STORE_COLUMNS["crcOk"],)


def test_a_column_that_is_never_null_is_an_error() -> None:
    with pytest.raises(ConnectorError, match=r"column body, or a part of it, is never null"):
        select([("body", "binary", False)])


def test_nullability_is_checked_in_all_parts_of_a_type() -> None:
    from pyspark.sql.types import MapType, StringType, StructField, StructType

    text = StringType()
    schema = StructType(
        [
            StructField("tags", text),
            StructField("keys", text, nullable=False),
            StructField("properties", MapType(text, text, valueContainsNull=False)),
        ]
    )
    assert fields_of(schema) == [
        ("tags", "string", True),
        ("keys", "string", False),
        ("properties", "map<string,string>", False),
    ]
