"""Delayed delivery of one broker: schedule, deliverer and progress put together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from broker.delivery.deliverer import Deliverer
from broker.delivery.progress import DeliveryProgress, Save
from broker.delivery.schedule import Schedule
from broker.store.files import Files
from remoting.clock import Clock
from remoting.protocol.names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.state import BrokerCounters
    from broker.store.message_store import MessageStore

_log = structlog.get_logger("broker")


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
