"""What the members of a group have handled, in the order in which they did.

All members append to one file, a line a message, with one ``write`` each before their handler
returns: lines of different processes stand in the file as they were written, and a process that is
killed leaves what it handled. So the file is the whole truth about the group, and its reader can
say which flights were handled, how often, and in which order.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pocketmq.flights import Sum, flight_of

_READ_BYTES: Final = 1 << 20


class Pen:
    """One member's way into the journal."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, queue_id: int, offset: int, line: bytes) -> None:
        """A flight was handled."""
        os.write(self._file, b"%d %d %s\n" % (queue_id, offset, line))


class Journal:
    """The reader of a journal that is still being written.

    Attributes:
        handled: each message the first time it was handled.
        duplicates: how often one was handled again.
    """

    def __init__(self, path: Path) -> None:
        self.handled = Sum()
        self.duplicates = 0
        path.touch()
        self._file = path.open("rb")
        self._seen: set[tuple[bytes, bytes]] = set()
        self._rest = b""

    def read(self) -> int:
        """Take notice of what was written since; how many messages were handled by now."""
        while data := self._file.read(_READ_BYTES):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                queue_id, offset, flight = line.split(b" ", 2)
                if (queue_id, offset) in self._seen:
                    self.duplicates += 1
                    continue
                self._seen.add((queue_id, offset))
                self.handled.add(flight_of(flight).destination, flight)
        return self.handled.count

    def close(self) -> None:
        """No more is read."""
        self._file.close()
