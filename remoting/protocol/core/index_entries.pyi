"""Types of the compiled module; what is public is told here."""

from array import array
from mmap import mmap

def link(
    hashes: array[int],
    offsets: array[int],
    times_ms: array[int],
    buffer: bytearray | memoryview | mmap,
    slots: int,
    entries: int,
    next_entry: int,
    begin_ms: int,
    /,
) -> tuple[bytes, array[int], array[int], int]:
    """See ``IndexTable.link``: packed entries, slots, what they lead to, and slots newly used.

    Raises:
        ValueError: columns are not equally long, or the buffer lacks slots.
    """

def set_slots(
    buffer: bytearray | memoryview | mmap, slots: array[int], numbers: array[int], /
) -> None:
    """Have slots of a table lead to entries. Raises ``ValueError`` for one beyond the buffer."""

def reaches(data: bytearray, border: int, /) -> bool:
    """Whether one of some packed entries lies at or behind a physical offset."""

def chain(data: bytearray, first: int, newest: array[int], /) -> bool:
    """Whether packed entries lead where a writer has them lead; only then ``newest`` changes.

    Args:
        data: packed entries.
        first: number of the first of them.
        newest: of each slot the entry that it leads to before them.
    """

def match(
    data: bytearray, hashes: array[int], offsets: array[int], times_ms: array[int], begin_ms: int, /
) -> bool:
    """Whether packed entries are those of keys, dated from a time."""
