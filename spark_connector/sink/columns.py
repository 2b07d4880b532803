"""The columns of a data frame that the sink writes, and their types.

The driver checks the schema of the data frame before any task starts; tasks then convert the
columns of each Arrow batch to ``Rows``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_connector.errors import ConnectorError, OptionError
from spark_connector.schema import KAFKA_COLUMNS, STORE_COLUMNS

_TEXT: Final = frozenset({"string"})
_BYTES: Final = frozenset({"binary", "string"})
_NUMBER: Final = frozenset({"tinyint", "smallint", "int", "bigint"})

SINK_TYPES: Final[Mapping[str, frozenset[str]]] = {
    "body": _BYTES,
    "topic": _TEXT,
    "keys": _BYTES,
    "tags": _TEXT,
    "shardingKey": _TEXT,
    "brokerName": _TEXT,
    "queueId": _NUMBER,
    "delayLevel": _NUMBER,
    "deliverTimestamp": frozenset({"timestamp"}),
    "flag": frozenset({"tinyint", "smallint", "int"}),
    "properties": frozenset({"map<string,string>", KAFKA_COLUMNS["headers"].ddl}),
    "uniqKey": _TEXT,
}
"""The columns of the sink, and the Spark types that each may have."""

ALIASES: Final[Mapping[str, str]] = {"value": "body", "key": "keys", "headers": "properties"}
"""The names of Spark's Kafka sink."""

_BY_LOWER: Final = {
    **{name.lower(): name for name in SINK_TYPES},
    **{alias.lower(): name for alias, name in ALIASES.items()},
}
_CHARACTERS: Final = re.compile(r"(var)?char\(\d+\)")
_ARROW: Final[Mapping[str, Any]] = {
    "queueId": pa.int64(),
    "delayLevel": pa.int64(),
    "flag": pa.int32(),
    "deliverTimestamp": pa.timestamp("ms", tz="UTC"),
    "properties": pa.map_(pa.binary(), pa.binary()),
}


_READ_ONLY: Final = {
    (column.name.lower(), column.ddl)
    for column in (*STORE_COLUMNS.values(), *KAFKA_COLUMNS.values())
    if column.name.lower() not in _BY_LOWER
}
_PLACE: Final = {"brokername", "queueid"}


def writable(fields: list[tuple[str, str]], *, keep_place: bool = False) -> list[tuple[str, str]]:
    """Return the columns of a data frame without those that only a message that was read has.

    In a frame with such columns, ``brokerName`` and ``queueId`` say where a message was read.

    Args:
        fields: name and type (``simpleString``) of each column of the data frame.
        keep_place: whether they also say where it is written to.
    """
    rest = [(name, kind) for name, kind in fields if (name.lower(), kind) not in _READ_ONLY]
    if keep_place or len(rest) == len(fields):
        return rest
    return [(name, kind) for name, kind in rest if name.lower() not in _PLACE]


def choose(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Map the sink's column names to those of a data frame.

    Args:
        fields: name and type (``simpleString``) of each column of the data frame.

    Raises:
        OptionError: a column is unknown, has a wrong type or occurs twice, or there is no body.
    """
    chosen: dict[str, str] = {}
    for name, kind in fields:
        column = _BY_LOWER.get(name.lower())
        if column is None:
            raise _unknown(name)
        if column in chosen:
            raise OptionError(
                f"the columns {chosen[column]!r} and {name!r} to write both mean {column}",
                "drop one of them",
            )
        if _CHARACTERS.sub("string", kind) not in SINK_TYPES[column]:
            types = " or ".join(sorted(SINK_TYPES[column]))
            raise OptionError(
                f"the column {name!r} to write is of type {kind}, it has to be {types}",
                "cast it",
            )
        chosen[column] = name
    if "body" not in chosen:
        raise OptionError(
            "the frame to write has no column 'body' or 'value', but "
            f"{', '.join(chosen) or 'none'}",
            "select the message's body as 'body', string or binary",
        )
    return chosen


def _unknown(name: str) -> OptionError:
    near = get_close_matches(name.lower(), _BY_LOWER, n=1)
    advice = f"did you mean {_BY_LOWER[near[0]]!r}? " if near else ""
    return OptionError(
        f"the sink has no column {name!r}",
        f"{advice}write only {', '.join(SINK_TYPES)}; select or rename others",
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """The columns of one batch, converted to fixed Arrow types.

    Strings and bodies are binary arrays, ``queueId`` and ``delayLevel`` int64, ``flag`` int32,
    ``deliverTimestamp`` a timestamp in ms, ``properties`` a map from binary to binary.

    Attributes:
        first: the number of the first row within its task.
        count: the number of rows.
        columns: the columns by their names in the sink.
    """

    first: int
    count: int
    columns: Mapping[str, Any]

    @classmethod
    def of(cls, batch: Any, chosen: Mapping[str, str], first: int) -> Rows:
        """Convert a record batch.

        Args:
            batch: the ``pyarrow.RecordBatch``.
            chosen: the column names, as returned by ``choose``.
            first: the number of the first row within its task.

        Raises:
            ConnectorError: ``keys`` is a binary column with a value that is not UTF-8.
        """
        columns = {
            name: _plain(batch.column(column), _ARROW.get(name, pa.binary()))
            for name, column in chosen.items()
        }
        if "keys" in chosen:
            kind = batch.column(chosen["keys"]).type
            types = pa.types
            if not (
                types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
            ):
                _check_utf8(columns["keys"], first)
        return cls(first, batch.num_rows, columns)

    def get(self, name: str) -> Any:
        """Return a column, or None if the data frame doesn't have it."""
        return self.columns.get(name)

    def slice(self, start: int, count: int) -> Rows:
        """Return consecutive rows, without copying."""
        columns = {name: column.slice(start, count) for name, column in self.columns.items()}
        return Rows(self.first + start, count, columns)

    def present(self, name: str) -> Any:
        """Return for each row whether a column has a value that is not empty.

        Returns:
            An Arrow array of booleans; None if the column is missing or has only nulls.
        """
        column = self.columns.get(name)
        if column is None or column.null_count == len(column):
            return None
        return pc.fill_null(pc.greater(pc.binary_length(column), 0), False)


def unsendable(row: int, why: str, hint: str) -> ConnectorError:
    """Return the error for a row that can't be sent.

    Args:
        row: its number within the task.
        why: a clause about the row.
        hint: what to do about it.
    """
    return ConnectorError(f"row {row} of the task can't be sent: {why}", hint)


def _check_utf8(keys: Any, first: int) -> None:
    try:
        keys.cast(pa.string())
    except pa.ArrowInvalid:
        for index, value in enumerate(keys.to_pylist()):
            if value is not None and value.decode("utf-8", "ignore").encode() != value:
                raise unsendable(
                    first + index,
                    "its keys are not UTF-8",
                    "write them as text, e.g. with hex() or base64()",
                ) from None
        raise


def _plain(column: Any, wanted: Any) -> Any:
    if column.type == wanted:
        return column
    if pa.types.is_map(wanted) and pa.types.is_list(column.type):
        # Headers of Spark's Kafka source: a map is such a list, with keys that are never null.
        buffers, kind = column.buffers()[:2], pa.map_(pa.string(), pa.binary())
        column = pa.Array.from_buffers(
            kind, len(column), buffers, offset=column.offset, children=[column.values]
        )
    if pa.types.is_timestamp(wanted):
        # Truncate microseconds instead of raising: a message may be delivered up to 1 ms early.
        return column.cast(wanted, safe=False)
    if wanted == pa.binary() and pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    return column.cast(wanted)
