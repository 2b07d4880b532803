"""The wheel of timer messages: which of them wait, what is due, and how that is saved.

Each waiting message has a unit in the timer log, and the units of a slot, one second, are a chain.
The slots of the next seconds are **loaded**: their units become entries in the order of delivery.
One number says which entries of the present slot are delivered. It is saved after each step, see
``timer_files``: ``kill -9`` repeats at most one step.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from broker.delivery import timer_rules as rules
from broker.delivery.timer_files import TimerFiles
from broker.delivery.timer_rules import QUEUE
from broker.limits import BrokerLimits
from broker.store.results import StoreError
from remoting.protocol.disk.timer import (
    DELETE,
    PRECISION_MS,
    ROLL,
    TimerCheck,
    TimerProgress,
    Unit,
)
from remoting.protocol.errors import RecordError
from remoting.protocol.message.view import RecordView
from remoting.protocol.names import TIMER_TOPIC
from remoting.runtime.clock import Clock
from remoting.runtime.log import RateLimitedLog

if TYPE_CHECKING:
    from broker.store.engine import MessageStore

_log = structlog.get_logger("broker")

PackedEntry = int
"""A message of a slot, as a number that sorts in the order of delivery; see ``pack``."""

_OFFSET_BITS: Final = 52
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1

LOAD_AHEAD_MS: Final = 2 * PRECISION_MS
"""How long before its time a slot is loaded: 100,000 units take 0.3 s."""

SAVE_SECONDS: Final = 1.0
"""How often the files are synced (cf. timerFlushIntervalMs)."""

_SLOTS_SKIPPED_AT_ONCE: Final = 5_000
"""Empty slots that are passed in one step, after the broker was stopped: 2 ms."""


def pack(after_ms: int, offset: int = 0) -> PackedEntry:
    """Return the entry of a message at a physical offset, due ``after_ms`` the time of its slot.

    Tuples would need more memory, and more time to sort.
    """
    return after_ms << _OFFSET_BITS | offset


def after_ms_of(entry: PackedEntry) -> int:
    """Return how long after the time of its slot an entry is due."""
    return entry >> _OFFSET_BITS


class LostFiles(NamedTuple):
    """The progress in files that were lost: what was delivered of a part of the timer topic.

    Of the messages before ``offset``, the ones in slots before ``slot_ms`` were delivered, and in
    this slot the entries up to ``delivered``.
    """

    offset: int = 0
    slot_ms: int = 0
    delivered: PackedEntry = 0


class WheelDamaged(Exception):
    """The timer files are damaged."""


class _LoadedSlot:
    """The entries of a slot, in the order of delivery once it is ``ready``."""

    __slots__ = ("at", "entries", "position", "ready", "recalled", "unread")

    def __init__(self, position: int) -> None:
        self.position = position  # of the next unit to read; -1 at the beginning of the chain
        self.entries: list[PackedEntry] = []
        self.unread: list[tuple[int, int]] = []  # offset and kind of units whose record is needed
        self.recalled: set[bytes] = set()
        self.ready = False
        self.at = 0  # of the first entry that is not delivered


class TimerWheel:
    """The waiting timer messages of one broker.

    Args:
        store: the open store.
        clock: the time.
        files: the files, not open yet.
        limits: limits the work of one step.

    Attributes:
        read_ms: the time of the present slot.
        delivered: the last entry of it that is delivered or skipped.
        taken: how many messages of the timer topic were taken into the wheel, ever.
        lost: what is known of files that are lost.
    """

    def __init__(
        self, store: MessageStore, clock: Clock, files: TimerFiles, limits: BrokerLimits
    ) -> None:
        self._store = store
        self._clock = clock
        self._files = files
        self._limits = limits
        self.taken = 0
        self.read_ms = 0
        self.delivered: PackedEntry = 0
        self.lost = LostFiles()
        self._slots: dict[int, _LoadedSlot] = {}
        self._waiting = 0
        self._rebuilt = False
        # The end of the commit log with which a slot to read becomes durable, and its time.
        self._unsaved: tuple[int, int] | None = None
        self._durable_ms = 0
        self._last_check = TimerCheck()
        self._saving = asyncio.Lock()
        self._warnings = RateLimitedLog(clock, _log.warning)

    # --- start

    def open(self) -> None:
        """Open the files, if there are any; call once, before the first message arrives.

        Raises:
            StoreError: they can't be used.
            OSError: they can't be read.
        """
        self._open_files(create=False)
        if self._files.damage is not None:
            self._rebuild(self._files.damage)
        elif not (self._files.exist or self.lost.offset or self.unread == 0):
            _log.warning(
                "the timer files are missing: timer messages that were delivered are delivered "
                "again; if that is not intended, stop this broker and put timerwheel, timerlog and "
                "config/timercheck back",
                store=str(self._store.paths.root),
            )

    def create(self) -> None:
        """Create the files if there are none. Raises like ``open``."""
        if not self._files.exist:
            self._open_files(create=True)

    def _open_files(self, *, create: bool) -> None:
        store, now_ms = self._store, self._clock.now_ms()
        end = store.queries.max_offset(TIMER_TOPIC, QUEUE)
        check, progress, last = self._files.open(store.log.end, end, create=create)
        if create:
            # As after a copy of a running store: the wheel is built again from the timer topic.
            check, progress, last = TimerCheck(self.lost.slot_ms), TimerProgress(), None
            self.read_ms, self.delivered = self.lost.slot_ms, self.lost.delivered
        else:
            self.lost = LostFiles(*progress[-3:])
            self.read_ms, self.delivered = check.read_ms, 0
            if progress.slot_ms >= check.read_ms:
                self.read_ms, self.delivered = progress.slot_ms, progress.delivered
        offsets = [check.queue_offset, progress.queue_offset]
        record = None if last is None else _view(store.queries.record_at(last.offset))
        if record is not None and record.topic == TIMER_TOPIC:
            offsets.append(record.queue_offset + 1)
        self.taken = min(max(offsets), end)
        self._durable_ms = check.read_ms or self.read_ms
        if not self._files.exist:
            self._forget()
            return
        if not self.read_ms:
            self.read_ms = self._durable_ms = now_ms // PRECISION_MS * PRECISION_MS
            self.taken = 0
            if last is not None:
                self._files.damage = "neither timercheck nor timerProgress says what is delivered"
        if create:
            self._save_lost()
        self._waiting = self._files.count_from(self.read_ms)
        self._last_check = check

    async def rebuild(self, reason: str) -> None:
        """Remove the wheel and the log; the next steps build them again from the timer topic.

        Raises:
            OSError: the files can't be written.
        """
        async with self._saving:
            self._rebuild(reason)

    def _rebuild(self, reason: str) -> None:
        _log.error(
            "the timer files are damaged; they are built again from the timer topic, which may "
            "deliver a message twice",
            reason=reason,
        )
        self._rebuilt = True
        self._forget()
        self._save_lost()
        self._files.discard()

    def _forget(self) -> None:
        # A rebuild that was interrupted goes on with what it knew.
        if self.taken >= self.lost.offset:
            self.lost = LostFiles(self.taken, self.read_ms, self.delivered)
        self.taken = self._waiting = 0
        self._slots.clear()

    def _save_lost(self) -> None:
        """Save that the wheel is empty, so that a kill during the rebuild changes nothing."""
        self.save_progress()
        self._files.write_check(TimerCheck(self.lost.slot_ms), self._clock.now_ms())

    # --- for requests and metrics

    def congested(self, slot_ms: int) -> bool:
        """Return whether a slot has as many messages as it may have."""
        files = self._files
        return files.exist and files.slot(slot_ms).messages >= self._limits.timers_per_second

    @property
    def unread(self) -> int:
        """How many messages of the timer topic are not in the wheel yet."""
        return max(0, self._store.queries.max_offset(TIMER_TOPIC, QUEUE) - self.taken)

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        delivered = sum(slot.at for slot in self._slots.values())
        return max(0, self._waiting - delivered) + self.unread

    def overdue(self) -> tuple[int, float]:
        """Return how many messages should have been delivered, and the seconds since the first."""
        now_ms = self._clock.now_ms()
        count, first_ms = 0, now_ms
        for slot_ms, slot in sorted(self._slots.items()):
            due = bisect_right(slot.entries, pack(now_ms - slot_ms + 1), slot.at)
            if slot.ready and due > slot.at:
                count += due - slot.at
                first_ms = min(first_ms, slot_ms + after_ms_of(slot.entries[slot.at]))
        return count, (now_ms - first_ms) / 1000

    # --- adding messages

    def add(self, units: Sequence[tuple[Unit, PackedEntry, RecordView]], taken: int) -> None:
        """Add messages of the timer topic with their units and entries.

        Args:
            units: messages that are not too late for their slots.
            taken: up to which queue offset the timer topic is taken with them.

        Raises:
            OSError: the disk is full or fails; nothing is taken then.
        """
        self._files.add([unit for unit, _, _ in units])
        for unit, entry, record in units:
            deletes = unit.kind & DELETE
            self._waiting += -1 if deletes else 1
            slot = self._slots.get(unit.slot_ms)
            if slot is None:
                continue
            if deletes and not unit.kind & ROLL:
                slot.recalled.add(rules.recalled(record.properties_text) or b"")
            elif slot.ready:
                insort(slot.entries, entry, slot.at)
            else:
                slot.entries.append(entry)
        self.taken = taken
        self.save_progress()

    # --- loading slots

    async def load(self, now_ms: int) -> bool:
        """Load a part of the next slot that is not loaded; return whether there is more to load.

        Raises:
            WheelDamaged: the files are damaged.
        """
        slot_ms = self.read_ms
        end_ms = min(now_ms + LOAD_AHEAD_MS, slot_ms + 2 * LOAD_AHEAD_MS, self._files.last_slot_ms)
        while slot_ms <= end_ms:
            slot = self._slots.get(slot_ms)
            if slot is None and self._files.slot(slot_ms).last >= 0:
                self._slots[slot_ms] = slot = _LoadedSlot(self._files.slot(slot_ms).last)
            if slot is not None and not slot.ready:
                await self._load_part(slot_ms, slot)
                return True
            slot_ms += PRECISION_MS
        return False

    async def _load_part(self, slot_ms: int, slot: _LoadedSlot) -> None:
        for _ in range(self._limits.timers_loaded_at_once):
            if slot.position < 0:
                break
            unit = self._files.unit(slot.position)
            if unit is None:
                self._report(f"the timer log has no unit at {slot.position}")
                slot.position = -1
                break
            slot.position = unit.previous if unit.previous < slot.position else -1
            if unit.kind & ROLL:
                slot.entries.append(pack(1, unit.offset))
            elif unit.kind & DELETE or unit.due_ms == slot_ms:
                slot.unread.append((unit.offset, unit.kind))
            else:
                slot.entries.append(pack(unit.due_ms + 1 - slot_ms, unit.offset))
        else:
            return
        await self._load_unread(slot_ms, slot)
        if not slot.unread:
            slot.entries.sort()
            if slot_ms == self.read_ms:
                slot.at = bisect_right(slot.entries, self.delivered)
            slot.ready = True

    async def _load_unread(self, slot_ms: int, slot: _LoadedSlot) -> None:
        for _ in range(min(len(slot.unread), self._limits.timers_read_at_once)):
            # Popped after the read, which may fail or be cancelled; from the oldest to the newest.
            offset, kind = slot.unread[-1]
            record = await self._record(offset)
            slot.unread.pop()
            if record is None:
                continue
            text = record.properties_text
            if kind & DELETE:
                key = rules.recalled(text)
                if key is None:
                    self._report(f"the timer log has the message at {offset} as a recall")
                slot.recalled.add(key or b"")
                continue
            due_ms = rules.due_ms(text, record.store_timestamp_ms, slot_ms)
            slot.entries.append(pack(due_ms - slot_ms, offset))

    async def _record(self, offset: int) -> RecordView | None:
        """Return the record at a physical offset; None if it is no message of the timer topic.

        Raises:
            WheelDamaged: the timer log is wrong about it.
        """
        record = _view(await self._store.cold_reads.record_at(self, offset))
        if record is not None and record.topic == TIMER_TOPIC:
            return record
        if offset < self._store.log.start:
            _log.error("a timer message was deleted before it was due", physical=offset)
        else:
            self._report(f"the commit log has no timer message at {offset}")
        return None

    def _report(self, damage: str) -> None:
        """Have the files built again, or log damage that is found after that.

        Raises:
            WheelDamaged: they weren't built again since the start.
        """
        if not self._rebuilt:
            raise WheelDamaged(damage)
        _log.error("a timer message can't be read and is not delivered", reason=damage)

    # --- what is due

    @property
    def has_slots(self) -> bool:
        """Whether the present slot, or one after it, may have messages."""
        return self._files.exist and self.read_ms <= self._files.last_slot_ms

    @property
    def delivered_ms(self) -> int:
        """The time up to which messages were delivered."""
        return self.read_ms + after_ms_of(self.delivered)

    @property
    def recalled(self) -> Collection[bytes]:
        """The keys of recalled messages in the present slot."""
        slot = self._slots.get(self.read_ms)
        return () if slot is None else slot.recalled

    def next_due_ms(self) -> int | None:
        """Return when the next message of the present slot is due, None if there is none."""
        slot = self._slots.get(self.read_ms)
        if slot is None or slot.at == len(slot.entries):
            return None
        return self.read_ms + after_ms_of(slot.entries[slot.at])

    def turn(self, until_ms: int) -> bool:
        """Pass the slots that are over at a time; return whether something may be due then."""
        for _ in range(_SLOTS_SKIPPED_AT_ONCE):
            slot_ms = self.read_ms
            if slot_ms >= until_ms or slot_ms > self._files.last_slot_ms:
                return False
            slot = self._slots.get(slot_ms)
            if slot is None:
                if self._files.slot(slot_ms).last >= 0:
                    return True
            elif not slot.ready:
                return True
            elif slot.at < len(slot.entries):
                return slot.entries[slot.at] < pack(until_ms - slot_ms + 1)
            if until_ms < slot_ms + PRECISION_MS:
                return False
            self._waiting -= self._files.slot(slot_ms).messages
            self._slots.pop(slot_ms, None)
            self.read_ms, self.delivered = slot_ms + PRECISION_MS, 0
        return True

    async def due(self, until_ms: int) -> list[tuple[PackedEntry, RecordView | None]]:
        """Return a few entries of the present slot that are due, with their records.

        Raises:
            WheelDamaged: the timer log is wrong about a record.
        """
        slot = self._slots.get(self.read_ms)
        if slot is None or not slot.ready:
            return []
        limit, size = pack(until_ms - self.read_ms + 1), 0
        records: list[tuple[PackedEntry, RecordView | None]] = []
        for entry in slot.entries[slot.at : slot.at + self._limits.delivered_at_once]:
            if entry >= limit or size >= self._limits.delivered_bytes:
                break
            record = await self._record(entry & _OFFSET_MASK)
            records.append((entry, record))
            size += 0 if record is None else record.size
        return records

    def settle(self, entries: Sequence[PackedEntry], failed: Collection[PackedEntry]) -> None:
        """Note that the next entries are delivered, but for some, which stay due."""
        slot = self._slots[self.read_ms]
        slot.entries[slot.at : slot.at + len(entries)] = [
            *(entry for entry in entries if entry not in failed),
            *sorted(failed),
        ]
        slot.at += len(entries) - len(failed)
        self.delivered = max(self.delivered, min(failed) - 1) if failed else entries[-1]

    # --- saving

    def save_progress(self) -> None:
        """Write ``timerProgress``; without it the next start repeats deliveries."""
        store, files = self._store, self._files
        try:
            files.write_progress(
                TimerProgress(
                    store.log.end,
                    files.log_end,
                    self.taken,
                    self.read_ms,
                    self.delivered,
                    *self.lost,
                )
            )
        except OSError as error:
            self._warnings.write(
                "progress of the timers can't be written; if the broker is killed now, some "
                "messages will be delivered twice",
                reason=str(error),
            )

    def check_point(self) -> TimerCheck:
        """Return what is read, and what is delivered for certain, for slaves.

        Before the first timer message it has the present second. With 0, a slave of 5.x that
        becomes the master passes every second since 1970 before it delivers anything.
        """
        read_ms = self._durable_ms or self._clock.now_ms() // PRECISION_MS * PRECISION_MS
        return TimerCheck(read_ms, self._files.log_end, self.taken)

    async def run_saves(self) -> None:
        """Save every second until cancelled."""
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            await self.save()

    async def save(self) -> None:
        """Sync the files and write ``timercheck``.

        The units are on the disk then. Slots count as delivered once the commit log is, too, and
        confirmed (controller mode).
        """
        async with self._saving:
            if self._files.exist:
                await self._save()

    async def _save(self) -> None:
        syncer = self._store.syncer
        kept_end = min(syncer.log.flushed, syncer.confirmed)
        if self._unsaved is not None and self._unsaved[0] <= kept_end:
            self._durable_ms, self._unsaved = self._unsaved[1], None
        if self._unsaved is None and self.read_ms != self._durable_ms:
            self._unsaved = self._store.log.end, self.read_ms
        check = self.check_point()
        try:
            if check != self._last_check:
                await _in_thread(self._files.start_sync())
                now_ms = self._clock.now_ms()
                await _in_thread(partial(self._files.write_check, check, now_ms))
                self._last_check = check
            self._files.trim(self._store.log.start)
        except OSError as error:
            self._warnings.write("the timer files can't be synced; retrying", reason=str(error))

    def save_all(self) -> None:
        """Save everything after the last delivery, so that RocketMQ repeats nothing; blocks."""
        files = self._files
        if not files.exist:
            return
        try:
            self._store.flush()
            self._keep_undelivered()
            files.start_sync()()
            self._durable_ms = self.read_ms
            files.write_check(self.check_point(), self._clock.now_ms())
            self.save_progress()
        except (OSError, StoreError) as error:
            _log.warning("the timer files can't be saved", reason=str(error))
        finally:
            files.close()

    def _keep_undelivered(self) -> None:
        """Take the delivered messages out of the present slot."""
        slot = self._slots.get(self.read_ms)
        if slot is None or not slot.ready or not slot.at:
            return
        delivered = {entry & _OFFSET_MASK for entry in slot.entries[: slot.at]}
        kept, position = [], self._files.slot(self.read_ms).last
        while position >= 0 and (unit := self._files.unit(position)) is not None:
            if unit.offset not in delivered:
                kept.append(position)
            position = unit.previous if unit.previous < position else -1
        self._files.keep_only(self.read_ms, kept[::-1])


def _view(record: memoryview | None) -> RecordView | None:
    try:
        return None if record is None else RecordView(record)
    except RecordError:
        return None


async def _in_thread(work: Callable[[], None]) -> None:
    """Run ``work`` in a thread; it has ended when this returns, also if this is cancelled."""
    done = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        raise
