"""The journal of the demo: a file with the messages that a group has handled, in order.

All members append to one file, one line per message. Each line is written with a single ``write``
before the handler returns: so lines of different processes don't mix, and the messages handled by a
process that is killed are in the file. From it the reader determines which flights were handled,
how often, and in which order.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from examples.demo.flights import Sum, flight_of

_READ_BYTES: Final = 1 << 20


class JournalWriter:
    """Appends to the journal."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, queue_id: int, offset: int, line: bytes) -> None:
        """Append a handled flight."""
        os.write(self._file, b"%d %d %s\n" % (queue_id, offset, line))


class Journal:
    """Reads a journal that is still being written.

    Attributes:
        handled: each message, when it was handled for the first time.
        duplicates: how often a message was handled again.
    """

    def __init__(self, path: Path) -> None:
        self.handled = Sum()
        self.duplicates = 0
        path.touch()
        self._file = path.open("rb")
        self._seen: set[tuple[bytes, bytes]] = set()
        self._rest = b""

    def read(self) -> int:
        """Read the new lines; return the number of messages handled so far."""
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
        """Close the file."""
        self._file.close()
