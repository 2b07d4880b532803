"""The columns of the formats, with their Spark and Arrow types.

Spark does not prune the columns of a Python source, but it passes a schema given by the user to the
reader, which then has to return exactly these columns in this order. Spark compares the schema of
the first Arrow batch with its own by ``Schema.equals``: types, names and nullability. A DDL string
without NOT NULL declares nullable columns, so all columns are nullable, even those that are never
null.
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
        name: the column's name.
        ddl: its Spark type as a string (``simpleString``).
        arrow: its ``pyarrow.DataType``.
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
"""Columns of a message read from a broker; ``keys`` is one string, with a space between keys."""

STORE_COLUMNS: Final[dict[str, Column]] = COLUMNS | _columns(
    physicalOffset="bigint", storeSize="int", file="string", crcOk="boolean"
)
"""Columns of a message read from a store directory: ``storeSize`` in bytes, and ``crcOk`` is
whether the body as stored has the stored CRC."""

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
"""Columns with the names of Spark's Kafka source. ``timestamp`` is when the broker stored the
message, so ``timestampType`` is always 1 (LogAppendTime)."""


def ddl(columns: Iterable[Column]) -> str:
    """Return the schema as a DDL string, such as ``topic string, queueId int``."""
    return ", ".join(f"{column.name} {column.ddl}" for column in columns)


def arrow_schema(columns: Iterable[Column]) -> Any:
    """Return the ``pyarrow.Schema`` that Spark requires of batches with these columns."""
    return pa.schema([pa.field(column.name, column.arrow) for column in columns])


def fields_of(schema: Any) -> list[tuple[str, str, bool]]:
    """Return the fields of a ``pyspark.sql.types.StructType`` as arguments of ``select``."""
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
    """Return the columns named by a schema, in its order.

    Args:
        fields: name, ``simpleString`` of the type, and whether it and all its parts are nullable.
        columns: the columns that exist, by name.

    Raises:
        OptionError: a column doesn't exist, has another type, is not nullable or is named twice,
            or the schema is empty.
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
