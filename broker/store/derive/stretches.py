"""Good records by the thousand, for a start that has many of them to walk over.

What ``LogWalk`` finds one by one the compiled core finds together, by the same rules. Where a
record is not plainly good, a stretch ends and the walk has a closer look.

Imported only where the compiled core runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.store.derive.runs import EntryRun, Stretch
from remoting.protocol.core.record import walk_records


def find_stretch(
    data: memoryview, base: int, levels_ms: Sequence[int], *, synced_ms: int, synced_end: int | None
) -> Stretch | None:
    """The good records that a piece of the log begins with; None for none.

    Args:
        data: the piece.
        base: physical offset of its first byte, where a record begins.
        levels_ms: delay levels.
        synced_ms: see ``LogWalk``.
        synced_end: see ``LogWalk``.
    """
    size, records, last, last_ms, _, runs, *_ = walk_records(
        data, base, levels_ms, synced_ms, synced_end
    )
    if not records:
        return None
    return Stretch(base, size, records, last, last_ms, list(map(EntryRun._make, runs)))
