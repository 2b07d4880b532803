"""Messages are found by their keys whatever became of the store and its index."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.store.errors import StoreBusy, StoreError
from broker.store.index import builder as builders
from broker.store.index import limits, message_index
from broker.store.index.batch import PlainBatch, Walked
from broker.store.message_store import MessageStore, PendingMessage
from broker.store.results import PutStatus
from remoting.clock import ManualClock
from remoting.protocol.disk.checkpoint import Checkpoint
from remoting.protocol.disk.index_file import HEADER, file_bytes
from remoting.protocol.message.view import RecordView
from tests.unit.broker.store.stores import FailingFiles, message, opened

SLOTS, ENTRIES = 50, 40
SMALL = {"max_hash_slots": SLOTS, "max_index_entries": ENTRIES}
FOREVER = 2**62


def keyed(key: str, **more: Any) -> PendingMessage:
    return message(
        key.encode(), properties=f"KEYS\x01{key}\x02UNIQ_KEY\x01U-{key}".encode(), **more
    )


def fill(store: MessageStore, numbers: range) -> None:
    for number in numbers:
        assert store.put(keyed(f"k{number}")).status is PutStatus.OK


async def find(store: MessageStore, key: str, **more: Any) -> list[bytes]:
    """Bodies of the messages with a key, newest first."""
    asked = {"max_count": 100, "begin_ms": 0, "end_ms": FOREVER} | more
    found = await store.index.find("TopicTest", key, **asked)
    bodies = []
    for offset in found.offsets:
        raw = store.record_at(offset)
        if raw is not None and key in {(record := RecordView(raw)).unique_id, *record.keys}:
            bodies.append(record.body)
    return bodies


async def check(store: MessageStore, numbers: range) -> None:
    for number in numbers:
        assert await find(store, f"k{number}") == [b"k%d" % number]
        assert await find(store, f"U-k{number}") == [b"k%d" % number]


def index_files(store: MessageStore) -> list[str]:
    return sorted(path.name for path in store.paths.index.iterdir())


def reopen(store: MessageStore, *, crash: bool = False) -> MessageStore:
    root, clock = store.paths.root, store._clock
    if crash:
        flushed = store.flush()
        assert flushed
    store.close()
    if crash:
        store.paths.abort.touch()
        store.paths.index_note.unlink(missing_ok=True)
    return opened(root, clock=clock, **SMALL)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> MessageStore:
    return opened(tmp_path / "store", clock=clock, **SMALL)


@pytest.fixture(autouse=True, params=["plain", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of taking keys from the log."""
    if request.param == "numpy":
        monkeypatch.setattr(builders, "WORTH_NUMPY_BYTES", 0)
    return str(request.param)


async def test_a_message_is_found_at_once_by_its_id_and_by_each_key(store: MessageStore) -> None:
    store.put(message(b"one", properties=b"KEYS\x01a b\x02UNIQ_KEY\x01ID"))
    for key in ("a", "b", "ID"):
        assert await find(store, key) == [b"one"]
    assert await find(store, "a b") == []
    assert await find(store, "c") == []
    store.close()


async def test_of_messages_with_one_key_the_newest_come_first(store: MessageStore) -> None:
    for number in range(5):
        store.put(message(b"%d" % number, properties=b"KEYS\x01same"))
    assert await find(store, "same") == [b"4", b"3", b"2", b"1", b"0"]
    assert await find(store, "same", max_count=2) == [b"4", b"3"]
    store.close()


async def test_a_span_of_time_is_looked_at_in_whole_seconds(
    store: MessageStore, clock: ManualClock
) -> None:
    begun = clock.now_ms()
    for number in range(4):
        store.put(message(b"%d" % number, properties=b"KEYS\x01same"))
        clock.advance(10)
    found = await find(store, "same", begin_ms=begun + 10_000, end_ms=begun + 20_000)
    assert found == [b"2", b"1"]
    assert await find(store, "same", begin_ms=begun + 50_000) == []
    store.close()


async def test_files_roll_when_they_are_full_and_all_are_searched(store: MessageStore) -> None:
    fill(store, range(100))
    await check(store, range(100))
    # 200 keys, 39 entries a file.
    assert len(index_files(store)) == 6
    assert len(set(index_files(store))) == 6
    store.close()


async def test_a_closed_store_has_all_indexed_and_goes_on(store: MessageStore) -> None:
    fill(store, range(30))
    store = reopen(store)
    fill(store, range(30, 60))
    await check(store, range(60))
    store.close()


async def test_the_checkpoint_tells_of_full_files_which_a_crash_leaves_alone(
    store: MessageStore, clock: ManualClock
) -> None:
    fill(store, range(30))
    await check(store, range(30))
    clock.advance(1)
    fill(store, range(30, 50))
    store.close()
    checkpoint = Checkpoint.decode(store.paths.checkpoint.read_bytes())
    assert checkpoint.index_ms == clock.now_ms()
    clock.advance(1)
    store = reopen(store)
    fill(store, range(50, 60))
    await check(store, range(60))
    before = {path.name: path.stat().st_ctime_ns for path in store.paths.index.iterdir()}
    store = reopen(store, crash=True)
    await check(store, range(60))
    after = {path.name: path.stat().st_ctime_ns for path in store.paths.index.iterdir()}
    kept = [name for name in sorted(before) if after.get(name) == before[name]]
    assert kept == sorted(before)[:-1]
    store.close()


async def test_a_store_without_a_note_goes_on_behind_the_last_message_of_the_index(
    store: MessageStore,
) -> None:
    fill(store, range(30))
    store.close()
    store.paths.index_note.unlink()
    before = [path.read_bytes() for path in sorted(store.paths.index.iterdir())]
    store = reopen(store)
    await check(store, range(30))
    store.close()
    assert [path.read_bytes() for path in sorted(store.paths.index.iterdir())] == before


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"{",
        b"[]",
        b'{"format":2,"indexed":999999,"last":[]}',
        b'{"format":1,"indexed":999999,"last":["20200101000000000",7]}',
        b'{"format":1,"indexed":"x","last":[]}',
    ],
)
async def test_a_note_that_is_not_of_these_files_is_not_believed(
    store: MessageStore, note: bytes
) -> None:
    fill(store, range(30))
    store.close()
    store.paths.index_note.write_bytes(note)
    store = reopen(store)
    await check(store, range(30))
    store.close()


async def test_after_a_crash_everything_is_found_again(store: MessageStore) -> None:
    fill(store, range(50))
    await check(store, range(50))
    store = reopen(store, crash=True)
    fill(store, range(50, 60))
    await check(store, range(60))
    store.close()


async def test_after_a_crash_a_file_that_was_not_full_is_made_anew(store: MessageStore) -> None:
    fill(store, range(50))
    await check(store, range(50))
    names = index_files(store)
    store.close()
    last = store.paths.index / names[-1]
    torn = bytearray(last.read_bytes())
    torn[HEADER.size : HEADER.size + 4 * SLOTS] = bytes(4 * SLOTS)
    last.write_bytes(torn)
    store.paths.abort.touch()
    store = opened(store.paths.root, **SMALL)
    await check(store, range(50))
    store.close()


@pytest.mark.parametrize(
    "header",
    [
        (0, 0, 0, 10**9, 0, 3),
        (0, 0, 0, 0, 0, ENTRIES + 1),
        (0, 0, 500, 100, 1, 3),
        (0, 0, 0, 100, 99, 3),
        (0, 0, 0, 0, 5, 1),
    ],
)
async def test_a_file_whose_header_is_none_is_made_anew(
    store: MessageStore, header: tuple[int, ...]
) -> None:
    fill(store, range(10))
    store.close()
    store.paths.index_note.unlink()
    (path,) = store.paths.index.iterdir()
    path.write_bytes(HEADER.pack(*header) + path.read_bytes()[HEADER.size :])
    store = reopen(store)
    await check(store, range(10))
    store.close()


async def test_files_of_another_length_and_foreign_ones_are_let_be(store: MessageStore) -> None:
    fill(store, range(10))
    store.close()
    (path,) = store.paths.index.iterdir()
    os.truncate(path, 100)
    (store.paths.index / "notes.txt").write_text("mine")
    store = reopen(store)
    await check(store, range(10))
    assert len(index_files(store)) == 3
    assert path.stat().st_size == 100
    store.close()


async def test_names_of_files_go_on_when_the_clock_goes_back(
    store: MessageStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, range(15))
    await check(store, range(15))
    early = clock.now_ms() - 3_600_000
    monkeypatch.setattr(ManualClock, "now_ms", lambda _: early)
    fill(store, range(15, 100))
    names = index_files(store)
    await check(store, range(100))
    assert index_files(store)[: len(names)] == names
    store.close()


async def test_files_that_know_only_what_retention_took_are_dropped(store: MessageStore) -> None:
    fill(store, range(100))
    await check(store, range(100))
    assert store.index.drop_before(0) == 0
    dropped = store.index.drop_before(store.end_offset)
    assert dropped == 5
    assert len(index_files(store)) == 1
    assert await find(store, "k99") == [b"k99"]
    store.close()


async def test_records_longer_than_a_slice_and_ends_of_files_are_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MIN_SLICE_BYTES", "MAX_SLICE_BYTES", "PLAIN_SLICE_BYTES"):
        monkeypatch.setattr(builders, name, 200)
    store = opened(tmp_path / "store", **SMALL)
    for number in range(20):
        store.put(message(b"x" * 900 * (number % 7), properties=b"KEYS\x01k%d" % number))
    for number in range(20):
        assert await find(store, f"k{number}") == [b"x" * 900 * (number % 7)]
    store.close()


async def test_rolled_back_messages_are_not_found_and_prepared_ones_are(
    store: MessageStore,
) -> None:
    store.put(keyed("prepared", sys_flag=4))
    store.put(keyed("rolled", sys_flag=12))
    assert await find(store, "prepared") == [b"prepared"]
    assert await find(store, "rolled") == []
    store.close()


async def test_in_sync_mode_only_what_the_disk_has_is_found(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", flush_disk_type="SYNC_FLUSH", **SMALL)
    store.put(keyed("a"))
    assert await find(store, "a") == []
    store.flush()
    assert await find(store, "a") == [b"a"]
    store.close()


async def test_a_store_that_shall_not_index_finds_what_was_indexed(store: MessageStore) -> None:
    fill(store, range(5))
    store.close()
    store = opened(store.paths.root, message_index_enable=False, **SMALL)
    store.start(asyncio.get_running_loop())
    store.put(keyed("later"))
    assert await find(store, "later") == []
    assert await find(store, "k3") == [b"k3"]
    store.close()
    store = reopen(store)
    assert await find(store, "later") == [b"later"]
    store.close()


async def test_the_thread_indexes_by_itself_when_the_store_is_idle(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_index, "LOOK_SECONDS", 0.01)
    store.start(asyncio.get_running_loop())
    fill(store, range(5))
    await until(lambda: store.paths.index.exists() and store.index.backlog_bytes == 0)
    assert index_files(store)
    store.close()


@pytest.mark.parametrize("bounded_by", ["memory", "keys"])
async def test_a_busy_store_is_left_alone_until_much_waits(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, bounded_by: str
) -> None:
    monkeypatch.setattr(message_index, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(message_index, "BUSY_BYTES", -1)
    if bounded_by == "memory":
        monkeypatch.setattr(store.index, "_hot_bytes", 2000)
    else:
        monkeypatch.setattr(message_index, "MAX_BACKLOG_SLICES", 2000 / limits.MIN_SLICE_BYTES)
    store.start(asyncio.get_running_loop())
    assert await find(store, "k0") == []
    fill(store, range(5))
    waiting = store.index.backlog_bytes
    assert 0 < waiting < 2000
    await asyncio.sleep(0.1)
    assert store.index.backlog_bytes == waiting
    fill(store, range(5, 30))
    await until(lambda: store.index.backlog_bytes == 0)
    store.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - a thread does it
            await asyncio.sleep(0.01)


async def test_a_full_disk_stops_the_index_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_index, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(message_index, "RETRY_SECONDS", 0.01)
    files = FailingFiles()
    store = opened(tmp_path / "store", files=files, **SMALL)
    files.full, files.full_for = True, "/index/"
    store.start(asyncio.get_running_loop())
    fill(store, range(30))
    await until(lambda: store.index.trouble is not None)
    assert "No space left" in str(store.index.trouble)
    assert "index can't be written" not in str(store.why_not_writable)
    assert await find(store, "k3") == []
    files.full = False
    await until(lambda: store.index.trouble is None)
    await check(store, range(30))
    store.close()


async def test_an_index_that_fails_at_the_stop_is_completed_by_the_next_start(
    tmp_path: Path,
) -> None:
    files = FailingFiles()
    store = opened(tmp_path / "store", files=files, **SMALL)
    fill(store, range(10))
    await check(store, range(10))
    fill(store, range(10, 40))
    files.full, files.full_for = True, "/index/"
    store.close()
    assert not store.paths.abort.exists()
    store = opened(tmp_path / "store", **SMALL)
    await check(store, range(40))
    store.close()


async def test_a_fault_of_ours_ends_the_index_and_nothing_else(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_index, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(builders.IndexBuilder, "step", lambda *_: 1 // 0)
    store.start(asyncio.get_running_loop())
    await until(lambda: store.index.trouble is not None)
    assert "report this" in str(store.index.trouble)
    assert store.put(keyed("a")).status is PutStatus.OK
    store.close()


async def test_queries_are_bounded_and_refused_when_the_store_closes(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, range(3))
    monkeypatch.setattr(message_index, "MAX_QUERIES", 1)
    index = store.index
    first = asyncio.ensure_future(find(store, "k1"))
    await asyncio.sleep(0)
    with pytest.raises(StoreBusy, match="try again"):
        await find(store, "k2")
    assert await first == [b"k1"]
    store.close()
    with pytest.raises(StoreError, match="closing"):
        await index.find("TopicTest", "k1", max_count=1, begin_ms=0, end_ms=FOREVER)


async def test_an_index_that_cannot_be_read_says_so(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, range(3))

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(builders.IndexBuilder, "find", refuse)
    with pytest.raises(StoreError, match="can't be read"):
        await find(store, "k1")
    store.close()


@pytest.mark.parametrize(
    ("used", "keys", "expected"),
    [
        (1200 * 1000, 1000, 1200 * limits.SLICE_KEYS),
        (280 * 1000, 2000, limits.MIN_SLICE_BYTES),
        (limits.MIN_SLICE_BYTES, 0, limits.MAX_SLICE_BYTES),
        (0, 0, limits.MIN_SLICE_BYTES),
    ],
)
def test_a_slice_has_about_as_many_keys_as_are_worth_one(
    used: int, keys: int, expected: int
) -> None:
    found = PlainBatch()
    found.hashes = [1] * keys
    assert builders.slice_for(Walked(found, used)) == expected


def test_the_limits_fit_together() -> None:
    assert limits.BUSY_BYTES <= limits.MAX_BACKLOG_SLICES * limits.MIN_SLICE_BYTES
    assert limits.PLAIN_SLICE_BYTES < limits.MIN_SLICE_BYTES < limits.MAX_SLICE_BYTES
    assert limits.MAX_SLICE_BYTES <= limits.BUSY_BYTES
    assert file_bytes(SLOTS, ENTRIES) == 40 + 4 * SLOTS + 20 * ENTRIES
