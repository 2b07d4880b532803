"""The columns a query may have, and what Spark and Arrow call their types.

Spark prunes no columns of a Python source, but a schema given by the user reaches the reader, and
then exactly these columns have to come back, in this order. Spark compares the schema of the first
Arrow batch with its own by ``Schema.equals``: types, names and nullability. So every column may be
null, even those that never are, because that is what a DDL text says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import pyarrow as pa

from spark_connector.errors import OptionError

__all__ = [
    "COLUMNS",
    "KAFKA_COLUMNS",
    "STORE_COLUMNS",
    "Column",
    "arrow_schema",
    "ddl",
    "fields_of",
    "select",
]


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: as the query sees it.
        ddl: its type as Spark writes it (``simpleString``).
        arrow: its type in a batch.
    """

    name: str
    ddl: str
    arrow: Any


_HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)

_ARROW: Final[dict[str, Any]] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "array<struct<key:string,value:binary>>": _HEADERS,
}


def _columns(**types: str) -> dict[str, Column]:
    return {name: Column(name, ddl, _ARROW[ddl]) for name, ddl in types.items()}


COLUMNS: Final[dict[str, Column]] = _columns(
    topic="string",
    brokerName="string",
    queueId="int",
    queueOffset="bigint",
    body="binary",
    keys="string",
    tags="string",
    bornTimestamp="timestamp",
    storeTimestamp="timestamp",
    bornHost="string",
    reconsumeTimes="int",
    sysFlag="int",
    flag="int",
    messageId="string",
    properties="map<string,string>",
)
"""Of a message read through a broker; ``keys`` is the text as sent, one space between two keys."""

STORE_COLUMNS: Final[dict[str, Column]] = COLUMNS | _columns(
    physicalOffset="bigint", storeSize="int", file="string", crcOk="boolean"
)
"""Of a message read from a store directory; sizes in bytes, ``crcOk`` of the body as stored."""

KAFKA_COLUMNS: Final[dict[str, Column]] = _columns(
    key="binary",
    value="binary",
    topic="string",
    partition="int",
    offset="bigint",
    timestamp="timestamp",
    timestampType="int",
    headers="array<struct<key:string,value:binary>>",
)
"""The names of Spark's Kafka source: ``timestamp`` is when the broker stored the message, so
``timestampType`` is always 1 (LogAppendTime)."""


def ddl(columns: Iterable[Column]) -> str:
    """The schema as a DDL text, such as ``topic string, queueId int``."""
    return ", ".join(f"{column.name} {column.ddl}" for column in columns)


def arrow_schema(columns: Iterable[Column]) -> Any:
    """The ``pyarrow.Schema`` that Spark wants batches of these columns to have."""
    return pa.schema([pa.field(column.name, column.arrow) for column in columns])


def fields_of(schema: Any) -> list[tuple[str, str, bool]]:
    """What ``select`` wants to know of a ``pyspark.sql.types.StructType``."""
    return [
        (
            field.name,
            field.dataType.simpleString(),
            field.nullable and "false" not in field.dataType.json(),
        )
        for field in schema.fields
    ]


def select(
    fields: Sequence[tuple[str, str, bool]], columns: Mapping[str, Column] = COLUMNS
) -> tuple[Column, ...]:
    """The columns of a schema that the user gave, in its order.

    Args:
        fields: name, ``simpleString`` of the type, and whether all of it may be null.
        columns: what there is to choose from.

    Raises:
        OptionError: there is no such column, it has another type or is never null, it is named
            twice, or none is named.
    """
    if not fields:
        raise OptionError("the schema has no columns", f"choose from {', '.join(columns)}")
    chosen: dict[str, Column] = {}
    for name, kind, may_be_null in fields:
        column = columns.get(name)
        if column is None:
            raise OptionError(f"the schema has a column {name!r}", _advice(name, columns))
        if kind != column.ddl:
            raise OptionError(
                f"the schema says that column {name} is {kind}",
                f"read it as {column.ddl} and cast it in the query",
            )
        if not may_be_null:
            raise OptionError(
                f"the schema says that column {name}, or a part of it, is never null",
                "leave NOT NULL out: Spark takes batches only of columns that may be null",
            )
        if name in chosen:
            raise OptionError(f"the schema has column {name} twice", "name it once")
        chosen[name] = column
    return tuple(chosen.values())


def _advice(name: str, columns: Mapping[str, Column]) -> str:
    by_lower = {known.lower(): known for known in columns}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    if near:
        return f"perhaps {by_lower[near[0]]!r} is meant"
    return f"there are {', '.join(columns)}"
