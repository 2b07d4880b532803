"""A store is intact while another process writes to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker.store.raw_files import StoreChanged
from broker.storetools.verify.check import CheckOptions, check
from tests.unit.broker.store.verify.damaged import both, damage_in

MOST_CHECKS = 500
WRITER = """
import asyncio, sys
from pathlib import Path
from broker.store.engine import MessageStore, PendingMessage, StoreConfig
from broker.store.config import RetentionConfig

KEEP = {"": RetentionConfig(), "short": RetentionConfig(reserved_ms=1, first_delay_ms=1,
    delete_hours=frozenset(range(24)), interval_ms=1000, batch=1, log_pause_ms=1)}

async def main(root, flush, keep):
    config = StoreConfig(root=Path(root), flush_disk_type=flush,
        mapped_file_size_commit_log=4 << 20, mapped_file_size_consume_queue=20_000,
        max_hash_slots=1000, max_index_entries=20_000, retention=KEEP[keep])
    store = MessageStore(config)
    store.open()
    store.start(asyncio.get_running_loop())
    number = 0
    while True:
        for _ in range(20):
            number += 1
            text = f"UNIQ_KEY\\x01{number:032X}\\x02KEYS\\x01k{number % 97} all\\x02TAGS\\x01t"
            store.put(PendingMessage("load", number % 8, b"x" * 300, text.encode(), 116))
        if number == 4000:
            print("full", flush=True)
        # Where nothing is deleted, the store must not grow faster than it is checked.
        await asyncio.sleep(0.002 if keep or number < 4000 else 0.02)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("flush", "keep"), [("ASYNC_FLUSH", ""), ("SYNC_FLUSH", ""), ("ASYNC_FLUSH", "short")]
)
def test_a_store_under_load_is_intact(tmp_path: Path, flush: str, keep: str) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "store"), flush, keep]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            checks = log_start = 0
            for number in range(MOST_CHECKS):
                try:
                    found = check(tmp_path / "store", CheckOptions(plain=number % 4 == 2))
                except StoreChanged:
                    # Each of its tries took longer than what it read was kept.
                    assert keep
                    continue
                checks, log_start = checks + 1, found.log_start
                assert found.running
                assert damage_in(found, tmp_path / "store") == []
                if checks > 3 and (not keep or log_start):
                    break
            assert checks > 3
            assert bool(log_start) is bool(keep)
        finally:
            writer.kill()
    found = both(tmp_path / "store")
    assert not found.running
    assert damage_in(found, tmp_path / "store") == []
