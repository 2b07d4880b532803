"""A broker's workload on a disk that may lose power, and the check of its guarantees.

A ``Day`` puts messages as a broker does, in SYNC or ASYNC mode, and calls directly what the store's
threads do. It records the results: the offset of each message, and the position up to which the log
was reported durable. After a crash ``check`` compares them with the store.

Durable messages have to be there, complete, at their offsets. Of later ones a prefix may be there,
in the order of the puts, and nothing else; no offset that was visible is used for another message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from broker.store.consume_queue import ConsumeQueue
from broker.store.engine import GetStatus, MessageStore, PendingMessage, PutStatus
from broker.store.limits import StoreLimits
from broker.store.results import RecoveryReport
from remoting.protocol.disk.files import ENTRY
from remoting.protocol.message.record import encode_record
from remoting.protocol.message.tags import tags_code
from remoting.protocol.message.view import RecordView, iter_records
from tests.support.clock import ManualClock
from tests.unit.broker.store.simulated_disk import ROOT, SimulatedDisk
from tests.unit.broker.store.stores import BORN_HOST, LIMITS, small_config

Queue = tuple[str, int]

QUEUES: list[Queue] = [("orders", 0), ("orders", 1), ("%RETRY%group", 0), ("b", 7)]


@dataclass
class Run:
    """Messages of one queue that are put in one call."""

    queue: ConsumeQueue
    number: int = 0
    place: memoryview | None = None
    entries: bytearray = field(default_factory=bytearray)


class Sent(NamedTuple):
    """A message that was put."""

    end_offset: int
    body: bytes
    properties: bytes


class Day:
    """Consecutive runs of a broker on one disk.

    Attributes:
        sent: of each queue, by number, what was put.
        durable: physical offset up to which the log was said to be on the disk.
        seen: of each queue the largest maximum that a reader saw of what was on the disk.
        reports: of all openings.
    """

    def __init__(self, disk: SimulatedDisk, *, sync: bool, limits: StoreLimits = LIMITS) -> None:
        self.disk = disk
        self.random = disk.random
        self.sync = sync
        self.limits = limits
        self.clock = ManualClock()
        self.sent: dict[Queue, list[Sent]] = {queue: [] for queue in QUEUES}
        self.durable = 0
        self.seen: dict[Queue, int] = dict.fromkeys(QUEUES, 0)
        self.reports: list[RecoveryReport] = []
        self.count = 0
        self.store = self._new_store()

    def _new_store(self) -> MessageStore:
        kind = "SYNC_FLUSH" if self.sync else "ASYNC_FLUSH"
        config = small_config(ROOT, flush_disk_type=kind, max_open_files=16, limits=self.limits)
        return MessageStore(config, files=self.disk, clock=self.clock)

    # --- what a broker does

    def open(self) -> RecoveryReport:
        """Start the broker, after which all readable messages are durable."""
        self.store = self._new_store()
        report = self.store.open()
        self.reports.append(report)
        return report

    def act(self) -> None:
        """Do a random operation of a broker."""
        choice = self.random.random()
        if choice < 0.45:
            self.put()
        elif choice < 0.6:
            self.put_batch()
        elif choice < 0.7:
            self.put_together()
        elif choice < 0.9:
            self.flush_log()
        elif choice < 0.95:
            self.flush_queues()
        elif choice < 0.98:
            self.run_ahead()
        else:
            self.clock.advance(self.random.choice([0.001, 0.5, 70.0]))

    def _message(self, queue: Queue) -> PendingMessage:
        self.count += 1
        filler = bytes([self.random.randrange(1, 256)])
        body = b"%d " % self.count + filler * self.random.choice([0, 3, 400, 2500])
        text = b"KEYS\x01%d\x02TAGS\x01t" % self.count
        if self.random.random() < 0.2:
            text += b"\x02large\x01" + b"p" * 1500
        return PendingMessage(
            *queue, body, text, tags_code("t"), born_timestamp_ms=self.count, born_host=BORN_HOST
        )

    def put(self) -> None:
        queue = self.random.choice(QUEUES)
        message = self._message(queue)
        result = self.store.put(message)
        if result.status is PutStatus.OK:
            self.note(queue, result.queue_offset, result.end_offset, message)

    def put_batch(self) -> None:
        queue = self.random.choice(QUEUES)
        messages = [self._message(queue) for _ in range(self.random.randrange(1, 6))]
        result = self.store.put_batch(messages)
        if result.status is PutStatus.OK:
            ends = [*result.physical_offsets[1:], result.end_offset]
            for number, (message, end) in enumerate(zip(messages, ends, strict=True)):
                self.note(queue, result.queue_offset + number, end, message)

    def put_together(self) -> None:
        """Put the messages of one read to several queues, as the fast path does."""
        appender = self.store.appender
        messages = [
            self._message(self.random.choice(QUEUES[:2]))
            for _ in range(self.random.randrange(1, 8))
        ]
        runs = [Run(self.store.queues.get_or_create(*queue)) for queue in QUEUES[:2]]
        sizes = sum(len(self._record(message, 0, 0, 0)) for message in messages)
        try:
            if not appender.takes(sizes):
                return
            for run in runs:
                run.number, room, run.place = appender.open(run.queue, len(messages))
                if room < len(messages):
                    return
            begin, _, store_ms = appender.reserve(sizes)
        except OSError:
            return
        records = bytearray()
        for message in messages:
            queue = message.topic, message.queue_id
            run = runs[QUEUES.index(queue)]
            position = begin + len(records)
            record = self._record(message, run.number, position, store_ms)
            records += record
            run.entries += ENTRY.pack(position, len(record), message.tags_code)
            self.note(queue, run.number, position + len(record), message)
            run.number += 1
        end = begin + len(records)
        appender.store(begin, memoryview(records), len(messages))
        for run in sorted(runs, key=lambda run: bytes(run.entries)):
            if run.entries:
                appender.publish(run.queue, run.place, bytes(run.entries), end)

    def _record(self, message: PendingMessage, number: int, position: int, store_ms: int) -> bytes:
        return encode_record(
            topic=message.topic,
            queue_id=message.queue_id,
            body=message.body,
            properties=message.properties,
            born_host=BORN_HOST,
            store_host=BORN_HOST,
            queue_offset=number,
            physical_offset=position,
            born_timestamp_ms=message.born_timestamp_ms,
            store_timestamp_ms=store_ms,
        )

    def note(self, queue: Queue, number: int, end: int, message: PendingMessage) -> None:
        assert number == len(self.sent[queue]), "a number was left out or given twice"
        self.sent[queue].append(Sent(end, bytes(message.body), message.properties))

    def flush_log(self) -> None:
        """Run one round of the thread that syncs the log."""
        syncer = self.store.syncer
        if syncer.sync_log():
            self.durable = max(self.durable, syncer.log.flushed)
        if self.sync:
            self.look()

    def look(self) -> None:
        """Record what a consumer can read now."""
        for queue in QUEUES:
            self.seen[queue] = max(self.seen[queue], self.store.queries.max_offset(*queue))

    def flush_queues(self) -> None:
        """Run one round of the thread that syncs the queues."""
        if self.random.random() < 0.5:
            self.clock.advance(70.0)
        self.store.syncer.sync_queues()

    def run_ahead(self) -> None:
        """Run one round of the thread that allocates."""
        self.store.preallocator.try_step()

    def close(self) -> None:
        """Stop cleanly."""
        flusher = self.store.syncer.log
        self.store.close()
        self.durable = max(self.durable, flusher.flushed)

    # --- what it promised

    def check(self) -> None:
        """Check that the opened store holds what was guaranteed, and continue from it."""
        before = dict(self.sent)
        for queue in QUEUES:
            found = read_densely(self.store, queue)
            sent = self.sent[queue]
            promised = sum(one.end_offset <= self.durable for one in sent)
            assert len(found) >= promised, f"{queue} lost {promised - len(found)} messages"
            assert len(found) >= self.seen[queue], f"the numbers of {queue} went back"
            assert len(found) <= len(sent), f"{queue} has messages that nobody sent"
            for record, expected in zip(found, sent, strict=False):
                assert record.body == expected.body, f"{queue} has another body"
                assert record.properties_text == expected.properties, f"{queue}: properties"
                assert record.check_crc()
            self.sent[queue] = sent[: len(found)]
        kept = max((sent[-1].end_offset for sent in self.sent.values() if sent), default=0)
        for queue, sent in before.items():
            in_order = sum(one.end_offset <= kept for one in sent)
            assert len(self.sent[queue]) == in_order, f"{queue} lost what others kept"
        assert self.store.log.end >= kept
        flushed = self.store.syncer.log.flushed
        assert flushed >= kept or not self.sync
        self.durable = max(min(self.durable, kept), min(flushed, kept))
        if flushed >= kept:
            self.look()


def read_densely(store: MessageStore, queue: Queue) -> list[RecordView]:
    """Read every message of a queue; assert that the offsets have no gaps."""
    found: list[RecordView] = []
    offset = 0
    while True:
        result = store.get(*queue, offset, 7)
        if result.status is not GetStatus.FOUND:
            ends = {GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE}
            assert result.status in ends, f"{queue}: {result.status} at {offset}"
            return found
        for run in result.records:
            for record in iter_records(run):
                assert record.queue_offset == len(found), f"{queue} is not dense"
                assert (record.topic, record.queue_id) == queue
                found.append(record)
        offset = result.next_offset
        assert offset == len(found), f"{queue} has a gap before {offset}"
