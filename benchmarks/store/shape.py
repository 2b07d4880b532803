"""Creates stores of any size: topics by a broker, messages by this process."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count as numbers_from
from pathlib import Path
from typing import Final

from benchmarks.pump import send_each, send_frame
from benchmarks.store import start
from benchmarks.tools import BenchmarkError
from broker.store.engine import MessageStore, PendingMessage, PutStatus, StoreConfig
from pocketmq.server.process import private_bytes
from tests.support.ports import free_ports

TOPIC: Final = "scale"
QUEUES_OF_A_TOPIC: Final = 4
PULL_MESSAGES: Final = 32
BODY: Final = b"x" * 1024
TAG: Final = b"\x02TAGS\x01t"
TAGS_CODE: Final = ord("t")
RECORD_BYTES: Final = 1200
"""Approximate size of a record, with topic, unique key and tag."""

ANSWER_WITHIN: Final = 60.0
STOP_WITHIN: Final = 300.0
_COLD: Final = re.compile(r"^pocketmq_cold_pulls_total ([0-9.e+]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a store is filled: in ``rounds`` passes with ``in_a_row`` messages to each queue."""

    root: Path
    queues: int
    in_a_row: int
    rounds: int

    @classmethod
    def of(cls, root: Path, size: int, queues: int, in_a_row: int) -> Shape:
        """Return a shape with at least ``size`` bytes of log, and enough messages for a pull."""
        each = queues * in_a_row * RECORD_BYTES
        least = 2 * PULL_MESSAGES // in_a_row + 1
        return cls(root=root, queues=queues, in_a_row=in_a_row, rounds=max(-(-size // each), least))

    @property
    def max_offset(self) -> int:
        """The maximum offset of each queue, including the message that created its topic."""
        return 1 + self.rounds * self.in_a_row

    def places(self, pulls: int, rounds: int) -> Iterator[list[tuple[int, int]]]:
        """Yield for each round the queue and offset of each pull: queues in rotation, each forward.

        An offset is not repeated soon, because a broker caches which records it has checked last.
        Half of the messages of a pull were stored in one pass over the queues, half in the next.
        """
        order = list(range(self.queues))
        random.Random(7).shuffle(order)
        last = self.max_offset - PULL_MESSAGES - min(self.in_a_row, PULL_MESSAGES) // 2
        steps = min(last // PULL_MESSAGES, -(-pulls * rounds // self.queues))
        first = last - (steps - 1) * PULL_MESSAGES
        for begin in range(0, pulls * rounds, pulls):
            yield [
                (order[at % self.queues], first + at // self.queues % steps * PULL_MESSAGES)
                for at in range(begin, begin + pulls)
            ]


# --- filling


def build(shape: Shape) -> float:
    """Create a store; return the seconds it took."""
    begun = time.monotonic()
    with serving(shape.root) as running:
        places = map(topic_of, range(shape.queues))
        send_each(
            running.address,
            [
                send_frame(topic, queue, len(BODY), queues=QUEUES_OF_A_TOPIC)
                for topic, queue in places
            ],
        )
    asyncio.run(_fill(shape))
    return time.monotonic() - begun


async def _fill(shape: Shape) -> None:
    store = MessageStore(StoreConfig(root=shape.root))
    store.open()
    store.start(asyncio.get_running_loop())
    try:
        numbers = numbers_from()
        for _ in range(shape.rounds):
            for number in range(shape.queues):
                put = store.put_batch(_messages(number, shape.in_a_row, numbers))
                if put.status is not PutStatus.OK:
                    raise BenchmarkError(f"{shape.root} can't be filled: {put.message}")
                if number % 16 == 0:
                    await asyncio.sleep(0)
    finally:
        store.close()


def _messages(queue: int, messages: int, numbers: Iterator[int]) -> list[PendingMessage]:
    topic, queue_id = topic_of(queue)
    born = int(time.time() * 1000)
    return [
        PendingMessage(
            topic,
            queue_id,
            BODY,
            b"UNIQ_KEY\x017F00000100018B4AAC2%013X" % next(numbers) + TAG,
            TAGS_CODE,
            born_timestamp_ms=born,
        )
        for _ in range(messages)
    ]


def topic_of(queue: int) -> tuple[str, int]:
    """Return topic and queue id of the queue with this number."""
    return f"{TOPIC}-{queue // QUEUES_OF_A_TOPIC}", queue % QUEUES_OF_A_TOPIC


# --- a broker and its memory


@dataclass(frozen=True, slots=True)
class Running:
    """A broker under test."""

    pid: int
    address: str
    metrics: str
    start_seconds: float

    def memory(self) -> dict[str, float]:
        """Return its private memory in MB (1,000,000 bytes); see ``scale``."""
        rollup = sum(
            1024 * int(line.split()[1])
            for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
            if line.startswith(("Private_Clean:", "Private_Dirty:"))
        )
        return {
            "private_mb": round(private_bytes(self.pid) / 1e6, 1),
            "rollup_mb": round(rollup / 1e6, 1),
        }

    def cold_pulls(self) -> float:
        """Return how many pulls have had to wait for the disk."""
        with urllib.request.urlopen(self.metrics, timeout=ANSWER_WITHIN) as answer:
            count = _COLD.search(answer.read().decode())
        if count is None:
            raise BenchmarkError(f"{self.metrics} says nothing of cold pulls")
        return float(count[1])


@contextmanager
def serving(store: Path) -> Iterator[Running]:
    """Run a broker with default settings; stopped cleanly at the end."""
    port, metrics = free_ports(3), free_ports(1)
    command = [*start.ours(port, store), f"--metrics-port={metrics}"]
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        seconds = start.seconds_until_acknowledged(port, started)
        address = f"127.0.0.1:{metrics}/metrics"
        yield Running(process.pid, f"127.0.0.1:{port}", f"http://{address}", seconds)
    finally:
        process.terminate()
        process.wait(STOP_WITHIN)
