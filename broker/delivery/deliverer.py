"""Delivers delayed messages when they are due: one task for all levels.

``Schedule`` names the queue to look at and the time; the deliverer reads the entries, and the
records of those that are due, which become messages of their real topics. It sleeps until the first
of the next messages is due, or until one arrives. Records that only the disk has are read in a
thread. A few dozen messages are delivered per turn of the loop.

A put and its progress are one step of the loop, so a stop between turns neither loses nor repeats a
message. A put that the store refuses for now is repeated. A message that can't be stored under its
real topic at all, or can't be read, stays where it is, is named in the log, and is passed: the
messages behind it must not wait forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from broker.delivery.schedule import DeliveryProgress, Save, Schedule, delivered
from broker.limits import DELIVERED_AT_ONCE, DELIVERED_BYTES_AT_ONCE
from broker.store.os_files import Files
from broker.store.results import GetResult, GetStatus, PutResult, PutStatus, StoreError
from remoting.clock import Clock
from remoting.protocol.errors import RecordError
from remoting.protocol.message.view import RecordView, iter_records
from remoting.protocol.names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.state import BrokerCounters
    from broker.store.message_store import MessageStore


_log = structlog.get_logger("broker")

RETRY_MS: Final = 1000
"""After this a put is tried again that the store refused for now, and a read that failed."""

LONGEST_SLEEP_SECONDS: Final = 10.0
"""How late a message may be when the wall clock was set meanwhile."""

_FOR_GOOD: Final = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED})


class Deliverer:
    """The delayed messages of one broker.

    Args:
        store: where they wait, and where they go.
        schedule: the progress so far.
        clock: the time.
        counters: what is told how many were delivered.
        on_progress: called after each turn in which messages were delivered.
    """

    def __init__(
        self,
        store: MessageStore,
        schedule: Schedule,
        clock: Clock,
        counters: BrokerCounters,
        *,
        on_progress: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._schedule = schedule
        self._clock = clock
        self._counters = counters
        self._on_progress = on_progress
        self._woken = asyncio.Event()
        # Of a level with a record that can't be read: below this offset one is read at a time.
        self._careful: dict[int, int] = {}

    def open(self) -> None:
        """Take up the queues that are there; once, before the first message arrives."""
        store, schedule, now_ms = self._store, self._schedule, self._clock.now_ms()
        for level in {*schedule.offsets, *(n + 1 for n in store.queue_ids(SCHEDULE_TOPIC))}:
            low = store.min_offset(SCHEDULE_TOPIC, level - 1)
            high = store.max_offset(SCHEDULE_TOPIC, level - 1)
            if schedule.clamp(level, low, high) < high:
                schedule.settle(level, now_ms)

    def arrived(self, queue_id: int, due_ms: int) -> None:
        """A message has come into a queue of the schedule topic."""
        if self._schedule.arrived(queue_id + 1, due_ms, self._clock.now_ms()):
            self._woken.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            await self._sleep()
            await self.deliver_due()

    async def deliver_due(self) -> None:
        """Deliver until nothing is due."""
        while (level := self._schedule.level_due(self._clock.now_ms())) is not None:
            try:
                await self._look(level)
            except StoreError as error:
                _log.warning(
                    "delayed messages can't be read; it is tried again",
                    level=level,
                    reason=str(error),
                )
                self._schedule.settle(level, self._clock.now_ms() + RETRY_MS)
            await asyncio.sleep(0)

    async def _sleep(self) -> None:
        self._woken.clear()
        now_ms = self._clock.now_ms()
        at = self._schedule.next_look(now_ms)
        seconds = None
        if at is not None:
            seconds = min(max(0, at - now_ms) / 1000, LONGEST_SLEEP_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass

    # one look at one queue

    async def _look(self, level: int) -> None:
        """Deliver the first messages of a level that are due, and settle when to look again."""
        schedule, queue_id, now_ms = self._schedule, level - 1, self._clock.now_ms()
        high = self._store.max_offset(SCHEDULE_TOPIC, queue_id)
        offset = schedule.clamp(level, self._store.min_offset(SCHEDULE_TOPIC, queue_id), high)
        if offset == high:
            schedule.settle(level, None)
            return
        most = 1 if offset < self._careful.get(level, 0) else DELIVERED_AT_ONCE
        codes = await self._store.tags_codes(self, SCHEDULE_TOPIC, queue_id, offset, most)
        count, later_ms = schedule.split(level, codes, now_ms)
        if not count:
            schedule.settle(level, now_ms if later_ms is None else later_ms)
            return
        result = await self._read(queue_id, offset, count)
        again_ms = self._take(level, offset, result)
        schedule.settle(level, now_ms if again_ms is None else again_ms)

    async def _read(self, queue_id: int, offset: int, count: int) -> GetResult:
        result = self._store.get(
            SCHEDULE_TOPIC,
            queue_id,
            offset,
            count,
            max_bytes=DELIVERED_BYTES_AT_ONCE,
            wait=False,
        )
        if result.status is GetStatus.COLD:
            result = await self._store.get_async(
                self,
                SCHEDULE_TOPIC,
                queue_id,
                offset,
                count,
                max_bytes=DELIVERED_BYTES_AT_ONCE,
            )
        return result

    def _take(self, level: int, offset: int, result: GetResult) -> int | None:
        """Deliver what was read; None, or the time before which to look at the level again."""
        later_ms = self._clock.now_ms() + RETRY_MS
        behind = result.next_offset
        records = _records(result)
        if len(records) < behind - offset:
            if behind - offset > 1:
                self._careful[level] = behind
                return later_ms
            _log.error(
                "a delayed message can't be read and is not delivered", level=level, offset=offset
            )
        for number, record in enumerate(records):
            if not self._deliver(level, record):
                self._progress(level, offset + number)
                return later_ms
        self._progress(level, behind)
        return None

    def _progress(self, level: int, offset: int) -> None:
        self._schedule.advance(level, offset)
        if self._on_progress is not None:
            self._on_progress()

    def _deliver(self, level: int, record: RecordView) -> bool:
        """Store a message under its real topic; False: not now."""
        try:
            message = delivered(record)
        except ValueError as error:
            self._give_up(level, record, str(error))
            return True
        try:
            result = self._store.put(message)
        except OSError as error:
            result = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, message=str(error))
        if result.status in _FOR_GOOD:
            self._give_up(level, record, result.message)
            return True
        if result.status is not PutStatus.OK:
            _log.warning(
                "a delayed message can't be stored now; it is tried again",
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


def _records(result: GetResult) -> Sequence[RecordView]:
    """The records of a read, up to the first that isn't whole."""
    records: list[RecordView] = []
    try:
        for view in result.records:
            records.extend(iter_records(view))
    except RecordError:
        pass
    return records


class Delays:
    """The delayed messages of a broker.

    Args:
        config: its settings.
        store: open.
        clock: the time.
        counters: what is told how many were delivered.

    Attributes:
        offsets: of each level that has delivered some the next message; once it is open.
    """

    def __init__(
        self, config: BrokerConfig, store: MessageStore, clock: Clock, counters: BrokerCounters
    ) -> None:
        self._levels_ms = config.delay_levels_ms
        self._store = store
        self._clock = clock
        self._counters = counters
        self.offsets: Mapping[int, int] = {}
        self._progress: DeliveryProgress
        self._deliverer: Deliverer

    def open(
        self, directory: Path, files: Files, saved: Mapping[int, int] | None, save: Save
    ) -> None:
        """Go on where the broker was; once, before the first message arrives.

        Args:
            directory: of the broker's state files.
            files: the disk.
            saved: what ``delayOffset.json`` says; None when there is none.
            save: writes it, in the background.

        Raises:
            OSError: our own file can't be read or made.
        """
        schedule = Schedule(self._levels_ms, saved)
        self._progress = DeliveryProgress(schedule, self._store, directory, files, save)
        self._progress.load()
        if saved is None and not schedule.offsets and self._store.queue_ids(SCHEDULE_TOPIC):
            _log.warning(
                "config/delayOffset.json is missing: delayed messages that were delivered are "
                "delivered again; if that is not intended, stop this broker and put the file back",
                store=str(self._store.paths.root),
            )
        self._deliverer = Deliverer(
            self._store,
            schedule,
            self._clock,
            self._counters,
            on_progress=self._progress.delivered,
        )
        self._deliverer.open()
        self._progress.delivered()
        self.offsets = schedule.offsets

    def arrived(self, queue_id: int, due_ms: int) -> None:
        """A message has come into a queue of the schedule topic."""
        self._deliverer.arrived(queue_id, due_ms)

    async def run(self) -> None:
        """Deliver until cancelled."""
        await self._deliverer.run()

    async def deliver_due(self) -> None:
        """Deliver what is due now."""
        await self._deliverer.deliver_due()

    def save(self) -> None:
        """Write the progress as far as the disk has what was delivered; now and then."""
        self._progress.save_durable()

    def save_all(self) -> None:
        """Write all of it, once nothing is delivered any more; blocks for the disk."""
        self._progress.save_all()
