"""State files: every change gets to the disk, in few writes, and failures are told."""

from __future__ import annotations

import asyncio
import threading

from broker.state_files import StateFile


class Disk:
    """Remembers what was written; can be held up or made to fail."""

    def __init__(self) -> None:
        self.table: dict[str, int] = {}
        self.written: list[bytes] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: OSError | None = None
        self.file = StateFile("table.json", self.snapshot, self.write)

    def snapshot(self):
        copy = dict(self.table)
        return lambda: repr(copy).encode()

    def write(self, text: bytes) -> None:
        self.gate.wait(10)
        if self.error is not None:
            raise self.error
        self.written.append(text)

    def put(self, key: str) -> asyncio.Future[bool]:
        self.table[key] = 1
        return self.file.changed()


async def test_a_change_is_written_off_the_loop():
    disk = Disk()
    assert disk.file.pending is None
    done = disk.put("a")
    assert disk.file.pending is done
    assert await done is True
    assert disk.written == [b"{'a': 1}"]
    assert disk.file.pending is None


async def test_changes_during_a_write_share_the_next_one():
    disk = Disk()
    disk.gate.clear()
    first = disk.put("a")
    second, third = disk.put("b"), disk.put("c")
    assert second is third
    assert disk.file.pending is second
    disk.gate.set()
    assert await first
    assert await third
    assert disk.written == [b"{'a': 1}", b"{'a': 1, 'b': 1, 'c': 1}"]


async def test_a_write_holds_the_table_as_it_was_when_the_change_came():
    disk = Disk()
    disk.gate.clear()
    done = disk.put("a")
    disk.table["later"] = 2
    disk.gate.set()
    await done
    assert disk.written == [b"{'a': 1}"]


async def test_a_failed_write_is_told_and_tried_again():
    disk = Disk()
    disk.error = OSError(28, "No space left on device")
    assert await disk.put("a") is False
    assert await disk.file.flush() is False
    disk.error = None
    disk.file.retry()
    assert await disk.file.flush() is True
    assert disk.written == [b"{'a': 1}"]
    disk.file.retry()
    assert disk.file.pending is None


async def test_flushing_waits_for_all_that_is_under_way():
    disk = Disk()
    disk.gate.clear()
    disk.put("a")
    disk.put("b")
    flushed = asyncio.ensure_future(disk.file.flush())
    await asyncio.sleep(0)
    assert not flushed.done()
    disk.gate.set()
    assert await flushed
    assert len(disk.written) == 2
