"""How far delayed messages have been delivered, kept so that a restart neither loses nor repeats.

Two files tell. ``delayOffset.json`` is RocketMQ's: written every few seconds, and only with what
was delivered into a part of the log that the disk has, so it is never ahead of the log. Our own
file beside it is written after every turn of deliveries, into the page cache, which outlives a
killed process: so ``kill -9`` repeats at most the turn it fell into.

===========  ==================================================================
bytes        of ``deliveryProgress``, 4096 bytes long, big endian
===========  ==================================================================
8            ``PMQDELAY``
int64        end of the log after the deliveries that are counted here
int32        number of levels that follow
int32        CRC-32 of everything else up to the last level
12 each      int32 level, int64 number of its next message
===========  ==================================================================

When the machine fails, the page cache may reach the disk in any order; so at the start the file is
believed only if the log goes at least as far as it says. Of both files the higher number counts:
another broker may have worked on the store meanwhile, and deliveries are never taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final

import structlog

from broker.delivery.schedule import Schedule
from broker.store.files import Files, Region
from remoting.protocol.accelerated import crc32

if TYPE_CHECKING:
    from broker.store.message_store import MessageStore

Save = Callable[[dict[int, int]], None]
"""Writes ``delayOffset.json`` in the background."""

FILE_NAME: Final = "deliveryProgress"
FILE_BYTES: Final = 4096

_log = structlog.get_logger("broker")

_MAGIC: Final = b"PMQDELAY"
_HEAD: Final = Struct(">8sqiI")
_LEVEL: Final = Struct(">iq")
_MOST: Final = (FILE_BYTES - _HEAD.size) // _LEVEL.size


def encode(offsets: Mapping[int, int], log_end: int) -> bytes:
    """The file's bytes; of more levels than it has room for the first ones."""
    levels = sorted(offsets.items())[:_MOST]
    body = b"".join(_LEVEL.pack(level, offset) for level, offset in levels)
    crc = crc32(_HEAD.pack(_MAGIC, log_end, len(levels), 0) + body)
    return _HEAD.pack(_MAGIC, log_end, len(levels), crc) + body


def decode(data: bytes | memoryview, log_end: int) -> dict[int, int]:
    """What a file says, whose store has a log up to ``log_end``; nothing if it can't be believed.

    Never raises, whatever the bytes are.
    """
    if len(data) < _HEAD.size:
        return {}
    magic, end, count, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC or not 0 <= count <= (len(data) - _HEAD.size) // _LEVEL.size:
        return {}
    body = bytes(data[_HEAD.size : _HEAD.size + count * _LEVEL.size])
    if crc != crc32(_HEAD.pack(_MAGIC, end, count, 0) + body) or end > log_end:
        return {}
    return dict(_LEVEL.iter_unpack(body))


class DeliveryProgress:
    """Keeps the progress of a schedule.

    Args:
        schedule: whose.
        store: where deliveries go.
        directory: of the broker's state files.
        files: the disk.
        save: writes ``delayOffset.json``, in the background.
    """

    def __init__(
        self,
        schedule: Schedule,
        store: MessageStore,
        directory: Path,
        files: Files,
        save: Save,
    ) -> None:
        self._schedule = schedule
        self._store = store
        self._path = directory / FILE_NAME
        self._files = files
        self._save = save
        self._region: Region | None = None
        self._saved_version = schedule.version
        # Of the deliveries that wait for the disk: end of the log, version, offsets.
        self._waiting: tuple[int, int, dict[int, int]] | None = None

    def load(self) -> None:
        """Take over what our file says; once, before anything is delivered.

        Raises:
            OSError: the file can't be read or made.
        """
        self._files.make_directory(self._path.parent, durable=True)
        kept = self._files.read(self._path)
        for level, offset in decode(kept or b"", self._store.end_offset).items():
            if offset > self._schedule.offsets.get(level, 0):
                self._schedule.advance(level, offset)
        if kept is not None and len(kept) != FILE_BYTES:
            self._files.remove(self._path)
            kept = None
        self._region = self._files.open_mapped(self._path, FILE_BYTES, create=kept is None)

    def delivered(self) -> None:
        """Messages were delivered: note it."""
        assert self._region is not None
        try:
            self._region.write(0, encode(self._schedule.offsets, self._store.end_offset))
        except OSError as error:
            _log.warning(
                "progress of delayed messages can't be noted; if the broker were killed now, some "
                "of them would come twice",
                file=str(self._path),
                reason=str(error),
            )

    def save_durable(self) -> None:
        """Write ``delayOffset.json`` as far as the disk has what was delivered; now and then."""
        if self._waiting is None and self._schedule.version != self._saved_version:
            schedule = self._schedule
            self._waiting = (self._store.end_offset, schedule.version, schedule.offsets.copy())
        if self._waiting is not None and self._waiting[0] <= self._store.durable_offset:
            _, self._saved_version, offsets = self._waiting
            self._waiting = None
            self._save(offsets)

    def save_all(self) -> None:
        """Write ``delayOffset.json`` with everything that was delivered; blocks for the disk."""
        self._waiting = None
        try:
            if self._schedule.version != self._saved_version:
                self._store.flush()
        except OSError as error:
            _log.warning("the store can't be flushed", reason=str(error))
        self.save_durable()
