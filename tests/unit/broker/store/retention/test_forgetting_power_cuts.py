"""Power cuts during retention: unexpired messages survive, with their offsets.

Like ``test_power_cuts``, with a running clock and files that are deleted;
``POCKETMQ_CRASH_SEED=<seed>`` replays a run.
"""

from __future__ import annotations

import contextlib
import os
from random import Random

import pytest

from broker.store.config import RetentionConfig
from broker.store.engine import GetStatus, MessageStore, PendingMessage
from remoting.protocol.message.view import RecordView, iter_records
from tests.support.sizes import size
from tests.unit.broker.store.simulated_disk import ROOT, PowerCut, SimulatedDisk
from tests.unit.broker.store.stores import small_config
from tests.unit.broker.store.workload import QUEUES, Day, Queue

SEEDS = size(test=20, ci=100, soak=3_000)
CHUNKS = 5
ACTIONS = 80
CUTS = 3
RESERVED_SECONDS = 3600.0
KEPT = RetentionConfig(
    reserved_ms=int(RESERVED_SECONDS * 1000),
    delete_hours=frozenset(range(24)),
    log_pause_ms=0,
    retry_ms=0,
)


class ForgetfulDay(Day):
    """A day in which messages expire.

    Attributes:
        born: of each queue, by number, when the message was put, seconds.
    """

    def __init__(self, disk: SimulatedDisk, *, sync: bool) -> None:
        super().__init__(disk, sync=sync)
        self.born: dict[Queue, list[float]] = {queue: [] for queue in QUEUES}

    def _new_store(self) -> MessageStore:
        kind = "SYNC_FLUSH" if self.sync else "ASYNC_FLUSH"
        config = small_config(ROOT, flush_disk_type=kind, max_open_files=16, retention=KEPT)
        return MessageStore(config, files=self.disk, clock=self.clock)

    def note(self, queue: Queue, number: int, end: int, message: PendingMessage) -> None:
        super().note(queue, number, end, message)
        self.born[queue].append(self.clock.monotonic())

    def act(self) -> None:
        if self.random.random() < 0.15:
            self.clock.advance(self.random.choice([60.0, 1200.0, RESERVED_SECONDS]))
            self.store.retention.step()
        else:
            super().act()

    def check(self) -> None:
        """Check that unexpired messages are there, and only those put, at their offsets."""
        oldest = self.clock.monotonic() - RESERVED_SECONDS
        kept = 0
        for queue in QUEUES:
            sent, low = self.sent[queue], self.store.queries.min_offset(*queue)
            high = self.store.queries.max_offset(*queue)
            promised = sum(one.end_offset <= self.durable for one in sent)
            assert high <= len(sent), f"{queue} has messages that nobody sent"
            assert high >= self.seen[queue], f"the numbers of {queue} went back"
            assert high >= promised, f"{queue} lost {promised - high} messages"
            young = [n for n in range(high) if self.born[queue][n] > oldest]
            assert not young or low <= young[0], f"{queue} has forgotten what is not old"
            for record in read_from(self.store, queue, low):
                expected = sent[record.queue_offset]
                assert record.body == expected.body, f"{queue} has another body"
                assert record.properties_text == expected.properties, f"{queue}: properties"
                assert record.check_crc()
            self.sent[queue] = sent[:high]
            self.born[queue] = self.born[queue][:high]
            kept = max([kept, *(one.end_offset for one in self.sent[queue])])
        assert self.store.log.end >= kept
        self.durable = kept
        self.look()


def read_from(store: MessageStore, queue: Queue, offset: int) -> list[RecordView]:
    """Read every message from ``offset``; assert that the offsets have no gaps."""
    first, found = offset, list[RecordView]()
    while True:
        result = store.get(*queue, offset, 7)
        if result.status is not GetStatus.FOUND:
            ends = {GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE}
            assert result.status in ends, f"{queue}: {result.status} at {offset}"
            return found
        for run in result.records:
            for record in iter_records(run):
                assert record.queue_offset == first + len(found), f"{queue} is not dense"
                assert (record.topic, record.queue_id) == queue
                found.append(record)
        offset = result.next_offset
        assert offset == first + len(found), f"{queue} has a gap before {offset}"


def live(seed: int) -> ForgetfulDay:
    """Run a day with several power cuts; raise if a guarantee was broken."""
    random = Random(seed)
    day = ForgetfulDay(SimulatedDisk(random), sync=random.random() < 0.6)
    for _ in range(CUTS):
        disk = day.disk
        disk.kept = random.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        disk.written_back = random.choice([0.0, 0.02, 0.2])
        disk.cut_at = disk.steps + random.randrange(1, 400)
        with contextlib.suppress(PowerCut):
            work(day, random)
        day.disk = disk.crashed or disk.cut()
    day.open()
    day.check()
    return day


def work(day: ForgetfulDay, random: Random) -> None:
    """Open and work, with an occasional clean stop and restart."""
    for part in (ACTIONS, ACTIONS // 2):
        day.open()
        day.check()
        for _ in range(part):
            day.act()
        if random.random() < 0.5:
            return
        day.close()


def seeds_of(chunk: int) -> range:
    if seed := os.environ.get("POCKETMQ_CRASH_SEED"):
        return range(int(seed), int(seed) + 1)
    return range(chunk, SEEDS, CHUNKS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_messages_that_have_not_expired_survive_a_power_cut(chunk: int) -> None:
    forgotten = 0
    for seed in seeds_of(chunk):
        try:
            day = live(seed)
        except BaseException:
            print(f"seed {seed}: POCKETMQ_CRASH_SEED={seed} replays it")  # noqa: T201
            raise
        forgotten += sum(day.store.queries.min_offset(*queue) for queue in QUEUES)
    assert forgotten > 0
