r"""Parses the properties of many records at once.

A properties text is ``name 0x01 value 0x02 name 0x01 value``, with or without a final 0x02. The
byte before it is the last byte of its length field, which has been read by now. If that byte is
included and treated as a 0x02, every text becomes a sequence of ``0x02 name 0x01 value``. Then the
concatenated texts of all records are one such sequence, in which the two separators alternate:

====================  ====  ======  ====  =======  ====  ====  ====  =====
bytes                 0x02  ``KEYS``  0x01  ``order``  0x02  ``TAGS``  0x01  ``A``
slot of the array     0     1       2     3        4     5     6     7
====================  ====  ======  ====  =======  ====  ====  ====  =====

So names are slots 1, 5, 9 ... and values slots 3, 7, 11 ... ``fallback`` has to read the records if
the separators do not alternate, if a name is empty, or if a record has a name twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from client.producer.columns import RESERVED
from spark_connector.arrow import bytes_of, join_slices, offsets_of, take
from spark_connector.decode.layout import Layout, as_text, require
from spark_connector.decode.model import NeedsFallback

_NAME_END: Final = 1
_ENTRY_END: Final = 2
_SLOTS: Final = 4
_NAME_SLOT: Final = 1
_VALUE_SLOT: Final = 3


@dataclass(frozen=True, slots=True)
class PropertyEntries:
    """All property entries of all records.

    Attributes:
        names, values: an Arrow string array each, with an element per entry.
        offsets: the index of the first entry of each record, and the number of all entries.
        codes: the index in ``known`` of each entry's name.
        known: the distinct names.
    """

    names: Any
    values: Any
    offsets: NDArray[np.int32]
    codes: NDArray[np.int32]
    known: list[str]

    def map_array(self, kind: Any) -> Any:
        """Return an Arrow array with a map for each record."""
        return pa.MapArray.from_arrays(pa.array(self.offsets), self.names, self.values, kind)

    def header_array(self, kind: Any) -> Any:
        """Return an Arrow array with a list of (name, binary value) for each record.

        It leaves out RocketMQ's own properties.
        """
        own = np.array([name in RESERVED for name in self.known], dtype=bool)
        kept = np.flatnonzero(~own[self.codes])
        pairs = pa.StructArray.from_arrays(
            [self.names.take(kept), self.values.take(kept).view(pa.binary())],
            fields=list(kind.value_type),
        )
        offsets = np.searchsorted(kept, self.offsets).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=kind)

    def values_of(self, name: str) -> Any:
        """Return each record's value of a property, null if it doesn't have one."""
        records = len(self.offsets) - 1
        if name not in self.known:
            return pa.nulls(records, pa.string())
        found = np.flatnonzero(self.codes == self.known.index(name)).astype(np.int32)
        if len(found) == records:
            return take(self.values, found)
        indices = np.full(records, -1, dtype=np.int32)
        indices[np.searchsorted(self.offsets, found, side="right") - 1] = found
        return self.values.take(pa.array(indices, mask=indices < 0))


def take_apart(layout: Layout) -> PropertyEntries:
    """Parse the properties of records.

    Raises:
        NeedsFallback: a text is malformed or not UTF-8.
    """
    # Each text with the byte before it and without a final separator; nothing if it is empty.
    begins = layout.properties_at
    ends = layout.ends
    last = np.frombuffer(layout.buffer, np.uint8)[ends - 1]
    ends = ends - ((last == _ENTRY_END) & (ends > begins))
    joined = join_slices(layout.buffer, *(begins - (ends > begins), ends))
    separators, offsets = _separators(bytes_of(joined), offsets_of(joined))
    if not len(separators):
        nothing = pa.array([], pa.string())
        return PropertyEntries(nothing, nothing, offsets, np.empty(0, np.int32), [])
    slots = _slots(joined, separators)
    first_slots = np.arange(0, len(slots), _SLOTS, dtype=np.int32)
    bounds = offsets_of(slots)
    has_value = bounds[_VALUE_SLOT + 1 :: _SLOTS] > bounds[_VALUE_SLOT::_SLOTS]
    if np.count_nonzero(has_value) < len(has_value):
        # Entries with an empty value are dropped.
        before = np.concatenate(([0], np.cumsum(has_value))).astype(np.int32)
        first_slots, offsets = first_slots[has_value], before[offsets]
    names = as_text(take(slots, first_slots + _NAME_SLOT))
    values = as_text(take(slots, first_slots + _VALUE_SLOT))
    codes, known = _same_in_all(names, offsets) or _coded(names, offsets)
    return PropertyEntries(names, values, offsets, codes, known)


def _separators(
    block: NDArray[np.uint8], rows: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Find the separators.

    Args:
        block: the concatenated texts.
        rows: the bounds of the texts in it.

    Returns:
        The positions of the separators, including the first byte of each text, and the index of
        each record's first entry, followed by the number of entries.

    Raises:
        NeedsFallback: the two separators do not alternate, or a name is empty.
    """
    is_separator = block <= _ENTRY_END
    has_entries = rows[1:] > rows[:-1]
    row_starts = rows[:-1][has_entries]
    is_separator[row_starts] = True
    at = np.flatnonzero(is_separator).astype(np.int32)
    entry_starts, name_ends = at[0::2], at[1::2]
    each, rest = divmod(len(entry_starts), len(rows) - 1)
    if each and not rest and not np.count_nonzero(entry_starts[::each] != rows[:-1]):
        # All rows have the same number of entries: no need to search.
        offsets = np.arange(len(rows), dtype=np.int32) * each
    else:
        offsets = np.searchsorted(entry_starts, rows).astype(np.int32)
    first_entries = offsets[:-1][has_entries]
    if len(at) % 2 or (len(row_starts) and first_entries[-1] >= len(entry_starts)):
        raise NeedsFallback
    # The first byte of a row may have any value, so a row could begin where a name should end.
    require(entry_starts[first_entries] == row_starts)
    is_entry_end = block[entry_starts] == _ENTRY_END
    is_entry_end[first_entries] = True
    require(is_entry_end, block[name_ends] == _NAME_END, name_ends - entry_starts > 1)
    return at, offsets


def _slots(joined: Any, separators: NDArray[np.int32]) -> Any:
    """Return the array of slots of the table in the module's docstring, without a copy."""
    number = 2 * len(separators)
    bounds = np.empty(number + 1, dtype=np.int32)
    bounds[0:-1:2] = separators
    bounds[1::2] = separators + 1
    bounds[-1] = len(bytes_of(joined))
    return pa.Array.from_buffers(
        pa.binary(), number, [None, pa.py_buffer(bounds), joined.buffers()[2]]
    )


def _same_in_all(
    names: Any, offsets: NDArray[np.int32]
) -> tuple[NDArray[np.int32], list[str]] | None:
    """Return codes and distinct names if all records have the same names in the same order.

    This is common, as one program sends many similar messages, and cheaper than ``_coded``.

    Returns:
        None if names differ between records, or if a name occurs twice in a record.
    """
    records, number = len(offsets) - 1, int(offsets[1])
    known = names[:number].to_pylist()
    if number * records != len(names) or len(set(known)) < number:
        return None
    ends = offsets_of(names)
    lengths = (ends[1:] - ends[:-1]).reshape(records, number)
    if np.count_nonzero(lengths != lengths[0]):
        return None
    bytes_of_names = bytes_of(names).reshape(records, -1)
    if np.count_nonzero(bytes_of_names != bytes_of_names[0]):
        return None
    return np.tile(np.arange(number, dtype=np.int32), records), known


def _coded(names: Any, offsets: NDArray[np.int32]) -> tuple[NDArray[np.int32], list[str]]:
    encoded = names.dictionary_encode()
    codes = np.asarray(encoded.indices)
    known = encoded.dictionary.to_pylist()
    # The last of two entries with the same name counts, which only the fallback implements.
    of_entry = np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
    of_entry *= len(known)
    of_entry += codes
    of_entry.sort()
    if (np.diff(of_entry) == 0).any():
        raise NeedsFallback
    return codes, known
