r"""The properties of many records, taken apart at once.

A text is ``name 0x01 value 0x02 name 0x01 value``, with or without a last 0x02. The byte before it
is the last one of its length, which is known by now. Taken along, and counted as a 0x02, it makes
every text a sequence of ``0x02 name 0x01 value``. Put together, the texts of all records are then
one such sequence, in which separators of both kinds take turns:

====================  ====  ======  ====  =======  ====  ====  ====  =====
bytes                 0x02  ``KEYS``  0x01  ``order``  0x02  ``TAGS``  0x01  ``A``
slot of the array     0     1       2     3        4     5     6     7
====================  ====  ======  ====  =======  ====  ====  ====  =====

So names are slots 1, 5, 9 ... and values slots 3, 7, 11 ... If the two do not take turns, if a
name is empty, or if a record has a name twice, some text is odd, and ``fallback`` has to read these
records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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
    """All entries of all records.

    Attributes:
        names: of every entry.
        values: the same.
        offsets: the records' first entries, and the number of all.
        codes: for every entry, which of ``known`` its name is.
        known: the different names.
    """

    names: Any
    values: Any
    offsets: NDArray[np.int32]
    codes: NDArray[np.int32]
    known: list[str]

    def map_array(self, kind: Any) -> Any:
        """The entries as a map for each record."""
        return pa.MapArray.from_arrays(pa.array(self.offsets), self.names, self.values, kind)

    def header_array(self, kind: Any) -> Any:
        """The entries as a list of pairs for each record, the values binary."""
        fields = list(kind.value_type)
        pairs = pa.StructArray.from_arrays(
            [self.names, self.values.view(pa.binary())], fields=fields
        )
        return pa.ListArray.from_arrays(pa.array(self.offsets), pairs, type=kind)

    def values_of(self, name: str) -> Any:
        """Each record's value under a name, null where there is none."""
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
    """The entries of records.

    Raises:
        NeedsFallback: a text is odd, or not UTF-8.
    """
    # Each text with the byte before it and without a last separator; nothing if it is empty.
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
        # An entry without a value counts as none.
        before = np.concatenate(([0], np.cumsum(has_value))).astype(np.int32)
        first_slots, offsets = first_slots[has_value], before[offsets]
    names = as_text(take(slots, first_slots + _NAME_SLOT))
    values = as_text(take(slots, first_slots + _VALUE_SLOT))
    codes, known = _same_in_all(names, offsets) or _coded(names, offsets)
    return PropertyEntries(names, values, offsets, codes, known)


def _separators(
    block: NDArray[np.uint8], rows: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Where the separators are, the first byte of each row included, and which are the rows' first
    entries; after it was made sure that the two kinds take turns and that no name is empty.
    """
    is_separator = block <= _ENTRY_END
    has_entries = rows[1:] > rows[:-1]
    row_starts = rows[:-1][has_entries]
    is_separator[row_starts] = True
    at = np.flatnonzero(is_separator).astype(np.int32)
    entry_starts, name_ends = at[0::2], at[1::2]
    each, rest = divmod(len(entry_starts), len(rows) - 1)
    if each and not rest and not np.count_nonzero(entry_starts[::each] != rows[:-1]):
        # All rows have equally many entries: no need to search.
        offsets = np.arange(len(rows), dtype=np.int32) * each
    else:
        offsets = np.searchsorted(entry_starts, rows).astype(np.int32)
    first_entries = offsets[:-1][has_entries]
    if len(at) % 2 or (len(row_starts) and first_entries[-1] >= len(entry_starts)):
        raise NeedsFallback
    # A row could begin where a name is to end, for its first byte may be any.
    require(entry_starts[first_entries] == row_starts)
    is_entry_end = block[entry_starts] == _ENTRY_END
    is_entry_end[first_entries] = True
    require(is_entry_end, block[name_ends] == _NAME_END, name_ends - entry_starts > 1)
    return at, offsets


def _slots(joined: Any, separators: NDArray[np.int32]) -> Any:
    """The array of the table above, over the block that is there already."""
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
    """Codes and names if all records have the same names in the same order, and none twice.

    So it is as long as one program sends, and then finding out costs less than coding.
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
    # No record may have a name twice: the last one would have to win.
    of_entry = np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
    of_entry *= len(known)
    of_entry += codes
    of_entry.sort()
    if (np.diff(of_entry) == 0).any():
        raise NeedsFallback
    return codes, known
