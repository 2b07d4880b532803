"""The entry of a consume queue: where a message lies, how large it is, and its tags code.

Logical offset n is at byte ``20 * n`` of the queue's files taken together. In the schedule topic
the third number is the time of delivery instead (cf. ConsumeQueue).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

ENTRY: Final = Struct(">qiq")
"""Physical offset, size of the record, tags code."""

ENTRY_BYTES: Final = ENTRY.size

FILLER: Final = ENTRY.pack(0, 0x7FFFFFFF, 0)
"""Before the first real entry of a queue whose first file does not begin with one."""
