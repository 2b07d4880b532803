"""State files: every change is saved, in few writes, and failures are logged."""

from __future__ import annotations

import asyncio
import threading

from broker.saved_tables import BYTES_PER_SECOND, SavedTable


class Disk:
    """Records writes; can be blocked or made to fail."""

    def __init__(self, *, bytes_per_second: int = BYTES_PER_SECOND) -> None:
        self.table: dict[str, int] = {}
        self.written: list[bytes] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: OSError | None = None
        self.file = SavedTable(
            "table.json", self.snapshot, self.write, bytes_per_second=bytes_per_second
        )

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
    assert disk.file.pending is not None
    assert await done is True
    assert disk.written == [b"{'a': 1}"]
    assert disk.file.pending is None


async def test_changes_during_a_write_share_the_next_one():
    disk = Disk()
    disk.gate.clear()
    first = disk.put("a")
    second, third = disk.put("b"), disk.put("c")
    disk.gate.set()
    assert await first
    assert await second
    assert await third
    assert disk.written == [b"{'a': 1}", b"{'a': 1, 'b': 1, 'c': 1}"]


async def test_a_write_has_the_table_as_of_the_change():
    disk = Disk()
    disk.gate.clear()
    done = disk.put("a")
    disk.table["later"] = 2
    disk.gate.set()
    await done
    assert disk.written == [b"{'a': 1}"]


async def test_who_waits_for_a_write_may_be_cancelled():
    disk = Disk()
    disk.gate.clear()
    first, second = disk.put("a"), disk.put("b")
    first.cancel()
    second.cancel()
    flushed = asyncio.ensure_future(disk.file.flush())
    await asyncio.sleep(0)
    flushed.cancel()
    disk.gate.set()
    assert await disk.file.flush()
    assert disk.written == [b"{'a': 1}", b"{'a': 1, 'b': 1}"]


async def test_a_failed_write_is_logged_and_retried():
    disk = Disk()
    disk.error = OSError(28, "No space left on device")
    assert await disk.put("a") is False
    assert await disk.file.flush() is False
    disk.error = None
    disk.file.update()
    assert await disk.file.flush() is True
    assert disk.written == [b"{'a': 1}"]
    disk.file.update()
    assert disk.file.pending is None


async def test_flushing_waits_for_all_running_writes():
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


async def test_after_a_large_write_changes_share_one_that_comes_later():
    disk = Disk(bytes_per_second=1)
    assert await disk.put("a")
    waiting = []
    for n in range(100):
        waiting.append(disk.put(f"b{n}"))
        await asyncio.get_running_loop().run_in_executor(None, int)
    assert len(disk.written) == 1
    assert await disk.file.flush()
    assert all(future.result() for future in waiting)
    assert len(disk.written) == 2


async def test_a_large_file_pauses_in_proportion_to_its_size():
    disk = Disk(bytes_per_second=1_000)
    assert await disk.put("a")
    assert await asyncio.wait_for(disk.put("b"), 10)
    assert len(disk.written) == 2
