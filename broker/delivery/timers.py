"""Delivery at any time: reads the timer topic into the wheel, and delivers what is due.

One task does three things in turn, each a small step of the event loop. It **reads** the messages
of the timer topic and adds a unit for each to the wheel. It has the wheel **load** the slots of the
next seconds. It **delivers** the messages that are due to their real topics, or stores them in the
timer topic again if they are due after the roll window (cf. TimerMessageStore).

Messages sent before a time are read before anything due at that time is delivered. So the messages
of a slot are delivered in order. A message that becomes visible too late for its place, as with
SYNC_FLUSH, is delivered when it is read.

A message that can't be read, or can never be stored under its real topic, is logged and skipped. A
put that fails for another reason is retried.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from broker.delivery import timer_rules as rules
from broker.delivery.deliverer import FOR_GOOD, LONGEST_SLEEP_SECONDS, RETRY_MS, whole_records
from broker.delivery.redelivery import is_void
from broker.delivery.timer_files import TimerFiles
from broker.delivery.timer_rules import QUEUE
from broker.delivery.timer_wheel import PackedEntry, TimerWheel, WheelDamaged, pack
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
    Unit,
)
from remoting.protocol.message.tags import java_hash
from remoting.protocol.message.view import RecordView
from remoting.protocol.names import TIMER_TOPIC
from remoting.runtime.clock import Clock
from remoting.runtime.log import RateLimitedLog

if TYPE_CHECKING:
    from broker.store.engine import MessageStore

_log = structlog.get_logger("broker")

MAX_READ_LAG_MS: Final = 200
"""Maximum extra delay of deliveries while messages arrive faster than they are read."""


class Timers:
    """Reads and delivers the timer messages of one broker.

    Args:
        store: the open store.
        clock: the time.
        counters: counts the delivered messages.
        window_slots: the roll window in seconds.
        log_file_bytes: length of a file of the timer log.
        limits: limits the work of one step.

    Attributes:
        wheel: the waiting messages; exists after ``open``.
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
        self.wheel: TimerWheel
        self._drained_ms = 0  # up to which time everything was read
        self._one_by_one_until = 0  # queue offset below which messages are read one at a time
        self._rolled: set[tuple[bytes, int]] = set()  # of the messages of lost files
        self._retry_at = 0.0  # monotonic seconds
        self._woken = asyncio.Event()
        self._delivering = asyncio.Lock()
        self._warnings = RateLimitedLog(clock, _log.warning)

    def open(self, directory: Path, files: Files) -> None:
        """Open the wheel; call once, before the first message arrives.

        Args:
            directory: the directory of the broker's state files.
            files: the file system.

        Raises:
            StoreError: its files can't be used.
            OSError: they can't be read.
        """
        root = self._store.paths.root
        timer_files = TimerFiles(root, directory, files, self._log_file_bytes)
        self.wheel = TimerWheel(self._store, self._clock, timer_files, self._limits)
        self.wheel.open()

    # --- the task

    def arrived(self) -> None:
        """Wake the task: a message was stored in the timer topic."""
        self._woken.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            await self.deliver_due()
            await self._sleep()

    async def catch_up(self) -> None:
        """Deliver what is due, after the clock was set forward."""
        await self.deliver_due()
        # The task sleeps until a time of the old clock.
        self._woken.set()

    async def deliver_due(self) -> None:
        """Read, load and deliver until nothing can be done now."""
        async with self._delivering:
            while True:
                self._woken.clear()
                try:
                    busy = await self._step()
                except (StoreError, OSError) as error:
                    self._retry_later("the timers can't be read or written; retrying", str(error))
                    return
                except WheelDamaged as damaged:
                    await self.wheel.rebuild(str(damaged))
                    busy = True
                if not busy:
                    return
                await asyncio.sleep(0)

    async def _step(self) -> bool:
        """Do one step; return whether there is more to do at once."""
        wheel, now_ms = self.wheel, self._clock.now_ms()
        if self._clock.monotonic() < self._retry_at:
            return False
        reach_ms = rules.WHEEL_REACH_MS - self._window_slots * PRECISION_MS
        if wheel.has_slots and now_ms - wheel.read_ms > reach_ms:
            # Deliver first: new messages would use the slots again.
            self._drained_ms = now_ms
            unread = True
        elif unread := await self._read():
            # Not after a time that the clock showed before it was set back.
            self._drained_ms = min(max(self._drained_ms, now_ms - MAX_READ_LAG_MS), now_ms)
        else:
            self._drained_ms = now_ms
        if not wheel.has_slots:
            return unread
        try:
            due = await self._deliver(self._drained_ms)
        finally:
            wheel.save_progress()
        return await wheel.load(now_ms) or due or unread

    async def _sleep(self) -> None:
        now_ms, pause = self._clock.now_ms(), self._retry_at - self._clock.monotonic()
        seconds = None
        if pause > 0:
            seconds = math.ceil(pause * 1000) / 1000
        elif self.wheel.has_slots:
            # The next slot is due, or has to be loaded, when the next second begins: the next after
            # the last step, since which a second may have begun.
            at_ms = (self._drained_ms // PRECISION_MS + 1) * PRECISION_MS
            at_ms = min(at_ms, self.wheel.next_due_ms() or at_ms)
            seconds = max(0, at_ms - now_ms) / 1000
        if seconds is not None:
            seconds = min(seconds, LONGEST_SLEEP_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    # --- reading the timer topic

    async def _read(self) -> bool:
        """Read the next messages of the timer topic; return whether there may be more."""
        store, wheel = self._store, self.wheel
        high = store.queries.max_offset(TIMER_TOPIC, QUEUE)
        if high == 0:
            return False
        wheel.create()
        low = store.queries.min_offset(TIMER_TOPIC, QUEUE)
        wheel.taken = offset = min(max(wheel.taken, low), high)
        if offset >= wheel.lost.offset:
            self._rolled.clear()
        if offset == high:
            return False
        count = 1 if offset < self._one_by_one_until else self._limits.timers_read_at_once
        max_bytes = self._limits.delivered_bytes
        result = await store.cold_reads.get(
            self, TIMER_TOPIC, QUEUE, offset, count, max_bytes=max_bytes
        )
        records = whole_records(result)
        if len(records) < result.next_offset - offset:
            if count > 1:
                self._one_by_one_until = result.next_offset
                return True
            _log.error("a timer message can't be read and is not delivered", offset=offset)
            wheel.taken = result.next_offset
            return True
        self._take(records)
        return True

    def _take(self, records: Sequence[RecordView]) -> None:
        """Add messages to the wheel; deliver the ones that are too late for it."""
        wheel, now_ms, units = self.wheel, self._clock.now_ms(), []
        end = wheel.taken + len(records)
        for offset, record in enumerate(records, wheel.taken):
            try:
                if offset < wheel.lost.offset and self._was_delivered(record):
                    continue
                unit, entry = self._unit(record, now_ms)
            except ValueError as error:
                self._give_up(record.offset_id, str(error))
                continue
            if unit is not None:
                units.append((unit, entry, record))
                continue
            wheel.add(units, offset)
            units = []
            message = self._message(record, None)
            if message is not None and not self._put(message):
                return
            wheel.add((), offset + 1)
        wheel.add(units, end)

    def _was_delivered(self, record: RecordView) -> bool:
        """Return whether a message of lost files was delivered, or is a copy of one taken again.

        Raises:
            ValueError: the message has no time.
        """
        text, stored_ms, lost = record.properties_text, record.store_timestamp_ms, self.wheel.lost
        out_ms = rules.out_ms(text)
        due_ms = rules.due_ms(text, stored_ms, out_ms)
        entry = pack(due_ms - lost.slot_ms, record.physical_offset)
        if rules.slot_of(due_ms) < lost.slot_ms or entry <= lost.delivered:
            return True
        key = rules.key_of(text), out_ms
        if rules.was_rolled(text) and key in self._rolled:
            return True
        if not key[0].endswith(b"+") and rules.placed(out_ms, stored_ms, self._window_slots)[1]:
            self._rolled.add(key)
        return False

    def _unit(self, record: RecordView, now_ms: int) -> tuple[Unit | None, PackedEntry]:
        """Return the unit and the entry of a message; None for the unit if it is too late."""
        text = record.properties_text
        out_ms = rules.out_ms(text)
        slot_ms, rolls = rules.placed(out_ms, now_ms, self._window_slots)
        due_ms = rules.due_ms(text, record.store_timestamp_ms, out_ms)
        if rolls:
            due_ms = slot_ms + 1
        late_ms = self.wheel.delivered_ms
        if slot_ms < self.wheel.read_ms or due_ms <= late_ms:
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
        return unit, pack(due_ms - slot_ms, record.physical_offset)

    # --- delivering

    async def _deliver(self, until_ms: int) -> bool:
        """Deliver a few messages due at a time; return whether there may be more that are due."""
        wheel = self.wheel
        if not wheel.turn(until_ms):
            return False
        due = await wheel.due(until_ms)
        # From here on nothing is awaited, so a cancellation neither loses nor repeats a message.
        recalled = wheel.recalled
        messages = [
            (entry, message)
            for entry, record in due
            if record is not None and (message := self._message(record, recalled)) is not None
        ]
        if due:
            wheel.settle([entry for entry, _ in due], self._put_all(messages))
        return self._clock.monotonic() >= self._retry_at

    def _message(
        self, record: RecordView, recalled: Collection[bytes] | None
    ) -> PendingMessage | None:
        """Return the message to store for a record that is due; None if it is recalled or void.

        ``recalled`` are the keys of recalled messages in its slot; None if it came too late for it.
        """
        if is_void(record, self._store):
            return None
        text, now_ms = record.properties_text, self._clock.now_ms()
        try:
            if recalled is not None and rules.out_ms(text) > self.wheel.read_ms:
                return rules.rolled(record, now_ms)
            if rules.recalled(text) is not None:
                return None
            if recalled and rules.key_of(text) in recalled:
                self._counters.timers_recalled += 1
                return None
            return rules.expired(record, now_ms)
        except ValueError as error:
            self._give_up(record.offset_id, str(error))
            return None

    def _put_all(self, messages: Sequence[tuple[PackedEntry, PendingMessage]]) -> set[PackedEntry]:
        """Store messages; return the entries of the ones to retry.

        Messages of one queue are stored as a batch, which is faster, or singly if it is refused.
        """
        queues: dict[tuple[str, int], list[tuple[PackedEntry, PendingMessage]]] = {}
        for entry, message in messages:
            queues.setdefault((message.topic, message.queue_id), []).append((entry, message))
        failed: set[PackedEntry] = set()
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
