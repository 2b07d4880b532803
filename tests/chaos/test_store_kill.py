"""A process that writes a store is killed; everything it acknowledged is still there."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from broker.store.engine import GetStatus, MessageStore, StoreConfig
from remoting.protocol.message.view import iter_records
from tests.support.sizes import size

ROUNDS = size(test=3, ci=5, soak=50)
QUEUES = 3
ROOT = Path(__file__).parents[2]

WRITER = """
import asyncio, os, sys
from pathlib import Path
from broker.store.engine import MessageStore, PendingMessage, PutStatus, StoreConfig
from broker.store.results import Ack

async def main(root, mode):
    store = MessageStore(StoreConfig(root=Path(root), flush_disk_type=mode,
        mapped_file_size_commit_log=256 * 1024, mapped_file_size_consume_queue=20 * 500,
        flush_interval_commit_log_ms=5, flush_interval_consume_queue_ms=5))
    store.open()
    store.start(asyncio.get_running_loop())
    number = 0
    while True:
        for _ in range(50):
            queue = number % 3
            body = b"%d " % number + b"x" * (number % 700)
            result = store.put(PendingMessage("Killed", queue, body))
            assert result.status is PutStatus.OK, result
            line = b"%d %d %d\\n" % (queue, result.queue_offset, number)
            def tell(ack, line=line):
                ack or os.write(1, line)

            if mode == "SYNC_FLUSH":
                store.when_durable(result.end_offset, tell)
            else:
                tell(Ack.OK)
            number += 1
        await asyncio.sleep(0)

asyncio.run(main(*sys.argv[1:]))
"""


def write_and_kill(root: Path, mode: str, lines: int) -> list[tuple[int, int, int]]:
    """Return queue, offset and number of each message acknowledged before the kill."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), mode], stdout=subprocess.PIPE, cwd=ROOT
    ) as writer:
        assert writer.stdout is not None
        got = [writer.stdout.readline() for _ in range(lines)]
        writer.kill()
        got += writer.stdout.read().splitlines(keepends=True)
    assert got[0], "the writer did not start"
    whole = [line.split() for line in got if line.endswith(b"\n")]
    return [(int(queue), int(offset), int(number)) for queue, offset, number in whole]


def read_on(store: MessageStore, queue_id: int, numbers: list[int]) -> None:
    """Append the numbers of later messages to ``numbers``, and check that no message changed."""
    assert store.queries.min_offset("Killed", queue_id) == 0
    assert store.queries.max_offset("Killed", queue_id) >= len(numbers)
    while True:
        result = store.get("Killed", queue_id, len(numbers), 500)
        if result.status is not GetStatus.FOUND:
            assert result.status is GetStatus.OFFSET_OVERFLOW_ONE
            return
        for run in result.records:
            for record in iter_records(run):
                assert record.check_crc()
                assert record.queue_offset == len(numbers)
                text, _, rest = bytes(record.body).partition(b" ")
                assert rest == b"x" * (int(text) % 700)
                numbers.append(int(text))


@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_nothing_acknowledged_is_lost_by_kills(tmp_path: Path, mode: str) -> None:
    seed = int(os.environ.get("POCKETMQ_KILL_SEED") or random.randrange(2**32))
    print(f"POCKETMQ_KILL_SEED={seed} draws these moments again")  # noqa: T201 - if it fails
    moments = random.Random(seed)
    acknowledged: dict[tuple[int, int], int] = {}
    found: list[list[int]] = [[] for _ in range(QUEUES)]
    for _ in range(ROUNDS):
        new = write_and_kill(tmp_path, mode, moments.randrange(200, 4000))
        store = MessageStore(
            StoreConfig(
                root=tmp_path,
                mapped_file_size_commit_log=256 * 1024,
                mapped_file_size_consume_queue=20 * 500,
            )
        )
        assert not store.open().clean
        for queue, numbers in enumerate(found):
            read_on(store, queue, numbers)
        for queue, offset, which in new:
            assert (queue, offset) not in acknowledged
            acknowledged[queue, offset] = which
            assert found[queue][offset] == which
        store.close()
    assert len(acknowledged) > 1000
    for (queue, offset), which in acknowledged.items():
        assert found[queue][offset] == which
