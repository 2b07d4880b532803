"""Rows as elements of a batch, laid out by C++: no Python code runs for a row.

An element is head, body, length of the properties, properties (see ``remoting``'s batch codec).
Heads and lengths are written by numpy as whole columns; one ``binary_join_element_wise`` then puts
all parts of all rows behind one another, and its buffer is the body of batch sends.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from remoting.protocol.limits import MAX_MESSAGE_BYTES, MAX_PROPERTIES_BYTES
from remoting.protocol.message.batch import ELEMENT_FIXED_BYTES
from remoting.protocol.message.properties import ENTRY_END, KEYS, NAME_END, TAGS, UNIQ_KEY
from spark_connector.encode.arrays import binary_of_rows, bytes_of, lengths_of, mask_of
from spark_connector.encode.columns import Rows
from spark_connector.encode.own_properties import own_texts
from spark_connector.errors import ConnectorError

_HEAD: Final = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")]
)
_UNIQ_KEY: Final = UNIQ_KEY.encode() + NAME_END


class Part:
    """A part of each row's properties: a value for all, or an array."""

    __slots__ = ("lengths", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.lengths: NDArray[np.int64] | int = (
            len(value) if isinstance(value, bytes) else lengths_of(value)
        )


def elements(rows: Rows, unique_keys: Any) -> Any:
    """The elements of rows as a binary array.

    Raises:
        ConnectorError: a row can't be sent.
    """
    bodies = rows.get("body")
    sizes = body_sizes(rows)
    parts = property_parts(rows, unique_keys)
    texts = text_sizes(rows, parts)
    heads = np.zeros(rows.count, dtype=_HEAD)
    heads["size"] = sizes + texts + ELEMENT_FIXED_BYTES
    heads["body"] = sizes
    flags = rows.get("flag")
    if flags is not None:
        heads["flag"] = pc.fill_null(flags, 0).to_numpy()
    return pc.binary_join_element_wise(
        _as_rows(heads),
        bodies,
        _as_rows(texts.astype(">u2")),
        *(part.value for part in parts),
        b"",
    )


def body_sizes(rows: Rows) -> NDArray[np.int64]:
    """The length of each body. Raises ConnectorError for one that can't be sent."""
    bodies = rows.get("body")
    if bodies.null_count:
        at = int(np.argmin(mask_of(bodies.is_valid())))
        raise ConnectorError(
            f"row {rows.first + at} of the task can't be sent: its body is null",
            "filter such rows out; a message has a body",
        )
    sizes = lengths_of(bodies)
    wrong = np.flatnonzero((sizes == 0) | (sizes > MAX_MESSAGE_BYTES))
    if len(wrong):
        at = int(wrong[0])
        why = f"has {sizes[at]} bytes, {MAX_MESSAGE_BYTES} are allowed" if sizes[at] else "is empty"
        raise ConnectorError(
            f"row {rows.first + at} of the task can't be sent: its body {why}",
            "split it, or write a reference to it" if sizes[at] else "filter such rows out",
        )
    return sizes


def property_parts(rows: Rows, unique_keys: Any) -> list[Part]:
    """What each row's properties text is put together from, in order."""
    parts = [Part(_UNIQ_KEY), Part(unique_keys)]
    for name, column in ((TAGS, "tags"), (KEYS, "keys")):
        parts += _optional(rows, name, column)
    own = own_texts(rows)
    if own is not None:
        parts.append(Part(own))
    return parts


def _optional(rows: Rows, name: str, column: str) -> list[Part]:
    present = rows.present(column)
    if present is None or not pc.any(present).as_py():
        return []
    values = rows.get(column)
    _check_value(rows, values, column)
    prefix = ENTRY_END + name.encode() + NAME_END
    if pc.all(present).as_py():
        return [Part(prefix), Part(values)]
    texts = pc.binary_join_element_wise(prefix, values, b"", null_handling="skip")
    return [Part(pc.if_else(present, texts, pa.scalar(b"", type=pa.binary())))]


def _check_value(rows: Rows, values: Any, column: str) -> None:
    if not (bytes_of(values) == ENTRY_END[0]).any():
        return
    for index, value in enumerate(values.to_pylist()):
        if value and ENTRY_END in value:
            raise ConnectorError(
                f"row {rows.first + index} of the task can't be sent: its {column} hold 0x02",
                f"clean the column {column}",
            )


def text_sizes(rows: Rows, parts: list[Part]) -> NDArray[np.int64]:
    """The length of each properties text. Raises ConnectorError for one that is too long."""
    sizes = np.zeros(rows.count, dtype=np.int64)
    for part in parts:
        sizes += part.lengths
    if rows.count and int(sizes.max()) > MAX_PROPERTIES_BYTES:
        at = int(sizes.argmax())
        raise ConnectorError(
            f"row {rows.first + at} of the task can't be sent: its properties take {sizes[at]} "
            f"bytes, {MAX_PROPERTIES_BYTES} are allowed",
            "move data into the body",
        )
    return sizes


def _as_rows(column: NDArray[Any]) -> Any:
    return binary_of_rows(column.view(np.uint8).reshape(len(column), column.dtype.itemsize))
