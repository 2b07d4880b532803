"""Types and documentation of the compiled module."""

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
    """Compute the entries to add for some keys; see ``IndexTable.link``.

    Returns:
        The packed entries, the slots that change, their new values, and the number of slots that
        were unused before.

    Raises:
        ValueError: columns are not equally long, or the buffer lacks slots.
    """

def set_slots(
    buffer: bytearray | memoryview | mmap, slots: array[int], numbers: array[int], /
) -> None:
    """Write entry numbers into slots. Raises ``ValueError`` for a slot beyond the buffer."""

def reaches(data: bytearray, border: int, /) -> bool:
    """Return whether an entry has a physical offset of at least ``border``."""

def chain(data: bytearray, first: int, newest: array[int], /) -> bool:
    """Return whether the chains of packed entries are what a writer would have written.

    ``newest`` is updated only if they are.

    Args:
        data: packed entries.
        first: number of the first entry.
        newest: for each slot, the number of its newest entry before ``first``.
    """

def match(
    data: bytearray, hashes: array[int], offsets: array[int], times_ms: array[int], begin_ms: int, /
) -> bool:
    """Return whether packed entries are those of the given keys, with times since ``begin_ms``."""
