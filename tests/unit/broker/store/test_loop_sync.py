"""Small syncs in SYNC mode: the loop begins them, the kernel makes them, no thread of ours does."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.store.kernel_sync import KernelSync
from broker.store.limits import LOOP_SYNC_BYTES
from broker.store.log_flusher import LogFlusher
from broker.store.message_store import MessageStore
from tests.unit.broker.store.stores import bodies, message, opened, thread_names
from tests.unit.broker.store.test_sync_flush import durable


class Kernel:
    """A kernel whose syncs end when a test says so, and as it says."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK)
        self.begun = 0
        self.waited: list[float] = []
        self.result: int | None = None
        self.closed = False

    def begin(self, descriptor: int) -> bool:
        os.fstat(descriptor)
        self.begun += 1
        self.result = None
        return True

    def finish(self, result: int = 0) -> None:
        self.result = result
        self.tell()

    def tell(self) -> None:
        os.eventfd_write(self.descriptor, 1)

    def heard(self) -> None:
        KernelSync.heard(self)  # type: ignore[arg-type] # the same descriptor

    def end(self, timeout: float) -> int | None:
        self.waited.append(timeout)
        return self.result

    def close(self) -> None:
        self.closed = True
        os.close(self.descriptor)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(KernelSync, "open", lambda: made)
    return made


@pytest.fixture
async def store(tmp_path: Path, kernel: Kernel) -> AsyncIterator[MessageStore]:
    store = opened(tmp_path, flush_disk_type="SYNC_FLUSH", mapped_file_size_commit_log=1 << 20)
    store.start(asyncio.get_running_loop())
    yield store
    kernel.result = kernel.result or 0
    store.close()
    assert kernel.closed
    assert thread_names() == []


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_message_is_durable_when_the_kernel_says_so(
    store: MessageStore, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(LogFlusher, "sync")
    answer = durable(store, store.put(message()).end_offset)
    await turns()
    assert (kernel.begun, bodies(store), answer.done()) == (1, [], False)
    kernel.finish()
    assert await answer
    assert bodies(store) == [b"hello"]
    assert store.stats.syncs == 1
    monkeypatch.undo()


async def test_all_that_arrive_meanwhile_share_the_next_one(
    store: MessageStore, kernel: Kernel
) -> None:
    first = durable(store, store.put(message()).end_offset)
    await turns()
    others = [durable(store, store.put(message()).end_offset) for _ in range(20)]
    await turns()
    kernel.finish()
    assert await first
    assert (kernel.begun, any(other.done() for other in others)) == (2, False)
    kernel.finish()
    assert await asyncio.gather(*others) == [True] * 20
    await turns()
    assert kernel.begun == 2


async def test_a_word_of_a_sync_that_has_not_ended_is_no_end(
    store: MessageStore, kernel: Kernel
) -> None:
    answer = durable(store, store.put(message()).end_offset)
    await turns()
    kernel.tell()
    await turns()
    assert not answer.done()
    kernel.finish()
    assert await answer
    kernel.tell()
    await turns()
    assert len(kernel.waited) == 2


async def test_much_is_left_to_the_thread(store: MessageStore, kernel: Kernel) -> None:
    large = message(bytes(LOOP_SYNC_BYTES))
    assert await durable(store, store.put(large).end_offset)
    assert kernel.begun == 0


async def test_a_sync_of_the_thread_is_not_joined_by_another(
    store: MessageStore, kernel: Kernel
) -> None:
    flusher = store._opened().log_flusher
    with flusher._syncing:
        answer = durable(store, store.put(message()).end_offset)
        await turns()
        assert kernel.begun == 0
    assert await answer


async def test_a_sync_that_fails_ends_the_writing(store: MessageStore, kernel: Kernel) -> None:
    answer = durable(store, store.put(message()).end_offset)
    await turns()
    kernel.finish(errno.EIO)
    assert not await answer
    assert "failed to sync" in (store.why_not_writable or "")
    assert not await durable(store, store.put(message()).end_offset)
    assert kernel.begun == 1


@pytest.mark.parametrize("what", ["removed", "shortened"])
async def test_a_sync_of_a_file_nobody_would_find_fails(
    store: MessageStore, kernel: Kernel, what: str
) -> None:
    answer = durable(store, store.put(message()).end_offset)
    await turns()
    file = min(store.paths.commit_log.iterdir())
    if what == "removed":
        file.unlink()
    else:
        os.truncate(file, 4096)
    kernel.finish()
    assert not await answer
    assert what in (store.why_not_writable or "")


async def test_a_flush_waits_for_the_one_that_runs(store: MessageStore, kernel: Kernel) -> None:
    answer = durable(store, store.put(message()).end_offset)
    await turns()
    kernel.result = 0
    assert store.flush()
    assert kernel.waited == [30.0]
    assert await answer


async def test_a_disk_that_hangs_does_not_hang_the_stop(
    tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("message_store", "threads"):
        monkeypatch.setattr(f"broker.store.{module}.CLOSE_SECONDS", 0.01)
    store = opened(tmp_path, flush_disk_type="SYNC_FLUSH")
    store.start(asyncio.get_running_loop())
    answer = durable(store, store.put(message()).end_offset)
    await turns()
    assert not store.flush()
    store.close()
    assert not await answer
    assert store.paths.abort.exists()
    assert not kernel.closed
    os.close(kernel.descriptor)


@pytest.mark.parametrize("way", ["kernel", "thread"])
async def test_either_way_brings_all_to_the_disk(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "thread":
        monkeypatch.setattr(KernelSync, "open", lambda: None)
    store = opened(tmp_path, flush_disk_type="SYNC_FLUSH")
    store.start(asyncio.get_running_loop())
    for number in range(100):
        assert await durable(store, store.put(message(b"%d" % number)).end_offset)
    assert bodies(store) == [b"%d" % number for number in range(100)]
    assert store.stats.syncs >= 100
    store.close()
    assert not store.paths.abort.exists()
