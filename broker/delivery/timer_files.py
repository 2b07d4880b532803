"""The files of the timers: the wheel, the timer log, the checkpoint, and our own progress.

See ``remoting.protocol.disk.timer`` for the layouts. The files are created with the first timer
message. All writes go to the page cache, in an order that makes the timer log the truth: first the
units, then their slots, then ``timerProgress``. So after ``kill -9`` at most the slots of the last
units are missing. ``open`` reads the units after the last sync again and repairs the slots.

Once per second the log and the wheel are synced, then ``timercheck`` is written: RocketMQ continues
with it, and it includes only deliveries that are on the disk. After a power failure units may be
missing or refer to messages that the commit log has lost. ``open`` cuts the timer log before the
first such unit, and the messages after it are read from the timer topic again.

``open`` compares the wheel and the log for all that still waits, and the checkpoint with both. If
they don't agree, the wheel and the log are removed, and built again from the timer topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from broker.store.mapped_file import MappedFile, MappedFiles
from broker.store.os_files import Files, Region
from broker.store.results import StoreError
from remoting.protocol.disk import timer
from remoting.protocol.disk.timer import (
    CHECK_BYTES,
    CHECK_NAME,
    DELETE,
    LOG_NAME,
    NO_SLOT,
    PRECISION_MS,
    PROGRESS_BYTES,
    PROGRESS_NAME,
    SLOT,
    UNIT,
    WHEEL_BYTES,
    WHEEL_NAME,
    Slot,
    TimerCheck,
    TimerProgress,
    Unit,
)

_MAX_OPEN_LOGS: Final = 8
"""Mapped files of the timer log: a slot's chain rarely reaches further back than two."""


class TimerFiles:
    """The timer files of one store. Only the loop's thread uses it, but for the syncs.

    Args:
        root: the store's directory.
        config: the directory of the broker's state files.
        files: the file system.
        log_file_bytes: length of a file of the timer log.

    Attributes:
        exist: whether the files exist and are open.
        damage: what ``open`` found damaged and couldn't repair; None if nothing.
        log_end: position after the last unit.
        last_slot_ms: time of the latest slot that has units; 0 for none.
    """

    def __init__(
        self,
        root: Path,
        config: Path,
        files: Files,
        log_file_bytes: int = timer.DEFAULT_LOG_FILE_BYTES,
    ) -> None:
        self._wheel_path = root / WHEEL_NAME
        self._log_path = root / LOG_NAME
        self._check_path = config / CHECK_NAME
        self._progress_path = config / PROGRESS_NAME
        self._files = files
        self._file_bytes = log_file_bytes
        self._maps = MappedFiles(_MAX_OPEN_LOGS)
        self._log: list[MappedFile] = []
        self._unsynced: set[MappedFile] = set()
        self._wheel: Region
        self._check: Region
        self._progress: Region
        self._checks = 0
        self.exist = False
        self.damage: str | None = None
        self.log_end = 0
        self.last_slot_ms = 0

    # --- opening

    def open(
        self, store_end: int, queue_end: int, *, create: bool
    ) -> tuple[TimerCheck, TimerProgress, Unit | None]:
        """Open and repair the files; blocks.

        Args:
            store_end: end of the commit log.
            queue_end: end of the timer topic's queue.
            create: whether to create them if there are none.

        Returns:
            The checkpoint (zeros if it is damaged), the progress (zeros if it doesn't belong to
            these files), and the last unit of the timer log.

        Raises:
            StoreError: a file has another length, as with other settings; the text says what to do.
            OSError: a file can't be read or created.
        """
        size = self._files.size(self._wheel_path)
        if size is None and not create:
            check = timer.decode_check(self._files.read(self._check_path) or b"")
            progress = timer.decode_progress(self._files.read(self._progress_path) or b"")
            return check, progress if progress.store_end <= store_end else TimerProgress(), None
        if size not in {None, 0, WHEEL_BYTES}:
            raise self._unusable(self._wheel_path, f"{size} bytes instead of {WHEEL_BYTES}")
        self._files.make_directory(self._log_path, durable=True)
        self._files.make_directory(self._check_path.parent, durable=True)
        self._wheel = self._files.open_mapped(self._wheel_path, WHEEL_BYTES, create=True)
        self._check = self._small(self._check_path, CHECK_BYTES)
        self._progress = self._small(self._progress_path, PROGRESS_BYTES)
        self._open_log()
        check = timer.decode_check(self._check.view)
        progress = timer.decode_progress(self._progress.view)
        if progress.store_end > store_end:
            progress = TimerProgress()
        self.damage = None
        if check.read_ms % PRECISION_MS or check.queue_offset > queue_end:
            self.damage = f"{self._check_path} has {check}, but the timer topic ends at {queue_end}"
            check = TimerCheck()
        last = self._recover(check.log_end, store_end)
        log_end = max(check.log_end, progress.log_end)
        if log_end > self.log_end:
            self.damage = f"{self._log_path} ends at {self.log_end}, not at {log_end}"
        self.damage = self.damage or timer.difference(
            self._rows(),
            ((file.start, file.view[: self.log_end - file.start]) for file in self._log),
            max(check.read_ms, progress.slot_ms),
        )
        self.exist = True
        return check, progress, last

    def _small(self, path: Path, size: int) -> Region:
        """Map a file of one page; one of another length is written anew with what it has."""
        kept = self._files.read(path)
        if kept is not None and len(kept) != size:
            self._files.remove(path)
        region = self._files.open_mapped(path, size, create=True)
        if kept and len(kept) != size:
            region.write(0, kept[:size])
        return region

    def _unusable(self, path: Path, reason: str) -> StoreError:
        return StoreError(
            f"the timer file {path} has {reason}: it is damaged or was written with other settings."
            " Put it back, or start with timerWheelEnable=false. Or remove timerwheel, timerlog "
            "and config/timercheck: then all messages in the timer topic are read again, and "
            "those that were delivered are delivered once more"
        )

    def _open_log(self) -> None:
        self._log = []
        for name in self._files.list(self._log_path):
            path = self._log_path / name
            if not (name.isdigit() and len(name) == 20):
                continue
            size = self._files.size(path)
            if size != self._file_bytes:
                raise self._unusable(path, f"{size} bytes instead of {self._file_bytes}")
            if self._log and int(name) != self._log[-1].start + self._file_bytes:
                raise self._unusable(path, "no file before it that ends where it begins")
            self._log.append(MappedFile(self._files, self._maps, path, int(name), size, used=size))

    # --- recovery

    def _recover(self, synced_end: int, store_end: int) -> Unit | None:
        """Find the end of the log, cut it there, and add what the slots lack."""
        self.log_end = start = self._begin(synced_end)
        last = self._unit_before(start)
        while (next_unit := self._unit_from(self.log_end)) is not None:
            position, unit = next_unit
            if unit.offset + unit.size > store_end:
                break
            self._include(position, unit)
            self.log_end, last = position + UNIT.size, unit
        while last is not None and last.offset + last.size > store_end:
            # Only after a loss of power: the commit log lost more than the timer log.
            self.log_end = start = self._before(self.log_end)
            last = self._unit_before(start)
        while self._log and self._log[-1].start > self.log_end:
            self._log.pop().remove_durably()
        if self._log:
            self._log[-1].clear_from(min(self.log_end - self._log[-1].start, self._file_bytes))
        self._repair_slots()
        return last

    def _begin(self, synced_end: int) -> int:
        """Return where to begin: the last sync's end, within the files and at a unit."""
        if not self._log:
            return 0
        first, end = self._log[0].start, self._log[-1].start + self._file_bytes
        if not first <= synced_end <= end:
            return first
        inside = (synced_end - first) % self._file_bytes
        if inside > timer.units_end(self._file_bytes):
            return synced_end - inside + self._file_bytes
        return synced_end - inside % UNIT.size

    def _before(self, position: int) -> int:
        """Return the position of the unit before one."""
        first = self._log[0].start
        inside = (position - first) % self._file_bytes
        if inside:
            return position - UNIT.size
        if position == first:
            return first
        return position - self._file_bytes + timer.units_end(self._file_bytes) - UNIT.size

    def _unit_before(self, position: int) -> Unit | None:
        if not self._log or position <= self._log[0].start:
            return None
        return self.unit(self._before(position))

    def _unit_from(self, position: int) -> tuple[int, Unit] | None:
        """Return the next unit from a position on, and its own position."""
        file = self._file_of(position)
        if file is None:
            return None
        if timer.is_blank(file.view, position - file.start):
            position = file.start + self._file_bytes
        unit = self.unit(position)
        return None if unit is None else (position, unit)

    def _include(self, position: int, unit: Unit) -> None:
        slot = self.slot(unit.slot_ms)
        if slot.last < position:
            change = -1 if unit.kind & DELETE else 1
            first = position if slot.first < 0 else slot.first
            self._write_slot(unit.slot_ms, first, position, slot.messages + change)

    def _repair_slots(self) -> None:
        """Rebuild the slots whose last unit was cut off; note the latest slot."""
        lost: dict[int, int] = {}
        for number, (second, first, last, *_) in self._rows():
            slot_ms = second * PRECISION_MS
            if second <= 0 or timer.slot_index(slot_ms) != number:
                continue
            if last >= self.log_end:
                lost[slot_ms] = first
            else:
                self.last_slot_ms = max(self.last_slot_ms, slot_ms)
        for slot_ms in lost:
            self._wheel.write(timer.slot_index(slot_ms) * SLOT.size, bytes(SLOT.size))
        position = min(lost.values(), default=self.log_end)
        if self._log:
            position = max(position, self._log[0].start)
        while position < self.log_end and (next_unit := self._unit_from(position)) is not None:
            if next_unit[1].slot_ms in lost:
                self._include(*next_unit)
            position = next_unit[0] + UNIT.size

    # --- reading

    def slot(self, slot_ms: int) -> Slot:
        """Return the slot of a time, empty if it has no units."""
        row = SLOT.unpack_from(self._wheel.view, timer.slot_index(slot_ms) * SLOT.size)
        return Slot(*row) if row[0] == slot_ms // PRECISION_MS else NO_SLOT

    def count_from(self, slot_ms: int) -> int:
        """Return how many messages wait in the slots from a time on; reads the whole wheel."""
        return sum(
            max(0, messages)
            for _, (second, _, _, messages, _) in self._rows()
            if second * PRECISION_MS >= slot_ms
        )

    def _rows(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield number and content of the slots of the wheel that are not in holes of its file."""
        for begin, end in self._wheel.extents(0):
            first = begin // SLOT.size
            data = self._wheel.view[
                first * SLOT.size : min(-(-end // SLOT.size) * SLOT.size, WHEEL_BYTES)
            ]
            yield from enumerate(SLOT.iter_unpack(data), first)

    def unit(self, position: int) -> Unit | None:
        """Return the unit at a position of the log; None if there is none."""
        file = self._file_of(position)
        return None if file is None else timer.decode_unit(file.view, position - file.start)

    def _file_of(self, position: int) -> MappedFile | None:
        if not self._log:
            return None
        number = (position - self._log[0].start) // self._file_bytes
        return self._log[number] if 0 <= number < len(self._log) else None

    # --- writing

    def add(self, units: Sequence[Unit]) -> None:
        """Append units to the log and to their slots; ``previous`` is set here.

        Raises:
            OSError: the disk is full or fails; none of the units of the current file is added.
        """
        at = 0
        while at < len(units):
            file = self._file_to_write()
            inside = self.log_end - file.start
            room = (timer.units_end(self._file_bytes) - inside) // UNIT.size
            part = units[at : at + room]
            slots: dict[int, Slot] = {}
            data = []
            for number, unit in enumerate(part):
                slot_ms = unit.slot_ms
                slot = slots.get(slot_ms) or self.slot(slot_ms)
                position = self.log_end + number * UNIT.size
                data.append(unit._replace(previous=slot.last).encode())
                slots[slot_ms] = Slot(
                    slot_ms // PRECISION_MS,
                    position if slot.first < 0 else slot.first,
                    position,
                    slot.messages + (-1 if unit.kind & DELETE else 1),
                )
            file.write(inside, b"".join(data))
            self._unsynced.add(file)
            self._write_slots(slots)
            self.log_end += len(part) * UNIT.size
            at += len(part)

    def _write_slots(self, slots: Mapping[int, Slot]) -> None:
        """Write slots: all of them, or none and ``OSError``."""
        before: dict[int, bytes] = {}
        try:
            for slot_ms, slot in slots.items():
                at = timer.slot_index(slot_ms) * SLOT.size
                before[at] = bytes(self._wheel.view[at : at + SLOT.size])
                self._write_slot(slot_ms, slot.first, slot.last, slot.messages)
        except OSError:
            # Or the units, which are written again, would be chained to themselves. The pages of
            # these slots have blocks, so this needs no space.
            for at, row in before.items():
                with suppress(OSError):
                    self._wheel.write(at, row)
            raise

    def _file_to_write(self) -> MappedFile:
        last = self._log[-1] if self._log else None
        if last is not None:
            inside = self.log_end - last.start
            if inside < timer.units_end(self._file_bytes):
                return last
            if inside < self._file_bytes:
                last.write(inside, timer.blank(self._file_bytes - inside))
        start = 0 if last is None else last.start + self._file_bytes
        path = self._log_path / f"{start:020d}"
        file = MappedFile.create(
            self._files, self._maps, path, start, self._file_bytes, pinned=False
        )
        self._log.append(file)
        self.log_end = start
        return file

    def _write_slot(self, slot_ms: int, first: int, last: int, count: int) -> None:
        row = SLOT.pack(slot_ms // PRECISION_MS, first, last, count, 0)
        self._wheel.write(timer.slot_index(slot_ms) * SLOT.size, row)
        self.last_slot_ms = max(self.last_slot_ms, slot_ms)

    def keep_only(self, slot_ms: int, positions: Sequence[int]) -> None:
        """Take the other units out of a slot's chain.

        Args:
            slot_ms: the time of the slot.
            positions: of the units that stay, from the first to the last.

        Raises:
            OSError: the disk fails; the chain is valid, with some of the units.
        """
        previous, count = -1, 0
        for position in positions:
            unit, file = self.unit(position), self._file_of(position)
            if unit is None or file is None:
                continue
            if unit.previous != previous:
                file.write(position - file.start, unit._replace(previous=previous).encode())
                self._unsynced.add(file)
            previous = position
            count += -1 if unit.kind & DELETE else 1
        # Without units it keeps its time, which tells it from a slot that damage has cleared.
        self._write_slot(slot_ms, positions[0] if positions else -1, previous, count)

    def write_progress(self, progress: TimerProgress) -> None:
        """Write ``timerProgress`` to the page cache. Raises ``OSError``."""
        self._progress.write(0, progress.encode())

    def start_sync(self) -> Callable[[], None]:
        """Return a function that syncs what was written so far, in any thread; it blocks.

        The function raises ``OSError``.
        """
        files, self._unsynced = self._unsynced, set()

        def sync() -> None:
            try:
                for file in sorted(files, key=lambda file: file.start):
                    file.sync()
                self._wheel.sync()
            except OSError:
                self._unsynced |= files
                raise

        return sync

    def write_check(self, check: TimerCheck, now_ms: int) -> None:
        """Write and sync ``timercheck``; blocks. Raises ``OSError``."""
        self._checks += 1
        self._check.write(0, timer.encode_check(check, now_ms, self._checks))
        self._check.sync()

    def trim(self, store_start: int) -> None:
        """Remove files of the log whose messages the commit log has deleted. Raises ``OSError``."""
        while len(self._log) > 1:
            first = self._log[0]
            unit = self.unit(first.start + timer.units_end(self._file_bytes) - UNIT.size)
            if unit is None or unit.offset >= store_start:
                return
            self._log.pop(0).remove()

    def discard(self) -> None:
        """Remove the wheel and the log. Raises ``OSError``."""
        for file in reversed(self._log):
            file.remove()
        self.close()
        self._unsynced.clear()
        self.log_end = self.last_slot_ms = 0
        self._files.remove(self._wheel_path)

    def close(self) -> None:
        """Unmap the files."""
        self._maps.close()
        self._log.clear()
        self.exist = False
