"""Good records by the thousand, for a start that has many of them to walk over.

What ``LogWalk`` finds one by one is found here together, by the same rules; where a record is not
plainly good, a stretch ends and the walk has a closer look.

Imported only where numpy can be had.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from broker.store.derive.columns import ColumnGathering, Columns, before, look
from broker.store.derive.runs import Stretch
from broker.store.index.columns import find_starts
from remoting.protocol.message.record import FIXED_BYTES_V4


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
    starts, used = find_starts(data, base)
    if not len(starts):
        return None
    found = look(data, base, starts, used, levels_ms)
    found = before(found, _first_odd(found, base, synced_ms, synced_end))
    if not len(found.starts):
        return None
    gathering = ColumnGathering()
    gathering.add(found, base)
    last = int(found.starts[-1])
    return Stretch(
        base,
        last + int(found.sizes[-1]),
        len(found.starts),
        base + last,
        int(found.stored_ms[-1]),
        list(gathering.take()),
    )


def _first_odd(found: Columns, base: int, synced_ms: int, synced_end: int | None) -> int:
    """The number of the first record that has to be looked at more closely."""
    places = base + found.starts
    odd = (found.offset < 0) | (found.offset > places // FIXED_BYTES_V4)
    odd[[record for record, _ in found.wrong]] = True
    # Of those alike none has lost a sector of its text; of the others nobody has looked.
    reached = found.stored_ms <= synced_ms if synced_end is None else places < synced_end
    odd[found.single[~reached[found.single]]] = True
    return int(np.argmax(odd)) if odd.any() else len(odd)
