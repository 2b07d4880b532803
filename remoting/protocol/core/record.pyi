"""Types of the compiled module; what is public is told here."""

from array import array
from collections.abc import Sequence

def walk_keys(
    data: bytes | bytearray | memoryview, base: int, /
) -> tuple[int, array[int], array[int], array[int]]:
    """The keys of the records at the beginning of ``data``, which lies at ``base`` of the log.

    Returns:
        Bytes of these records, and of each key its hash, and its message's physical offset and
        store time.
    """

def walk_records(
    view: memoryview,
    base: int,
    levels_ms: Sequence[int],
    synced_ms: int,
    synced_end: int | None,
    /,
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
    """What the good records at the beginning of ``view`` call for.

    Args:
        view: a piece of the log.
        base: physical offset of its first byte.
        levels_ms: delay levels.
        synced_ms, synced_end: see ``LogWalk``: records behind these may have lost a sector.

    Returns:
        Bytes of these records; how many they are; physical offset and store time of the last; the
        newest store time; runs of entries (topic and queue id, first queue offset, packed entries),
        those of one queue in the log's order; and the keys, see ``walk_keys``.
    """
