"""A producer and a reader that record what they do: ``python -m tests.chaos.recorder ...``.

The producer sends numbers: plain ones, those of keys, in transactions, and delayed. The reader
reads every queue, commits, and after a kill goes on where its group is. Both run until they are
killed; ``tests.chaos.history`` says what they record.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import client
from client import TransactionState
from remoting.runtime.tasks import run
from tests.chaos.history import NOWHERE, Recorder, Sent, decisions, events

TOPIC = "history"
QUEUES = 4
READERS = "readers"
"""The group of the reader."""

LEVEL_MS = 1000
"""The brokers' only delay level."""

TIMER_MS = 700

RUNS = 100_000_000
"""Numbers of one recorder; the next one's are above."""

REST = 0.05
"""Seconds after a failed call."""

COMMIT_EVERY = 0.2
"""Seconds between two commits of the reader."""

BUSY = 30.0
"""Seconds a call may take on a busy machine."""


class Bank:
    """Decides about transactions, and records it before anybody is told.

    Args:
        folder: of the history, which has the decisions of earlier runs.
        recorder: of this run.
    """

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        self._recorder = recorder
        self._decided = decisions(events(folder))

    def decide(self, number: int, wish: TransactionState) -> TransactionState:
        """Return the decision about a transaction: the wish, if it is the first one."""
        if number not in self._decided:
            self._decided[number] = wish.name.lower()
            self._recorder.write("decided", number, detail=self._decided[number])
        return TransactionState[self._decided[number].upper()]

    async def check(self, found: client.OpenTransaction[bytes]) -> TransactionState:
        """Answer a broker: what was not decided, and is still asked for, never will be."""
        return self.decide(int(found.message.body), TransactionState.ROLLBACK)


@asynccontextmanager
async def producing(
    nameserver: str, folder: Path, who: str
) -> AsyncIterator[tuple[client.Producer[bytes], Recorder, Bank]]:
    """Open a producer that counts only what is safe, and answers brokers about transactions."""
    recorder = Recorder(folder, who)
    bank = Bank(folder, recorder)
    async with client.Producer(
        nameserver,
        group="history",
        require_durable=True,
        transaction_checker=bank.check,
        heartbeat_period=1.0,
        linger=0,
    ) as producer:
        yield producer, recorder, bank


class Senders:
    """Several senders, each of which makes one call after the other.

    Args:
        producer: sends.
        recorder: of the calls.
        bank: decides about transactions.
        first: the first number.
        timers: whether the brokers deliver at any time.
        pause: seconds after each call.
    """

    def __init__(
        self,
        producer: client.Producer[bytes],
        recorder: Recorder,
        bank: Bank,
        *,
        first: int,
        timers: bool,
        pause: float,
    ) -> None:
        self._producer = producer
        self._recorder = recorder
        self._bank = bank
        self._numbers = count(first)
        self._timers = timers
        self._pause = pause

    async def run(self) -> None:
        """Send until cancelled."""
        who = self._recorder.who
        async with asyncio.TaskGroup() as tasks:
            for sent in [*[Sent()] * 4, *(Sent(key=f"{who}-{number}") for number in range(3))]:
                tasks.create_task(self._repeat(sent))
            for _ in range(2):
                tasks.create_task(self._repeat(Sent(half=True)))
            tasks.create_task(self._repeat(Sent(delay_ms=LEVEL_MS), level=1))
            if self._timers:
                tasks.create_task(self._repeat(Sent(delay_ms=TIMER_MS)))

    async def _repeat(self, sent: Sent, level: int = 0) -> None:
        while True:
            number = next(self._numbers)
            self._recorder.write("send", number, detail=sent)
            try:
                if sent.half:
                    await self._deal(number)
                else:
                    await self._send(number, sent, level)
            except client.SendError as error:
                is_stored_nowhere = error.outcome is client.Outcome.NOT_SENT
                self._recorder.write("failed" if is_stored_nowhere else "unknown", number)
                await asyncio.sleep(REST)
            await asyncio.sleep(self._pause)

    async def _send(self, number: int, sent: Sent, level: int) -> None:
        receipt = await self._producer.send(
            TOPIC,
            b"%d" % number,
            sharding_key=sent.key or None,
            delay_level=level,
            delay=None if level or not sent.delay_ms else sent.delay_ms / 1000,
        )
        if sent.delay_ms:
            self._recorder.write("stored", number)
        else:
            self._recorder.write("stored", number, receipt.queue.queue_id, receipt.offset)

    async def _deal(self, number: int) -> None:
        transaction = self._producer.transaction(TOPIC, b"%d" % number)
        await transaction.start()
        self._recorder.write("stored", number)
        wish = TransactionState.ROLLBACK if number % 3 == 0 else TransactionState.COMMIT
        decision = self._bank.decide(number, wish)
        if number % 7 == 0:
            await transaction.defer()  # the broker asks
        elif decision is TransactionState.COMMIT:
            await transaction.commit()
        else:
            await transaction.rollback()


async def produce(
    nameserver: str, folder: Path, run: int, *, timers: bool = True, pause: float = 0.0
) -> None:
    """Send until cancelled or killed."""
    async with producing(nameserver, folder, f"produce{run}") as parts:
        await Senders(*parts, first=run * RUNS, timers=timers, pause=pause).run()


async def read(nameserver: str, folder: Path, run: int) -> None:
    """Read and commit until cancelled or killed."""
    recorder = Recorder(folder, f"read{run}")
    async with client.PullConsumer(nameserver, group=READERS, start_from=client.FIRST) as consumer:
        consumer.assign(await found(consumer, recorder))
        ends: dict[client.MessageQueue, int] = {}
        commit_at = 0.0
        while True:
            for message in await next_messages(consumer):
                queue, offset = message.queue, message.offset
                recorder.write("read", int(message.body), queue.queue_id, offset)
                ends[queue] = offset + 1
            if ends and time.monotonic() > commit_at:
                await commit(consumer, recorder, ends)
                commit_at = time.monotonic() + COMMIT_EVERY


async def next_messages(
    consumer: client.PullConsumer[bytes],
) -> list[client.ReceivedMessage[bytes]]:
    """Return what comes soon; a slave that is new refuses to read a topic that it lacks."""
    try:
        return await consumer.get_many(1000, timeout=COMMIT_EVERY)
    except client.RemoteError:
        await asyncio.sleep(REST)
        return []


async def record(
    nameserver: str, folder: Path, run: int, *, timers: bool = True, pause: float = 0.0
) -> None:
    """Send and read until cancelled or killed, as the ``run``-th recorder of the history."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(produce(nameserver, folder, run, timers=timers, pause=pause))
        tasks.create_task(read(nameserver, folder, run))


async def found(
    consumer: client.PullConsumer[bytes], recorder: Recorder
) -> list[client.MessageQueue]:
    """Return the queues, once a broker tells what the group has committed."""
    while True:
        try:
            queues = await consumer.queues(TOPIC)
            committed = await consumer.committed(queues)
        except client.PocketMQError:
            await asyncio.sleep(REST)
        else:
            for queue, offset in committed.items():
                at = NOWHERE if offset is None else offset
                recorder.write("found", queue=queue.queue_id, offset=at, detail=consumer.group)
            return queues


async def commit(
    consumer: client.PullConsumer[bytes],
    recorder: Recorder,
    ends: dict[client.MessageQueue, int],
) -> None:
    """Commit what was read; what fails is tried again with the next commit."""
    offsets = dict(ends)
    try:
        await consumer.commit(offsets)
    except client.PocketMQError:
        return
    for queue, offset in offsets.items():
        recorder.write("committed", queue=queue.queue_id, offset=offset, detail=consumer.group)
        if ends[queue] == offset:
            del ends[queue]


async def read_all(nameserver: str, folder: Path, *, patience: float) -> None:
    """Read every message as the last reader; wait for those that still have to come.

    Args:
        nameserver: of the cluster.
        folder: of the history.
        patience: seconds without any message after which the others count as lost.
    """
    recorder, wanted = Recorder(folder, "last"), outstanding(folder)
    async with (
        producing(nameserver, folder, "bank"),
        client.PullConsumer(nameserver, group=READERS, request_timeout=BUSY) as consumer,
    ):
        queues = await found(consumer, recorder)
        consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, client.BEGIN)
        last_at = time.monotonic()
        while time.monotonic() < last_at + (patience if wanted else COMMIT_EVERY):
            for message in await next_messages(consumer):
                number = int(message.body)
                recorder.write("read", number, message.queue.queue_id, message.offset)
                wanted.discard(number)
                last_at = time.monotonic()
    recorder.close()


def outstanding(folder: Path) -> set[int]:
    """Return the numbers that a reader has to get: acknowledged, and committed if it is a half."""
    stored: set[int] = set()
    half: set[int] = set()
    for event in events(folder):
        if event.kind == "send" and Sent.parse(event.detail).half:
            half.add(event.number)
        elif event.kind == "stored":
            stored.add(event.number)
        elif event.kind == "decided" and event.detail == "commit":
            half.discard(event.number)
    return stored - half


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("nameserver")
    parser.add_argument("folder", type=Path)
    parser.add_argument("run", type=int)
    parser.add_argument("--without-timers", action="store_true")
    parser.add_argument("--pause", type=float, default=0.0)
    arguments = parser.parse_args()
    place = arguments.nameserver, arguments.folder, arguments.run
    run(record(*place, timers=not arguments.without_timers, pause=arguments.pause))


if __name__ == "__main__":
    main()
