"""Types and documentation of the compiled module."""

from array import array
from collections.abc import Sequence

def walk_keys(
    data: bytes | bytearray | memoryview, base: int, /
) -> tuple[int, array[int], array[int], array[int]]:
    """Return the keys of the records at the beginning of ``data``.

    Args:
        data: a part of the log.
        base: physical offset of its first byte.

    Returns:
        The size of these records in bytes; and, for each key, its hash, and its message's physical
        offset and store time (ms).
    """

def walk_records(
    data: bytes | memoryview,
    base: int,
    levels_ms: Sequence[int],
    synced_ms: int,
    synced_end: int | None,
    /,
    *,
    with_keys: bool = False,
) -> tuple[
    int,
    int,
    int,
    int,
    int,
    list[tuple[tuple[str, int], int, bytearray]],
    array[int],
    array[int],
    array[int],
]:
    """Return the consume queue entries and keys of the valid records at the beginning of ``data``.

    Args:
        data: a part of the log.
        base: physical offset of its first byte.
        levels_ms: the delay of each delay level.
        synced_ms, synced_end: see ``LogWalk``: records after these may have lost a sector.
        with_keys: whether to return the keys; else their columns are empty.

    Returns:
        The size of these records in bytes; their number; physical offset and store time of the
        last; the newest store time; runs of entries (topic and queue id, first queue offset, packed
        entries), those of one queue in the order of the log; and the keys, see ``walk_keys``.
    """

def property_rows(
    data: bytes | memoryview, names: tuple[bytes, ...], /
) -> list[tuple[int, list[str | None]]]:
    """Return some properties of the records at the beginning of ``data``.

    Args:
        data: adjacent records.
        names: of the properties.

    Returns:
        Of each record its size and the properties' values; None for one that it lacks.
    """
