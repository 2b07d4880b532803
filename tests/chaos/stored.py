"""Read the contents of a store's directory without a broker while it grows."""

from __future__ import annotations

from pathlib import Path

from broker.storetools.view import StoreView
from remoting.protocol.disk.files import ENTRY
from tests.chaos.flood import Place, number_of


class Stored:
    """Return the messages of one topic.

    Attributes:
        rows: of each queue the numbers of its messages.
    """

    def __init__(self, root: Path, topic: str, queues: int) -> None:
        self._root = root
        self._topic = topic
        self.rows: list[list[int]] = [[] for _ in range(queues)]

    def read_on(self) -> None:
        """Check what was added since the last call: each queue is dense, and only grows."""
        view = StoreView(self._root)
        for queue_id, row in enumerate(self.rows):
            queue = view.queue(self._topic, queue_id)
            low, high, _ = queue.range()
            assert low == 0
            assert high >= len(row), f"queue {queue_id} went back from {len(row)} to {high}"
            for run in queue.entries(len(row), high):
                for position, size, _ in ENTRY.iter_unpack(run.entries):
                    record = view.log.record_at(position)
                    assert record is not None, f"no sound record at {position}"
                    assert (record.topic, record.queue_id) == (self._topic, queue_id)
                    assert (record.queue_offset, record.size) == (len(row), size)
                    row.append(number_of(record.body))

    def check(self, places: list[Place]) -> None:
        """Every message is at the position that the broker returned."""
        for place in places:
            row = self.rows[place.queue_id]
            assert place.offset < len(row), f"{place} is lost"
            assert row[place.offset] == place.number, f"{place} became {row[place.offset]}"
