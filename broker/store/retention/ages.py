"""How old the files of the log are, by the store times of the messages in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from broker.store.limits import MAX_RECORD_BYTES
from broker.store.mapped_file import MappedFile
from broker.store.retention.policy import LogFile
from remoting.protocol.message.record import BORN_HOST_V6, Found, examine

# Size; system flag; store time behind an IPv4 and behind an IPv6 born host.
_HEAD: Final = Struct(">I32xi16xq4xq")


class Ages:
    """The store times of the first messages of files: they never change, so each is read once.

    Only the thread that deletes comes here.
    """

    def __init__(self) -> None:
        self._first_ms: dict[int, int] = {}

    def of(self, files: Sequence[MappedFile], log_end: int) -> Iterator[LogFile]:
        """The files that may go, all but the last; each is looked at when it is asked for."""
        self._forget_before(files[0].start if files else 0)
        files = [file for file in files if file.start < log_end]
        for index, file in enumerate(files[:-1]):
            yield LogFile(file.size, self._first_of(files[index + 1 :]))

    def _first_of(self, files: Sequence[MappedFile]) -> int | None:
        """Store time of the first message; of a later one when the first ones can't be read."""
        for file in files:
            first_ms = self._first_ms.get(file.start)
            if first_ms is None:
                with contextlib.suppress(OSError):
                    first_ms = first_store_ms(file)
            if first_ms is not None:
                self._first_ms[file.start] = first_ms
                return first_ms
        return None

    def _forget_before(self, start: int) -> None:
        for known in [known for known in self._first_ms if known < start]:
            del self._first_ms[known]


def first_store_ms(file: MappedFile) -> int | None:
    """Store time of a file's first record; None when there is no good one.

    Raises:
        OSError: the file can't be read.
    """
    region = file.hold()
    region.fetch(0, _HEAD.size)
    (size, *_) = _HEAD.unpack_from(region.view)
    if size <= MAX_RECORD_BYTES:
        # All of it that is looked at, so that no page fault holds the GIL.
        region.fetch(0, min(size, file.size))
    scan = examine(region.view, 0, check_crc=False)
    if not isinstance(scan, Found):
        return None
    _, sys_flag, behind_v4, behind_v6 = _HEAD.unpack_from(region.view)
    return int(behind_v6 if sys_flag & BORN_HOST_V6 else behind_v4)
