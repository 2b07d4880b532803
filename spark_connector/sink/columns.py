"""Which columns of a frame make a message, and what they may hold.

Pure names and types: the driver checks a frame's schema before anything runs, a task takes the
columns out of each batch by the result.
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
    "properties": frozenset({"map<string,string>"}),
    "uniqKey": _TEXT,
}
"""The columns a sink takes, and Spark's names of the types each may have."""

ALIASES: Final[Mapping[str, str]] = {"value": "body", "key": "keys"}
"""Kafka's names."""

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


def choose(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What each column of a frame is to a sink: sink's name -> frame's name.

    Args:
        fields: name and Spark's ``simpleString`` of the type of each.

    Raises:
        OptionError: a column is unknown, there twice or of a type it can't have; or no ``body``.
    """
    found: dict[str, str] = {}
    for name, kind in fields:
        known = _BY_LOWER.get(name.lower())
        if known is None:
            raise _unknown(name)
        if known in found:
            raise OptionError(
                f"the columns {found[known]!r} and {name!r} to write both mean {known}",
                "drop one of them",
            )
        if _CHARACTERS.sub("string", kind) not in SINK_TYPES[known]:
            wanted = " or ".join(sorted(SINK_TYPES[known]))
            raise OptionError(
                f"the column {name!r} to write is of type {kind}, it has to be {wanted}",
                "cast it",
            )
        found[known] = name
    if "body" not in found:
        raise OptionError(
            f"the frame to write has no column 'body' or 'value', but {', '.join(found) or 'none'}",
            "select the message's body as 'body', string or binary",
        )
    return found


def _unknown(name: str) -> OptionError:
    near = get_close_matches(name.lower(), _BY_LOWER, n=1)
    advice = f"did you mean {_BY_LOWER[near[0]]!r}? " if near else ""
    return OptionError(
        f"a message has no place for the column {name!r}",
        f"{advice}write only {', '.join(SINK_TYPES)}; select or rename others",
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """The columns of one batch, each of one plain Arrow type; None: the frame has no such column.

    Texts and bodies are ``binary`` arrays, numbers int64, ``properties`` a map of two binaries.
    ``first`` is the first row's number in its task.
    """

    first: int
    count: int
    columns: Mapping[str, Any]

    @classmethod
    def of(cls, batch: Any, chosen: Mapping[str, str], first: int) -> Rows:
        """The rows of a record batch by what ``choose`` gave.

        Raises:
            ConnectorError: ``keys`` were given as bytes that are no text.
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
        """A column, or None."""
        return self.columns.get(name)

    def slice(self, start: int, count: int) -> Rows:
        """Some rows in a row, without copying."""
        columns = {name: column.slice(start, count) for name, column in self.columns.items()}
        return Rows(self.first + start, count, columns)

    def present(self, name: str) -> Any:
        """Per row, whether it has a text that is not empty, as an Arrow array; None: no row."""
        column = self.columns.get(name)
        if column is None or column.null_count == len(column):
            return None
        return pc.fill_null(pc.greater(pc.binary_length(column), 0), False)


def _check_utf8(keys: Any, first: int) -> None:
    try:
        keys.cast(pa.string())
    except pa.ArrowInvalid:
        for index, value in enumerate(keys.to_pylist()):
            if value is not None and value.decode("utf-8", "ignore").encode() != value:
                raise ConnectorError(
                    f"row {first + index} of the task can't be sent: its keys are not UTF-8",
                    "write them as text, e.g. with hex() or base64()",
                ) from None
        raise


def _plain(column: Any, wanted: Any) -> Any:
    if column.type == wanted:
        return column
    if pa.types.is_timestamp(wanted):
        # Truncating: a message may come a millisecond early, never an error for microseconds.
        return column.cast(wanted, safe=False)
    if wanted == pa.binary() and pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    return column.cast(wanted)
