r"""Encodes rows to the elements of a batch message: fixed fields, body and properties.

The ``properties`` column becomes ``0x02 name 0x01 value`` for each entry. The entries of all rows
are joined at once; the text of a row is a range of the result. Entries are dropped if they have no
value, or a name that is reserved for brokers and clients: a property that a broker has added
(``CLUSTER``, ``UNIQ_KEY``, ...) must not be written again when an archive is replayed. But ``KEYS``
and ``TAGS`` are used in rows without a value in the columns ``keys`` and ``tags``.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from client.producer.columns import RESERVED
from remoting.protocol.limits import MAX_MESSAGE_BYTES, MAX_PROPERTIES_BYTES
from remoting.protocol.message.batch import ELEMENT_FIXED_BYTES
from remoting.protocol.message.properties import ENTRY_END, KEYS, NAME_END, TAGS, UNIQ_KEY
from spark_connector.arrow import (
    binary_of,
    binary_of_rows,
    bytes_of,
    lengths_of,
    mask_of,
    offsets_of,
)
from spark_connector.sink.columns import Rows, unsendable

STAND_INS: Final = ((KEYS, "keys"), (TAGS, "tags"))
"""Reserved names that are used in rows where the given column is empty."""

_DROPPED_VALUES: Final = pa.array([name.encode() for name in sorted(RESERVED)], type=pa.binary())


def own_texts(rows: Rows) -> Any:
    """Encode the ``properties`` column.

    Returns:
        The text of each row as a binary array without nulls; None if no row has an entry.

    Raises:
        ConnectorError: a name or a value can't be written.
    """
    maps = rows.get("properties")
    if maps is None:
        return None
    offsets = np.asarray(maps.offsets)
    counts = np.diff(offsets)
    names = maps.keys[offsets[0] : offsets[-1]]
    values = maps.items[offsets[0] : offsets[-1]]
    row_of = np.repeat(np.arange(rows.count), counts)
    kept = _kept(rows, maps, names, values, row_of)
    if not kept.any():
        return None
    if not kept.all():
        mask = pa.array(kept)
        names, values = names.filter(mask), values.filter(mask)
        row_of = row_of[kept]
        counts = np.bincount(row_of, minlength=rows.count)
    entries = pc.binary_join_element_wise(ENTRY_END, names, NAME_END, values, b"")
    # The last argument is the separator: empty, as NAME_END is joined like any other element.
    _check(rows, names, values, entries, row_of)
    ends = np.concatenate(([0], np.cumsum(counts)))
    return binary_of(offsets_of(entries)[ends], entries.buffers()[2])


def _kept(
    rows: Rows, maps: Any, names: Any, values: Any, row_of: NDArray[np.int64]
) -> NDArray[np.bool_]:
    kept = mask_of(values.is_valid())
    if maps.null_count:
        # Arrow leaves the entries under a null map undefined.
        kept &= mask_of(maps.is_valid())[row_of]
    dropped = mask_of(pc.is_in(names, value_set=_DROPPED_VALUES))
    if dropped.any():
        for name, column in STAND_INS:
            present = rows.present(column)
            stands_in = mask_of(pc.equal(names, name.encode()))
            if present is not None:
                stands_in &= ~mask_of(present)[row_of]
            dropped &= ~stands_in
        kept &= ~dropped
    return kept


def _check(rows: Rows, names: Any, values: Any, entries: Any, row_of: NDArray[np.int64]) -> None:
    data = bytes_of(entries)
    fine = (
        np.count_nonzero(data == ENTRY_END[0]) == len(entries)
        and np.count_nonzero(bytes_of(names) == NAME_END[0]) == 0
        and lengths_of(names).all()
        and lengths_of(values).all()
    )
    if fine:
        return
    for index, (name, value) in enumerate(zip(names.to_pylist(), values.to_pylist(), strict=True)):
        problem = problem_of(name, value)
        if problem:
            hint = "drop or clean this entry of the column properties"
            raise unsendable(rows.first + int(row_of[index]), problem, hint)


def problem_of(name: bytes, value: bytes) -> str:
    """Return why an entry would be unreadable in the encoded form, or an empty string."""
    shown = name[:80].decode("utf-8", "replace")
    if not name:
        return "a property has an empty name"
    if NAME_END in name or ENTRY_END in name:
        return f"the name of its property {shown!r} holds 0x01 or 0x02"
    if not value:
        return f"the value of its property {shown!r} is empty"
    if ENTRY_END in value:
        return f"the value of its property {shown!r} holds 0x02"
    return ""


_HEAD: Final = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")]
)
_UNIQ_KEY: Final = UNIQ_KEY.encode() + NAME_END


Part = Any
"""A part of each row's properties: ``bytes`` if it is the same in all rows, or a binary array."""


def elements(rows: Rows, unique_keys: Any) -> Any:
    """Encode rows to elements of a batch message.

    Args:
        rows: the rows.
        unique_keys: the unique key of each row.

    Returns:
        A binary array with one element per row.

    Raises:
        ConnectorError: a row can't be encoded.
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
        *parts,
        b"",
    )


def body_sizes(rows: Rows) -> NDArray[np.int64]:
    """Return the length of each body in bytes. Raises ConnectorError for one that is invalid."""
    bodies = rows.get("body")
    if bodies.null_count:
        at = int(np.argmin(mask_of(bodies.is_valid())))
        hint = "filter such rows out; a message has a body"
        raise unsendable(rows.first + at, "its body is null", hint)
    sizes = lengths_of(bodies)
    wrong = np.flatnonzero((sizes == 0) | (sizes > MAX_MESSAGE_BYTES))
    if len(wrong):
        at = int(wrong[0])
        if not sizes[at]:
            raise unsendable(rows.first + at, "its body is empty", "filter such rows out")
        why = f"its body has {sizes[at]} bytes, {MAX_MESSAGE_BYTES} are allowed"
        raise unsendable(rows.first + at, why, "split it, or write a reference to it")
    return sizes


def property_parts(rows: Rows, unique_keys: Any) -> list[Part]:
    """Return the parts of which each row's properties text consists, in order."""
    parts = [_UNIQ_KEY, unique_keys]
    for name, column in ((TAGS, "tags"), (KEYS, "keys")):
        parts += _optional(rows, name, column)
    own = own_texts(rows)
    if own is not None:
        parts.append(own)
    return parts


def _optional(rows: Rows, name: str, column: str) -> list[Part]:
    present = rows.present(column)
    if present is None or not pc.any(present).as_py():
        return []
    values = rows.get(column)
    _check_value(rows, values, column)
    prefix = ENTRY_END + name.encode() + NAME_END
    if pc.all(present).as_py():
        return [prefix, values]
    texts = pc.binary_join_element_wise(prefix, values, b"", null_handling="skip")
    return [pc.if_else(present, texts, pa.scalar(b"", type=pa.binary()))]


def _check_value(rows: Rows, values: Any, column: str) -> None:
    if not (bytes_of(values) == ENTRY_END[0]).any():
        return
    for index, value in enumerate(values.to_pylist()):
        if value and ENTRY_END in value:
            why = f"its {column} hold 0x02"
            raise unsendable(rows.first + index, why, f"clean the column {column}")


def text_sizes(rows: Rows, parts: list[Part]) -> NDArray[np.int64]:
    """Return the length of each properties text. Raises ConnectorError for one that is too long."""
    sizes = np.zeros(rows.count, dtype=np.int64)
    for part in parts:
        sizes += len(part) if isinstance(part, bytes) else lengths_of(part)
    if rows.count and int(sizes.max()) > MAX_PROPERTIES_BYTES:
        at = int(sizes.argmax())
        why = f"its properties take {sizes[at]} bytes, {MAX_PROPERTIES_BYTES} are allowed"
        raise unsendable(rows.first + at, why, "move data into the body")
    return sizes


def _as_rows(column: NDArray[Any]) -> Any:
    return binary_of_rows(column.view(np.uint8).reshape(len(column), column.dtype.itemsize))
