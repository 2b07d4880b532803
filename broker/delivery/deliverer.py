"""Delivery of delayed messages when they are due, by one task for all levels.

``Schedule`` determines which queue to check, and when. The deliverer reads the queue's entries and
the records that are due, and stores those as messages of their real topics. It sleeps until the
next message is due or a message arrives. Records that are not in memory are read in a thread. Each
iteration of the event loop delivers a few dozen messages at most.

A put and the update of the progress happen without an await in between, so a cancellation neither
loses nor repeats a message. A put that fails temporarily is retried. A message that can't be read,
or can never be stored under its real topic, is logged and skipped, so that it doesn't block the
messages after it; its record stays in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from broker.delivery.redelivery import delivered, is_void
from broker.delivery.schedule import DeliveryProgress, Save, Schedule
from broker.limits import LIMITS, BrokerLimits
from broker.store.os_files import Files
from broker.store.results import GetResult, PutResult, PutStatus, StoreError
from broker.traffic.counts import BrokerCounters
from remoting.protocol.errors import RecordError
from remoting.protocol.message.view import RecordView, iter_records
from remoting.protocol.names import SCHEDULE_TOPIC
from remoting.runtime.clock import Clock

if TYPE_CHECKING:
    from broker.store.engine import MessageStore


_log = structlog.get_logger("broker")

RETRY_MS: Final = 1000
"""Delay before a failed put or read is retried."""

LONGEST_SLEEP_SECONDS: Final = 10.0
"""Bounds how late a message is delivered if the wall clock is set forward during a sleep."""

FOR_GOOD: Final = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED})


class Delays:
    """Delivers the delayed messages of one broker.

    Args:
        levels_ms: the delays of the levels in ms, from level 1 on.
        store: the open store, from which messages are read and in which they are stored.
        clock: the time.
        counters: counts the delivered messages.
        limits: limits the work of one iteration of the event loop.

    Attributes:
        offsets: delay level -> queue offset of its next message; after ``open``, a live view.
    """

    def __init__(
        self,
        levels_ms: Sequence[int],
        store: MessageStore,
        clock: Clock,
        counters: BrokerCounters,
        limits: BrokerLimits = LIMITS,
    ) -> None:
        self._levels_ms = levels_ms
        self._store = store
        self._clock = clock
        self._counters = counters
        self._limits = limits
        self.offsets: Mapping[int, int] = {}
        self._schedule: Schedule
        self._progress: DeliveryProgress
        self._woken = asyncio.Event()
        self._delivering = asyncio.Lock()
        # Level -> offset below which records are read one at a time, to isolate an unreadable one.
        self._one_by_one_until: dict[int, int] = {}

    def open(
        self, directory: Path, files: Files, saved: Mapping[int, int] | None, save: Save
    ) -> None:
        """Load the progress; call once, before the first message arrives.

        Args:
            directory: the directory of the broker's state files.
            files: the file system.
            saved: the content of ``delayOffset.json``; None if the file is missing.
            save: writes that file in the background.

        Raises:
            OSError: the progress file can't be read or created.
        """
        store = self._store
        self._schedule = schedule = Schedule(self._levels_ms, saved)
        self._progress = DeliveryProgress(schedule, store, directory, files, save)
        self._progress.load()
        queue_ids = store.queues.queue_ids(SCHEDULE_TOPIC)
        if saved is None and not schedule.offsets and queue_ids:
            _log.warning(
                "config/delayOffset.json is missing: delayed messages that were delivered are "
                "delivered again; if that is not intended, stop this broker and put the file back",
                store=str(store.paths.root),
            )
        now_ms = self._clock.now_ms()
        for level in {*schedule.offsets, *(queue_id + 1 for queue_id in queue_ids)}:
            low = store.queries.min_offset(SCHEDULE_TOPIC, level - 1)
            high = store.queries.max_offset(SCHEDULE_TOPIC, level - 1)
            if schedule.clamp(level, low, high) < high:
                schedule.settle(level, now_ms)
        self._progress.delivered()
        self.offsets = schedule.offsets

    def save(self) -> None:
        """Save the progress of deliveries that are on disk; called periodically."""
        self._progress.save_durable()

    def save_all(self) -> None:
        """Flush the store and save all progress, after the last delivery; blocks."""
        self._progress.save_all()

    def arrived(self, queue_id: int, due_ms: int) -> None:
        """Schedule a message that was stored in a queue of the schedule topic."""
        if self._schedule.arrived(queue_id + 1, due_ms, self._clock.now_ms()):
            self._woken.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            await self._sleep()
            await self.deliver_due()

    async def catch_up(self) -> None:
        """Deliver what is due, after the clock was set forward."""
        await self.deliver_due()
        # The task sleeps until a time of the old clock.
        self._woken.set()

    async def deliver_due(self) -> None:
        """Deliver until nothing is due."""
        async with self._delivering:
            while (level := self._schedule.level_due(self._clock.now_ms())) is not None:
                try:
                    await self._check_level(level)
                except StoreError as error:
                    _log.warning(
                        "delayed messages can't be read; retrying",
                        level=level,
                        reason=str(error),
                    )
                    self._schedule.settle(level, self._clock.now_ms() + RETRY_MS)
                await asyncio.sleep(0)

    async def _sleep(self) -> None:
        self._woken.clear()
        now_ms = self._clock.now_ms()
        at = self._schedule.next_check(now_ms)
        seconds = None
        if at is not None:
            seconds = min(max(0, at - now_ms) / 1000, LONGEST_SLEEP_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass

    # one check of one queue

    async def _check_level(self, level: int) -> None:
        """Deliver the next messages of a level that are due, and set the time of its next check."""
        schedule, queue_id, now_ms = self._schedule, level - 1, self._clock.now_ms()
        queries, cold_reads = self._store.queries, self._store.cold_reads
        high = queries.max_offset(SCHEDULE_TOPIC, queue_id)
        offset = schedule.clamp(level, queries.min_offset(SCHEDULE_TOPIC, queue_id), high)
        if offset == high:
            schedule.settle(level, None)
            return
        max_count = (
            1 if offset < self._one_by_one_until.get(level, 0) else self._limits.delivered_at_once
        )
        codes = await cold_reads.tags_codes(self, SCHEDULE_TOPIC, queue_id, offset, max_count)
        count, later_ms = schedule.split(level, codes, now_ms)
        if not count:
            schedule.settle(level, now_ms if later_ms is None else later_ms)
            return
        result = await cold_reads.get(
            self, SCHEDULE_TOPIC, queue_id, offset, count, max_bytes=self._limits.delivered_bytes
        )
        again_ms = self._take(level, offset, result)
        schedule.settle(level, now_ms if again_ms is None else again_ms)

    def _take(self, level: int, offset: int, result: GetResult) -> int | None:
        """Deliver the messages that were read.

        Return the time in ms at which to retry, or None if all were delivered or skipped.
        """
        later_ms = self._clock.now_ms() + RETRY_MS
        end = result.next_offset
        records = whole_records(result)
        if len(records) < end - offset:
            if end - offset > 1:
                self._one_by_one_until[level] = end
                return later_ms
            _log.error(
                "a delayed message can't be read and is not delivered", level=level, offset=offset
            )
        for number, record in enumerate(records):
            if not self._deliver(level, record):
                self._advance(level, offset + number)
                return later_ms
        self._advance(level, end)
        return None

    def _advance(self, level: int, offset: int) -> None:
        self._schedule.advance(level, offset)
        self._progress.delivered()

    def _deliver(self, level: int, record: RecordView) -> bool:
        """Store a message under its real topic; return False if that must be retried."""
        if is_void(record, self._store):
            return True
        try:
            message = delivered(record)
        except ValueError as error:
            self._give_up(level, record, str(error))
            return True
        try:
            result = self._store.put(message)
        except OSError as error:
            result = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, message=str(error))
        if result.status in FOR_GOOD:
            self._give_up(level, record, result.message)
            return True
        if result.status is not PutStatus.OK:
            _log.warning(
                "a delayed message can't be stored now; retrying",
                level=level,
                topic=message.topic,
                reason=result.message,
            )
            return False
        self._counters.messages_delivered_late += 1
        return True

    def _give_up(self, level: int, record: RecordView, reason: str) -> None:
        _log.error(
            "a delayed message is not delivered; its record stays under this id",
            id=record.offset_id,
            level=level,
            reason=reason,
        )


def whole_records(result: GetResult) -> Sequence[RecordView]:
    """Return the records of a read, up to the first damaged one."""
    records: list[RecordView] = []
    try:
        for view in result.records:
            records.extend(iter_records(view))
    except RecordError:
        pass
    return records
