"""Delivery at any time: reads the timer topic into the wheel, and delivers what is due.

One task does three things in turn, each a small step of the event loop. It **reads** the messages
of the timer topic and adds a unit for each to the timer log and the wheel. It **loads** the slots
of the next seconds: the units of a slot become entries in the order of delivery. It **delivers**
the entries that are due as messages of their real topics, or stores them in the timer topic again
if they are due behind the roll window (cf. TimerMessageStore).

What was sent before a time is read before anything due at that time is delivered. So the messages
of a slot are delivered in order, and one number says which of them are delivered. It is saved
after each step, see ``timer_files``: ``kill -9`` repeats at most one step. A message that becomes
visible too late for its place, as with SYNC_FLUSH, is delivered when it is read.

A message that can't be read, or can never be stored under its real topic, is logged and skipped. A
put that fails for another reason is retried.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from broker.delivery import timer_rules as rules
from broker.delivery.deliverer import FOR_GOOD, LONGEST_SLEEP_SECONDS, RETRY_MS, whole_records
from broker.delivery.redelivery import is_void
from broker.delivery.timer_files import TimerFiles
from broker.delivery.timer_rules import QUEUE
from broker.limits import LIMITS, BrokerLimits
from broker.store.os_files import Files
from broker.store.results import PendingMessage, PutResult, PutStatus, StoreError
from broker.traffic.counts import BrokerCounters
from remoting.protocol.disk.timer import (
    DEFAULT_LOG_FILE_BYTES,
    DELETE,
    NORMAL,
    PRECISION_MS,
    ROLL,
    TimerCheck,
    TimerProgress,
    Unit,
)
from remoting.protocol.errors import RecordError
from remoting.protocol.message.tags import java_hash
from remoting.protocol.message.view import RecordView
from remoting.protocol.names import TIMER_TOPIC
from remoting.runtime.clock import Clock
from remoting.runtime.log import RateLimitedLog

if TYPE_CHECKING:
    from broker.store.engine import MessageStore

_log = structlog.get_logger("broker")

_OFFSET_BITS: Final = 52
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1

Entry = int
"""A message of a slot: ms from the slot's time until it is due, then 52 bits physical offset."""

LOAD_AHEAD_MS: Final = 2 * PRECISION_MS
"""How long before its time a slot is loaded: 100,000 units take 0.3 s."""

MOST_BEHIND_MS: Final = 200
"""If timer messages arrive faster than they are read, delivery is no later than this for it."""

SAVE_SECONDS: Final = 1.0
"""How often the files are synced (cf. timerFlushIntervalMs)."""

_SLOTS_SKIPPED_AT_ONCE: Final = 5_000
"""Empty slots that are passed in one step, after the broker was stopped: 2 ms."""


class _LoadedSlot:
    """The entries of a slot, in the order of delivery once it is ``ready``."""

    __slots__ = ("at", "entries", "position", "ready", "recalled", "unknown")

    def __init__(self, position: int) -> None:
        self.position = position  # of the next unit to read; -1 at the beginning of the chain
        self.entries: list[Entry] = []
        self.unknown: list[tuple[int, int]] = []  # offset and kind of units whose record is needed
        self.recalled: set[bytes] = set()
        self.ready = False
        self.at = 0  # entries that are done with


class _Lost(NamedTuple):
    """Messages before an offset of the timer topic whose entries are not above ``delivered``."""

    offset: int = 0
    slot_ms: int = 0
    delivered: Entry = 0


class _Damaged(Exception):
    """The timer files are damaged."""


class Timers:
    """The timer messages of one broker.

    Args:
        store: the open store.
        clock: the time.
        counters: counts the delivered messages.
        window_slots: the roll window in seconds.
        log_file_bytes: length of a file of the timer log.
        limits: limits the work of one step.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        counters: BrokerCounters,
        *,
        window_slots: int,
        log_file_bytes: int = DEFAULT_LOG_FILE_BYTES,
        limits: BrokerLimits = LIMITS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._counters = counters
        self._window_slots = window_slots
        self._log_file_bytes = log_file_bytes
        self._limits = limits
        self._files: TimerFiles
        self._queue_offset = 0
        self._read_ms = 0  # the slot that is being delivered
        self._delivered: Entry = 0  # the last entry of it that is done with
        self._slots: dict[int, _LoadedSlot] = {}
        self._waiting = 0
        self._drained_ms = 0
        self._careful = 0  # queue offset below which messages are read one at a time
        self._retry_at = 0.0  # monotonic seconds
        # What is known of files that are lost, and what was rolled of the messages in them.
        self._lost = _Lost()
        self._rolled: set[tuple[bytes, int]] = set()
        self._rebuilt = False
        # The end of the commit log with which a slot to read becomes durable, and its time.
        self._unsaved: tuple[int, int] | None = None
        self._durable_ms = 0
        self._saved = TimerCheck()
        self._saving = asyncio.Lock()
        self._woken = asyncio.Event()
        self._warnings = RateLimitedLog(clock, _log.warning)

    # --- start

    def open(self, directory: Path, files: Files) -> None:
        """Open the files, if there are any; call once, before the first message arrives.

        Args:
            directory: the directory of the broker's state files.
            files: the file system.

        Raises:
            StoreError: they can't be used.
            OSError: they can't be read.
        """
        root = self._store.paths.root
        self._files = TimerFiles(root, directory, files, self._log_file_bytes)
        self._open_files(create=False)
        if self._files.damage is not None:
            self._rebuild(self._files.damage)
        elif not (self._files.exist or self._lost.offset or self.unread == 0):
            _log.warning(
                "the timer files are missing: timer messages that were delivered are delivered "
                "again; if that is not intended, stop this broker and put timerwheel, timerlog and "
                "config/timercheck back",
                store=str(root),
            )

    def _open_files(self, *, create: bool) -> None:
        store, now_ms = self._store, self._clock.now_ms()
        high = store.queries.max_offset(TIMER_TOPIC, QUEUE)
        check, progress, last = self._files.open(store.log.end, high, create=create)
        if create:
            # As after a copy of a running store: the wheel is built again from the timer topic.
            check, progress, last = TimerCheck(self._lost.slot_ms), TimerProgress(), None
            self._read_ms, self._delivered = self._lost.slot_ms, self._lost.delivered
        else:
            self._lost = _Lost(*progress[-3:])
            self._read_ms, self._delivered = check.read_ms, 0
            if progress.slot_ms >= check.read_ms:
                self._read_ms, self._delivered = progress.slot_ms, progress.delivered
        offsets = [check.queue_offset, progress.queue_offset]
        record = None if last is None else _view(store.queries.record_at(last.offset))
        if record is not None and record.topic == TIMER_TOPIC:
            offsets.append(record.queue_offset + 1)
        self._queue_offset = min(max(offsets), high)
        if not self._files.exist:
            self._forget_wheel()
            return
        if not self._read_ms:
            self._read_ms, self._queue_offset = now_ms // PRECISION_MS * PRECISION_MS, 0
            if last is not None:
                self._files.damage = "neither timercheck nor timerProgress says what is delivered"
        if create:
            self._save_lost()
        self._waiting = self._files.count_from(self._read_ms)
        self._durable_ms = check.read_ms or self._read_ms
        self._saved = check

    def _rebuild(self, reason: str) -> None:
        """Remove the wheel and the log; the next steps build them again from the timer topic.

        Raises:
            OSError: the files can't be written.
        """
        _log.error(
            "the timer files are damaged; they are built again from the timer topic, which may "
            "deliver a message twice",
            reason=reason,
        )
        self._rebuilt = True
        self._forget_wheel()
        self._save_lost()
        self._files.discard()

    def _forget_wheel(self) -> None:
        # A rebuild that was interrupted goes on with what it knew.
        if self._queue_offset >= self._lost.offset:
            self._lost = _Lost(self._queue_offset, self._read_ms, self._delivered)
        self._queue_offset = self._waiting = 0
        self._slots.clear()

    def _save_lost(self) -> None:
        """Save that nothing of the timer topic is in the wheel, so that a kill changes nothing."""
        self._save_progress()
        self._files.write_check(TimerCheck(self._lost.slot_ms), self._clock.now_ms())

    # --- for requests and metrics

    def congested(self, slot_ms: int) -> bool:
        """Return whether a slot has as many messages as it may have."""
        files = self._files
        return files.exist and files.slot(slot_ms).messages >= self._limits.timers_per_second

    @property
    def taken(self) -> int:
        """How many messages of the timer topic were taken into the wheel, ever."""
        return self._queue_offset

    @property
    def unread(self) -> int:
        """How many messages of the timer topic are not in the wheel yet."""
        return max(0, self._store.queries.max_offset(TIMER_TOPIC, QUEUE) - self._queue_offset)

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        done = sum(slot.at for slot in self._slots.values())
        return max(0, self._waiting - done) + self.unread

    def overdue(self) -> tuple[int, float]:
        """Return how many messages should have been delivered, and the seconds since the first."""
        now_ms = self._clock.now_ms()
        count, first_ms = 0, now_ms
        for slot_ms, slot in sorted(self._slots.items()):
            due = bisect_right(slot.entries, now_ms - slot_ms + 1 << _OFFSET_BITS, slot.at)
            if slot.ready and due > slot.at:
                count += due - slot.at
                first_ms = min(first_ms, slot_ms + (slot.entries[slot.at] >> _OFFSET_BITS))
        return count, (now_ms - first_ms) / 1000

    # --- the task

    def arrived(self) -> None:
        """Wake the task: a message was stored in the timer topic."""
        self._woken.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            await self.deliver_due()
            await self._sleep()

    async def deliver_due(self) -> None:
        """Read, load and deliver until nothing can be done now."""
        while True:
            self._woken.clear()
            try:
                busy = await self._step()
            except (StoreError, OSError) as error:
                self._retry_later("the timers can't be read or written; retrying", str(error))
                return
            except _Damaged as damaged:
                async with self._saving:
                    self._rebuild(str(damaged))
                busy = True
            if not busy:
                return
            await asyncio.sleep(0)

    async def _step(self) -> bool:
        """Do one step; return whether there is more to do at once."""
        now_ms = self._clock.now_ms()
        if self._clock.monotonic() < self._retry_at:
            return False
        reach_ms = rules.WHEEL_REACH_MS - self._window_slots * PRECISION_MS
        has_slots = self._files.exist and self._read_ms <= self._files.last_slot_ms
        if has_slots and now_ms - self._read_ms > reach_ms:
            # Deliver first: new messages would use the slots again.
            self._drained_ms = now_ms
            unread = True
        elif unread := await self._read():
            # Not after a time that the clock showed before it was set back.
            self._drained_ms = min(max(self._drained_ms, now_ms - MOST_BEHIND_MS), now_ms)
        else:
            self._drained_ms = now_ms
        if not self._files.exist or self._read_ms > self._files.last_slot_ms:
            return unread
        try:
            due = await self._deliver(self._drained_ms)
        finally:
            self._save_progress()
        return await self._load(now_ms) or due or unread

    async def _sleep(self) -> None:
        now_ms, pause = self._clock.now_ms(), self._retry_at - self._clock.monotonic()
        at_ms = None
        if pause > 0:
            at_ms = now_ms + math.ceil(pause * 1000)
        elif self._files.exist and self._read_ms <= self._files.last_slot_ms:
            # The next slot is due, or has to be loaded, when the next second begins: the next after
            # the last step, since which a second may have begun.
            at_ms = (self._drained_ms // PRECISION_MS + 1) * PRECISION_MS
            slot = self._slots.get(self._read_ms)
            if slot is not None and slot.at < len(slot.entries):
                at_ms = min(at_ms, self._read_ms + (slot.entries[slot.at] >> _OFFSET_BITS))
        seconds = (
            None if at_ms is None else min(max(0, at_ms - now_ms) / 1000, LONGEST_SLEEP_SECONDS)
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    # --- reading the timer topic

    async def _read(self) -> bool:
        """Read the next messages of the timer topic; return whether there may be more."""
        store = self._store
        high = store.queries.max_offset(TIMER_TOPIC, QUEUE)
        if high == 0:
            return False
        if not self._files.exist:
            self._open_files(create=True)
        offset = self._queue_offset
        low = store.queries.min_offset(TIMER_TOPIC, QUEUE)
        if not low <= offset <= high:
            self._queue_offset = offset = min(max(offset, low), high)
        if offset >= self._lost.offset:
            self._rolled.clear()
        if offset == high:
            return False
        count = 1 if offset < self._careful else self._limits.timers_read_at_once
        most = self._limits.delivered_bytes
        result = await store.cold_reads.get(self, TIMER_TOPIC, QUEUE, offset, count, max_bytes=most)
        records = whole_records(result)
        if len(records) < result.next_offset - offset:
            if count > 1:
                self._careful = result.next_offset
                return True
            _log.error("a timer message can't be read and is not delivered", offset=offset)
            self._queue_offset = result.next_offset
            return True
        self._take(records)
        return True

    def _take(self, records: Sequence[RecordView]) -> None:
        """Add messages to the wheel; deliver those that are too late for it."""
        now_ms, units, first = self._clock.now_ms(), [], self._queue_offset
        for number, record in enumerate(records):
            try:
                if first + number < self._lost.offset and self._is_done(record):
                    continue
                unit, entry = self._unit(record, now_ms)
            except ValueError as error:
                self._give_up(record.offset_id, str(error))
                continue
            if unit is not None:
                units.append((unit, entry, record))
                continue
            self._add(units, first + number)
            units = []
            message = self._next(record, None)
            if message is not None and not self._put(message):
                return
            self._queue_offset = first + number + 1
            self._save_progress()
        self._add(units, first + len(records))

    def _is_done(self, record: RecordView) -> bool:
        """Return whether a message of lost files was delivered, or is a copy of one taken again.

        Raises:
            ValueError: the message has no time.
        """
        text, stored_ms, lost = record.properties_text, record.store_timestamp_ms, self._lost
        out_ms = rules.out_ms(text)
        due_ms = rules.due_ms(text, stored_ms, out_ms)
        entry = (due_ms - lost.slot_ms << _OFFSET_BITS) | record.physical_offset
        if rules.slot_of(due_ms) < lost.slot_ms or entry <= lost.delivered:
            return True
        key = rules.key_of(text), out_ms
        if rules.was_rolled(text) and key in self._rolled:
            return True
        if not key[0].endswith(b"+") and rules.placed(out_ms, stored_ms, self._window_slots)[1]:
            self._rolled.add(key)
        return False

    def _unit(self, record: RecordView, now_ms: int) -> tuple[Unit | None, Entry]:
        """Return the unit and the entry of a message; None for the unit if it is too late."""
        text = record.properties_text
        out_ms = rules.out_ms(text)
        slot_ms, rolls = rules.placed(out_ms, now_ms, self._window_slots)
        due_ms = rules.due_ms(text, record.store_timestamp_ms, out_ms)
        if rolls:
            due_ms = slot_ms + 1
        late_ms = self._read_ms + (self._delivered >> _OFFSET_BITS)
        if slot_ms < self._read_ms or due_ms <= late_ms:
            if due_ms > now_ms:
                # The wheel doesn't turn back (cf. TimerMessageStore.doEnqueue).
                self._warnings.write(
                    "the clock was set back: new timer messages are delivered at once until it "
                    "shows the time of the last delivery again",
                    seconds=(late_ms - now_ms) // 1000,
                )
            return None, 0
        kind = (ROLL if rolls else 0) | NORMAL
        if rules.PREFIX in text and rules.recalled(text) is not None:
            kind |= DELETE
        exact = slot_ms < due_ms - 1 < slot_ms + PRECISION_MS
        topic = rules.real_topic(text).decode("utf-8", "replace")
        unit = Unit(
            previous=-1,
            kind=kind,
            # Not later than the slot: the time in between has 32 bits.
            written_ms=min(now_ms // PRECISION_MS * PRECISION_MS, slot_ms),
            due_ms=due_ms - 1 if exact else slot_ms,
            offset=record.physical_offset,
            size=record.size,
            topic_hash=java_hash(topic),
        )
        return unit, (due_ms - slot_ms << _OFFSET_BITS) | record.physical_offset

    def _add(self, units: list[tuple[Unit, Entry, RecordView]], queue_offset: int) -> None:
        if units:
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
        self._queue_offset = queue_offset
        if units:
            self._save_progress()

    # --- loading slots

    async def _load(self, now_ms: int) -> bool:
        """Load a part of the next slot that is not loaded; return whether there is more to load."""
        slot_ms = self._read_ms
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
                slot.entries.append((1 << _OFFSET_BITS) | unit.offset)
            elif unit.kind & DELETE or unit.due_ms == slot_ms:
                slot.unknown.append((unit.offset, unit.kind))
            else:
                after_ms = unit.due_ms + 1 - slot_ms
                slot.entries.append((after_ms << _OFFSET_BITS) | unit.offset)
        else:
            return
        await self._load_unknown(slot_ms, slot)
        if not slot.unknown:
            slot.entries.sort()
            if slot_ms == self._read_ms:
                slot.at = bisect_right(slot.entries, self._delivered)
            slot.ready = True

    async def _load_unknown(self, slot_ms: int, slot: _LoadedSlot) -> None:
        for _ in range(min(len(slot.unknown), self._limits.timers_read_at_once)):
            # Popped after the read, which may fail or be cancelled; from the oldest to the newest.
            offset, kind = slot.unknown[-1]
            record = await self._waiting_record(offset)
            slot.unknown.pop()
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
            slot.entries.append((due_ms - slot_ms << _OFFSET_BITS) | offset)

    # --- delivering

    async def _deliver(self, until_ms: int) -> bool:
        """Deliver what is due at a time; return whether there is more that is due."""
        for _ in range(_SLOTS_SKIPPED_AT_ONCE):
            slot_ms = self._read_ms
            if slot_ms >= until_ms or slot_ms > self._files.last_slot_ms:
                return False
            slot = self._slots.get(slot_ms)
            if slot is None and self._files.slot(slot_ms).last >= 0:
                return True
            if slot is not None:
                if not slot.ready:
                    return True
                if not await self._deliver_some(slot_ms, slot, until_ms):
                    return self._clock.monotonic() >= self._retry_at
                if slot.at < len(slot.entries):
                    return False
            if until_ms < slot_ms + PRECISION_MS:
                return False
            self._waiting -= self._files.slot(slot_ms).messages
            self._slots.pop(slot_ms, None)
            self._read_ms, self._delivered = slot_ms + PRECISION_MS, 0
        return True

    async def _deliver_some(self, slot_ms: int, slot: _LoadedSlot, until_ms: int) -> bool:
        """Deliver a few entries that are due; return whether no more are."""
        limit = until_ms - slot_ms + 1 << _OFFSET_BITS
        most, size = slot.at + self._limits.delivered_at_once, 0
        taken: list[Entry] = []
        messages: list[tuple[Entry, PendingMessage]] = []
        for entry in slot.entries[slot.at : most]:
            if entry >= limit or size >= self._limits.delivered_bytes:
                break
            record = await self._waiting_record(entry & _OFFSET_MASK)
            taken.append(entry)
            if record is None:
                continue
            message = self._next(record, slot)
            if message is not None:
                messages.append((entry, message))
                size += record.size
        # From here on nothing is awaited, so a cancellation neither loses nor repeats a message.
        failed = self._put_all(messages)
        done = [entry for entry in taken if entry not in failed]
        slot.entries[slot.at : slot.at + len(taken)] = done + sorted(failed)
        slot.at += len(done)
        if failed:
            self._delivered = max(self._delivered, min(failed) - 1)
            return False
        if taken:
            self._delivered = taken[-1]
        return slot.at == len(slot.entries) or slot.entries[slot.at] >= limit

    def _next(self, record: RecordView, slot: _LoadedSlot | None) -> PendingMessage | None:
        """Return the message to store for one whose entry is due; None if it is recalled or void.

        ``slot`` is None for a message that was too late for its slot.
        """
        if is_void(record, self._store):
            return None
        text, now_ms = record.properties_text, self._clock.now_ms()
        rolls = slot is not None and rules.out_ms(text) > self._read_ms
        if not rolls and rules.recalled(text) is not None:
            return None
        if not rolls and slot is not None and slot.recalled and rules.key_of(text) in slot.recalled:
            self._counters.timers_recalled += 1
            return None
        try:
            return rules.rolled(record, now_ms) if rolls else rules.expired(record, now_ms)
        except ValueError as error:
            self._give_up(record.offset_id, str(error))
            return None

    def _put_all(self, messages: Sequence[tuple[Entry, PendingMessage]]) -> set[Entry]:
        """Store messages; return the entries of those that must be retried.

        Those of one queue are stored as a batch, which is faster, or singly if that is refused.
        """
        queues: dict[tuple[str, int], list[tuple[Entry, PendingMessage]]] = {}
        for entry, message in messages:
            queues.setdefault((message.topic, message.queue_id), []).append((entry, message))
        failed: set[Entry] = set()
        for part in queues.values():
            if len(part) > 1 and self._put_batch([message for _, message in part]):
                continue
            failed.update(entry for entry, message in part if not self._put(message))
        return failed

    def _put_batch(self, messages: Sequence[PendingMessage]) -> bool:
        try:
            stored = self._store.put_batch(messages).status is PutStatus.OK
        except OSError:
            stored = False
        if stored and messages[0].topic != TIMER_TOPIC:
            self._counters.timers_delivered += len(messages)
        return stored

    def _put(self, message: PendingMessage) -> bool:
        """Store a message; return False if that must be retried."""
        try:
            result = self._store.put(message)
        except OSError as error:
            result = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, message=str(error))
        if result.status in FOR_GOOD:
            self._give_up(f"to topic {message.topic}", result.message)
        elif result.status is not PutStatus.OK:
            self._retry_later("a timer message can't be stored now; retrying", result.message)
            return False
        elif message.topic != TIMER_TOPIC:
            self._counters.timers_delivered += 1
        return True

    def _give_up(self, which: str, reason: str) -> None:
        _log.error(
            "a timer message is not delivered; its record stays in the store",
            message=which,
            reason=reason,
        )

    def _retry_later(self, what: str, reason: str) -> None:
        self._retry_at = self._clock.monotonic() + RETRY_MS / 1000
        self._warnings.write(what, reason=reason)

    async def _waiting_record(self, offset: int) -> RecordView | None:
        """Return the record at a physical offset; None if it is no message of the timer topic.

        Raises:
            _Damaged: the timer log is wrong about it.
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
            _Damaged: they weren't built again since the start.
        """
        if not self._rebuilt:
            raise _Damaged(damage)
        _log.error("a timer message can't be read and is not delivered", reason=damage)

    # --- saving

    def _save_progress(self) -> None:
        """Write ``timerProgress``; without it the next start repeats deliveries."""
        store, files = self._store, self._files
        try:
            files.write_progress(
                TimerProgress(
                    store.log.end,
                    files.log_end,
                    self._queue_offset,
                    self._read_ms,
                    self._delivered,
                    *self._lost,
                )
            )
        except OSError as error:
            self._warnings.write(
                "progress of the timers can't be written; if the broker is killed now, some "
                "messages will be delivered twice",
                reason=str(error),
            )

    def _check(self) -> TimerCheck:
        return TimerCheck(self._read_ms, self._files.log_end, self._queue_offset)

    async def run_saves(self) -> None:
        """Save every second until cancelled."""
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            await self.save()

    async def save(self) -> None:
        """Sync the files and write ``timercheck``.

        The units are on the disk then. Slots count as delivered once the commit log is, too.
        """
        async with self._saving:
            if self._files.exist:
                await self._save()

    async def _save(self) -> None:
        now = self._check()
        if self._unsaved is not None and self._unsaved[0] <= self._store.syncer.log.flushed:
            self._durable_ms, self._unsaved = self._unsaved[1], None
        if self._unsaved is None and now.read_ms != self._durable_ms:
            self._unsaved = self._store.log.end, now.read_ms
        check = now._replace(read_ms=self._durable_ms)
        try:
            if check != self._saved:
                await _in_thread(self._files.start_sync())
                now_ms = self._clock.now_ms()
                await _in_thread(partial(self._files.write_check, check, now_ms))
                self._saved = check
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
            files.write_check(self._check(), self._clock.now_ms())
            self._save_progress()
        except (OSError, StoreError) as error:
            _log.warning("the timer files can't be saved", reason=str(error))
        finally:
            files.close()

    def _keep_undelivered(self) -> None:
        """Take what is delivered out of the slot that is being delivered."""
        slot = self._slots.get(self._read_ms)
        if slot is None or not slot.ready or not slot.at:
            return
        done = {entry & _OFFSET_MASK for entry in slot.entries[: slot.at]}
        kept, position = [], self._files.slot(self._read_ms).last
        while position >= 0 and (unit := self._files.unit(position)) is not None:
            if unit.offset not in done:
                kept.append(position)
            position = unit.previous if unit.previous < position else -1
        self._files.keep_only(self._read_ms, kept[::-1])


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
