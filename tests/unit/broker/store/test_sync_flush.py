"""SYNC mode: visible and acknowledged after the sync, with one sync for all that wait."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.store.engine import MessageStore, PutStatus
from broker.store.limits import StoreLimits
from broker.store.results import Ack, StoreStats
from broker.store.sync import AckGate
from tests.support.clock import ManualClock
from tests.unit.broker.store.stores import (
    SlowDisk,
    bodies,
    message,
    opened,
    small_config,
    thread_names,
)


@pytest.fixture
def files() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
async def store(tmp_path: Path, files: SlowDisk) -> AsyncIterator[MessageStore]:
    store = opened(
        tmp_path,
        files=files,
        flush_disk_type="SYNC_FLUSH",
        limits=StoreLimits(no_space_retry_seconds=0.001),
    )
    store.start(asyncio.get_running_loop())
    yield store
    files.gate.set()
    store.close()
    assert thread_names() == []


def durable(store: MessageStore, end_offset: int) -> asyncio.Future[bool]:
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    store.when_durable(end_offset, lambda ack: future.set_result(ack is Ack.OK))
    return future


async def in_thread(files: SlowDisk) -> None:
    """Wait until a sync of the log is under way."""
    await asyncio.to_thread(files.begun.acquire)


async def test_a_message_is_visible_when_it_is_durable_and_not_before(
    store: MessageStore, files: SlowDisk
) -> None:
    arrivals: list[int] = []
    store.dispatcher.on_arrival = lambda topic, queue_id, max_offset, code: arrivals.append(
        max_offset
    )
    files.gate.clear()
    result = store.put(message())
    assert (result.status, result.queue_offset) == (PutStatus.OK, 0)
    answer = durable(store, result.end_offset)
    await in_thread(files)
    assert (bodies(store), store.queries.max_offset("TopicTest", 0), arrivals) == ([], 0, [])
    assert not answer.done()
    files.gate.set()
    assert await answer
    assert (bodies(store), arrivals) == ([b"hello"], [1])
    assert store.syncer.log.flushed == result.end_offset


async def test_all_that_arrive_during_a_sync_share_the_next_one(
    store: MessageStore, files: SlowDisk
) -> None:
    files.gate.clear()
    first = durable(store, store.put(message()).end_offset)
    await in_thread(files)
    others = []
    for number in range(50):
        others.append(durable(store, store.put(message(b"%d" % number)).end_offset))
        await asyncio.sleep(0)
    files.gate.set()
    assert await asyncio.gather(first, *others) == [True] * 51
    assert files.log_syncs == 2
    assert len(bodies(store)) == 51
    assert store.stats.syncs == sum(store.stats.sync_buckets) == 2


async def test_messages_of_one_loop_iteration_need_one_sync(
    store: MessageStore, files: SlowDisk
) -> None:
    answers = [durable(store, store.put(message()).end_offset) for _ in range(20)]
    assert await asyncio.gather(*answers) == [True] * 20
    assert files.log_syncs == 1


class LateRequest(threading.Event):
    """The first wait that times out just as a request arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()
        self._came = threading.Event()

    def set(self) -> None:
        super().set()
        self._came.set()

    def wait(self, timeout: float | None = None) -> bool:
        requested = super().wait(timeout)
        if not requested and not self.ended.is_set():
            self.ended.set()
            self._came.wait(30)
        return requested


async def test_a_request_that_races_with_the_flushers_timeout_is_not_lost(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path, flush_disk_type="SYNC_FLUSH", flush_interval_commit_log_ms=10)
    wake = store.syncer._log_thread.wake = LateRequest()
    store.start(asyncio.get_running_loop())
    try:
        assert await asyncio.to_thread(wake.ended.wait, 30)
        async with asyncio.timeout(4):
            assert await durable(store, store.put(message()).end_offset)
    finally:
        store.close()


async def test_a_message_becomes_visible_without_a_waiter(store: MessageStore) -> None:
    seen = asyncio.Event()
    store.dispatcher.on_arrival = lambda *_: seen.set()
    store.put(message())
    await asyncio.wait_for(seen.wait(), 10)
    assert bodies(store) == [b"hello"]


async def test_durable_messages_are_answered_at_once(store: MessageStore) -> None:
    end = store.put(message()).end_offset
    assert await durable(store, end)
    outcomes: list[Ack] = []
    store.when_durable(end, outcomes.append)
    assert outcomes == [Ack.OK]


async def test_batches_wait_like_single_messages(store: MessageStore, files: SlowDisk) -> None:
    files.gate.clear()
    result = store.put_batch([message(b"a"), message(b"b")])
    following = store.put(message(b"c"))
    assert following.queue_offset == 2
    await in_thread(files)
    assert bodies(store) == []
    files.gate.set()
    assert await durable(store, following.end_offset)
    assert bodies(store) == [b"a", b"b", b"c"]
    assert result.end_offset == following.physical_offset


async def test_queues_grow_over_files_while_messages_wait(
    store: MessageStore, files: SlowDisk
) -> None:
    files.gate.clear()
    ends = [store.put(message(b"%d" % number)).end_offset for number in range(130)]
    files.gate.set()
    assert await durable(store, ends[-1])
    assert bodies(store) == [b"%d" % number for number in range(130)]


async def test_a_failed_sync_is_final(store: MessageStore, files: SlowDisk) -> None:
    files.sync_error = OSError(errno.EIO, os.strerror(errno.EIO))
    answers = [durable(store, store.put(message()).end_offset) for _ in range(3)]
    assert await asyncio.gather(*answers) == [False] * 3
    assert bodies(store) == []
    syncs = files.log_syncs
    files.sync_error = None
    refused = store.put(message())
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "failed to sync" in refused.message
    assert not store.flush()
    outcomes: list[Ack] = []
    store.when_durable(10, outcomes.append)
    assert outcomes == [Ack.FLUSH_DISK_TIMEOUT]
    # It is never tried again as if nothing had happened, not even at the end.
    store.close()
    assert files.log_syncs == syncs == 1
    assert store.paths.abort.exists()
    # The next start finds out that they are there after all.
    store.open()
    assert bodies(store) == [b"hello"] * 3
    assert store.put(message()).queue_offset == 3
    assert store.flush()
    assert len(bodies(store)) == 4


async def test_a_sync_that_takes_too_long_is_answered_as_such(
    tmp_path: Path, files: SlowDisk
) -> None:
    store = opened(tmp_path, files=files, flush_disk_type="SYNC_FLUSH", sync_flush_timeout_ms=20)
    store.start(asyncio.get_running_loop())
    files.gate.clear()
    first = durable(store, store.put(message()).end_offset)
    second = durable(store, store.put(message()).end_offset)
    assert await asyncio.gather(first, second) == [False, False]
    assert store.stats.sync_timeouts == 2
    # It is stored all the same, and seen once the disk has it.
    seen = asyncio.Event()
    store.dispatcher.on_arrival = lambda topic, queue_id, max_offset, code: (
        max_offset == 2 and seen.set()
    )
    files.gate.set()
    await asyncio.wait_for(seen.wait(), 10)
    assert len(bodies(store)) == 2
    store.close()


async def test_timeouts_come_one_after_the_other(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    stats = StoreStats()
    config = small_config(tmp_path, flush_disk_type="SYNC_FLUSH", sync_flush_timeout_ms=10)
    commit = AckGate(loop, config, stats)
    outcomes: list[tuple[int, Ack]] = []
    done = asyncio.Event()
    commit.add(1, lambda ok: outcomes.append((1, ok)))
    await asyncio.sleep(0.005)
    commit.add(2, lambda ok: (outcomes.append((2, ok)), done.set()))
    await asyncio.wait_for(done.wait(), 10)
    assert outcomes == [(n, Ack.FLUSH_DISK_TIMEOUT) for n in (1, 2)]
    assert (len(commit), stats.sync_timeouts) == (0, 2)


async def test_closing_answers_all_and_shows_what_the_disk_has(
    tmp_path: Path, files: SlowDisk
) -> None:
    store = opened(tmp_path, files=files, flush_disk_type="SYNC_FLUSH")
    store.start(asyncio.get_running_loop())
    answer = durable(store, store.put(message()).end_offset)
    store.close()
    assert await answer
    store.open()
    assert bodies(store) == [b"hello"]
    store.close()
    assert thread_names() == []


async def test_a_deleted_topic_does_not_come_back_with_the_sync(
    store: MessageStore, files: SlowDisk
) -> None:
    files.gate.clear()
    store.put(message(b"old"))
    kept = store.put(message(b"kept", topic="Other"))
    store.delete_topic("TopicTest")
    files.gate.set()
    assert await durable(store, kept.end_offset)
    assert store.queues.topics() == ["Other"]
    assert bodies(store, "Other") == [b"kept"]


def test_without_a_loop_flush_does_what_the_threads_would(tmp_path: Path, files: SlowDisk) -> None:
    store = opened(tmp_path, files=files, flush_disk_type="SYNC_FLUSH")
    end = store.put(message()).end_offset
    assert bodies(store) == []
    outcomes: list[Ack] = []
    store.when_durable(end, outcomes.append)
    assert (outcomes, bodies(store)) == ([Ack.OK], [b"hello"])
    store.close()


# --- the interval flush


async def test_in_async_mode_the_thread_syncs_by_interval(tmp_path: Path, files: SlowDisk) -> None:
    loop, synced = asyncio.get_running_loop(), asyncio.Event()
    files.on_sync = lambda _: loop.call_soon_threadsafe(synced.set)
    store = opened(tmp_path, files=files, flush_interval_commit_log_ms=5)
    store.start(loop)
    end = 0
    while end < 4 * 4096:
        end = store.put(message(b"x" * 1000)).end_offset
    assert len(bodies(store)) > 0
    await asyncio.wait_for(synced.wait(), 10)
    store.close()
    assert thread_names() == []


def test_less_than_four_pages_wait_ten_seconds(tmp_path: Path) -> None:
    clock = ManualClock()
    store = opened(tmp_path, clock=clock)
    flusher = store.syncer.log
    assert not flusher.is_due()
    store.put(message())
    assert not flusher.is_due()
    clock.advance(10.1)
    assert flusher.is_due()
    store.flush()
    assert not flusher.is_due()
    store.put_batch([message(b"x" * 4000)] * 3)
    store.put_batch([message(b"x" * 4000)])
    assert flusher.is_due()
    store.close()


async def test_a_disk_hangs_while_a_sync_takes_too_long(tmp_path: Path, files: SlowDisk) -> None:
    clock = ManualClock()
    store = opened(tmp_path, files=files, clock=clock)
    store.put(message())
    files.gate.clear()
    syncing = asyncio.create_task(asyncio.to_thread(store.syncer.log.sync))
    await in_thread(files)
    clock.advance(4.9)
    assert store.syncer.log.hang() is None
    clock.advance(0.1)
    assert "commitlog" in (store.syncer.log.hang() or "")
    files.gate.set()
    assert await syncing
    assert store.syncer.log.hang() is None
    store.close()


async def test_the_checkpoint_follows_the_flush(tmp_path: Path) -> None:
    store = opened(
        tmp_path,
        mapped_file_size_commit_log=1024 * 1024,
        flush_interval_consume_queue_ms=5,
        flush_interval_commit_log_ms=5,
    )
    store.start(asyncio.get_running_loop())
    stamp = store.put_batch([message(b"x" * 4000)] * 5).store_timestamp_ms
    async with asyncio.timeout(20):
        written = b""
        while written[:8] != stamp.to_bytes(8, "big"):
            await asyncio.sleep(0.005)
            written = await asyncio.to_thread(_read, store.paths.checkpoint)
    store.close()


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


async def test_queues_that_cannot_be_synced_stop_no_send(tmp_path: Path, files: SlowDisk) -> None:
    store = opened(tmp_path, files=files, flush_interval_consume_queue_ms=5)
    loop, failed = asyncio.get_running_loop(), asyncio.Event()

    def fail(path: Path) -> None:
        if "consumequeue" in str(path):
            loop.call_soon_threadsafe(failed.set)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    files.on_sync = fail
    for _ in range(500):
        store.put(message(b""))
    store.start(loop)
    await asyncio.wait_for(failed.wait(), 10)
    assert store.put(message()).status is PutStatus.OK
    # Without its queues on the disk the store is not clean, and the next start builds them.
    store.close()
    assert store.paths.abort.exists()
    files.on_sync = lambda _: None
    report = store.open()
    assert not report.clean
    assert len(bodies(store)) == 501
    store.close()


async def test_a_message_whose_dispatch_fails_becomes_visible_later(
    store: MessageStore, files: SlowDisk
) -> None:
    """Its queue's file lost its map, and no more files can be opened just now."""
    files.gate.clear()
    end = store.put(message()).end_offset
    for queue in store.queues.all():
        for file in queue.files:
            file.unmap()
    seen = asyncio.Event()
    store.dispatcher.on_arrival = lambda *_: seen.set()
    files.open_error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    files.gate.set()
    assert await durable(store, end)
    assert store.queries.max_offset("TopicTest", 0) == 0
    assert "Too many open files" in (store.why_not_writable or "")
    files.open_error = None
    await asyncio.wait_for(seen.wait(), 10)
    assert bodies(store) == [b"hello"]


async def test_the_death_of_a_thread_is_reported(tmp_path: Path, files: SlowDisk) -> None:
    store = opened(tmp_path, files=files, flush_disk_type="SYNC_FLUSH")

    def die(_: Path) -> None:
        raise RuntimeError("a fault of ours")

    files.on_sync = die
    store.start(asyncio.get_running_loop())
    answer = durable(store, store.put(message()).end_offset)
    assert not await asyncio.wait_for(answer, 10)
    assert "store-flush-log died" in (store.why_not_writable or "")
    files.on_sync = lambda _: None
    store.close()


async def test_a_disk_that_hangs_does_not_hang_the_stop(tmp_path: Path, files: SlowDisk) -> None:
    hasty = StoreLimits(close_seconds=0.01)
    store = opened(tmp_path, files=files, flush_disk_type="SYNC_FLUSH", limits=hasty)
    store.start(asyncio.get_running_loop())
    files.gate.clear()
    answer = durable(store, store.put(message()).end_offset)
    await in_thread(files)
    store.close()
    assert not await answer
    assert store.paths.abort.exists()
    files.gate.set()
    await asyncio.to_thread(_join_threads)


def _join_threads() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("store-"):
            thread.join(30)


async def test_the_loop_may_be_closed_before_the_store(tmp_path: Path) -> None:
    def run() -> MessageStore:
        async def use() -> MessageStore:
            store = opened(tmp_path, flush_disk_type="SYNC_FLUSH")
            store.start(asyncio.get_running_loop())
            store.put(message())
            return store

        return asyncio.run(use())

    store = await asyncio.to_thread(run)
    store.syncer.wake()
    store.close()
    assert thread_names() == []
