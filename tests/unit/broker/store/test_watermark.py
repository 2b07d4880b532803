"""Nothing is stored above the watermark, and the watermark never passes stored bytes."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from broker.store.commit_log import CommitLog
from broker.store.config import FlushDiskType
from broker.store.limits import StoreLimits
from broker.store.mapped_file import MappedFile, MappedFiles
from broker.store.os_files import Files, OsRegion
from broker.store.preallocate import Preallocator
from broker.store.recovery import find_log_files
from broker.store.results import PutStatus
from tests.support.sizes import size
from tests.unit.broker.store.stores import LIMITS, FailingFiles, bodies, context, message, opened

FILE = 64 * 1024
# How many records the appender writes in its race with the preallocating threads.
RACE = size(test=6_000, ci=20_000, soak=400_000)


def new_log(
    directory: Path,
    file_size: int = FILE,
    *,
    limits: StoreLimits = LIMITS,
    writes_all: bool = False,
) -> CommitLog:
    directory.mkdir(exist_ok=True)
    return CommitLog(Files(), MappedFiles(16), directory, file_size, limits, writes_all=writes_all)


def preallocator(
    log: CommitLog, *, files: Files | None = None, limits: StoreLimits = LIMITS
) -> Preallocator:
    return Preallocator(context(log.directory, files, limits=limits), log)


def append(log: CommitLog, data: bytes) -> int:
    position = log.reserve(len(data))
    log.store(position, data)
    return position


def new_file(directory: Path, size: int = FILE) -> MappedFile:
    return MappedFile.create(Files(), MappedFiles(16), directory / ("0" * 20), 0, size, pinned=True)


def allocated_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_a_new_file_has_its_length_but_no_blocks(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    assert file.path.stat().st_size == FILE
    assert allocated_bytes(file.path) == 0
    assert file.watermark == 0


def test_the_watermark_stands_for_blocks(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    file.extend(5000, 100)
    assert file.watermark == 5000
    assert allocated_bytes(file.path) >= 5000
    file.extend(4000, 100_000)
    assert file.watermark == 5000
    file.advance(8192)
    assert file.watermark == 13192
    file.advance(10**9)
    assert file.watermark == FILE
    assert allocated_bytes(file.path) == FILE


def test_a_store_above_the_watermark_is_an_internal_error(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    position = log.reserve(100)
    assert log.files[0].watermark >= 100
    with pytest.raises(AssertionError):
        log.store(position, bytes(FILE // 2 + log.files[0].watermark))
    with pytest.raises(AssertionError):
        log.store(position + 1, b"x")


def test_an_appender_allocates_in_small_steps(tmp_path: Path) -> None:
    log = new_log(tmp_path, limits=StoreLimits(appender_step_bytes=4096))
    append(log, b"x" * 100)
    assert log.files[0].watermark == 4096
    append(log, b"x" * 10_000)
    assert log.files[0].watermark == 10_100
    append(log, b"x" * 1000)
    assert log.files[0].watermark == 14_196


def test_a_reservation_that_is_not_used_costs_nothing(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert log.reserve(100) == log.reserve(200) == 0
    assert log.end == 0


def test_many_records_are_stored_by_one_assignment(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    position = log.reserve(300)
    log.store(position, memoryview(b"a" * 100 + b"b" * 200))
    view = log.slice(0, 300)
    assert view is not None
    assert bytes(view) == b"a" * 100 + b"b" * 200


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the bytes written to files with writes, not through their maps."""
    written: list[bytes] = []
    write = OsRegion.write

    def spy(region: OsRegion, position: int, data: bytes | memoryview) -> None:
        written.append(bytes(data))
        write(region, position, data)

    monkeypatch.setattr(OsRegion, "write", spy)
    return written


def test_a_large_append_has_blocks_without_their_pages_being_written(
    tmp_path: Path, writes: list[bytes]
) -> None:
    log = new_log(tmp_path, limits=StoreLimits(written_from_bytes=4096))
    append(log, b"a" * 4096)
    zeros = bytes(FILE)
    assert writes == [zeros, b"a" * 4096], "zeros for what might be small, then the records"
    append(log, b"b" * 8192)
    assert writes == [zeros, b"a" * 4096, b"b" * 8192]
    assert bytes(log.slice(0, 12288) or b"") == b"a" * 4096 + b"b" * 8192


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_is_synced_at_once_is_written_and_not_stored_through_the_map(
    tmp_path: Path, writes: list[bytes], flush: FlushDiskType
) -> None:
    store = opened(tmp_path, flush_disk_type=flush)
    assert store.put(message(b"small")).status is PutStatus.OK
    assert any(b"small" in data for data in writes) == (flush == "SYNC_FLUSH")
    assert store.flush()
    assert bodies(store) == [b"small"]
    store.close()


def test_zeros_are_written_where_only_writes_allocate_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, position: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    file = new_file(tmp_path)
    file.advance(8192, zeros=False)
    assert file.watermark == 8192
    assert allocated_bytes(file.path) == 8192


def test_a_disk_without_space_gives_no_blocks(tmp_path: Path) -> None:
    files = FailingFiles()
    files.full = True
    file = MappedFile(files, MappedFiles(16), new_file(tmp_path).path, 0, FILE, used=0)
    with pytest.raises(OSError, match="No space"):
        file.advance(8192, zeros=False)
    assert file.watermark == 0


def test_records_that_cannot_be_written_are_stored_through_the_map(tmp_path: Path) -> None:
    files = FailingFiles()
    file = MappedFile(files, MappedFiles(16), new_file(tmp_path).path, 0, FILE, used=0)
    file.extend(8192, 0)
    files.full = True
    assert not file.try_write(100, b"x" * 5000)
    files.full = False
    log = CommitLog(files, MappedFiles(16), tmp_path, FILE, LIMITS)
    log.load([file], 0, 0)
    large = b"y" * LIMITS.written_from_bytes
    position = log.reserve(len(large))
    files.full = True
    log.store(position, large)
    assert file.view[: len(large)] == large


def test_an_idle_store_is_allocated_only_a_little_ahead(tmp_path: Path) -> None:
    log = new_log(tmp_path, 1024 * 1024 * 1024)
    ahead = preallocator(log)
    steps = 0
    while ahead.step():
        steps += 1
    assert steps == 4
    (path,) = tmp_path.iterdir()
    assert allocated_bytes(path) <= 5 * 1024 * 1024


def test_the_run_ahead_grows_with_the_stored_bytes_and_is_bounded(tmp_path: Path) -> None:
    limits = StoreLimits(
        preallocate_first_bytes=8 * 1024,
        preallocate_step_bytes=4 * 1024,
        allocate_step_bytes=4 * 1024,
        preallocate_bytes=40 * 1024,
        appender_step_bytes=512,
    )
    log = new_log(tmp_path, 1024 * 1024, limits=limits)
    ahead = preallocator(log, limits=limits)
    append(log, b"x")

    def distance() -> int:
        while ahead.step():
            pass
        return log.files[0].watermark - log.end

    assert 8 * 1024 <= distance() < 12 * 1024
    append(log, b"x" * 20_000)
    assert 20_001 <= distance() < 25_000
    append(log, b"x" * 200_000)
    assert 40 * 1024 <= distance() < 44 * 1024


def test_a_disk_that_is_nearly_full_is_not_allocated_ahead(tmp_path: Path) -> None:
    files = FailingFiles()
    log = new_log(tmp_path)
    append(log, b"x")
    ahead = preallocator(log, files=files)
    assert ahead.try_step() is False
    assert log.ahead()[1] is None
    files.free = 10**12
    assert ahead.try_step() is True
    assert log.ahead()[1] is not None


def test_the_next_file_is_made_and_allocated_ahead(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, b"x" * 100)
    ahead = preallocator(log)
    while ahead.step():
        pass
    assert [allocated_bytes(path) for path in sorted(tmp_path.iterdir())] == [FILE, FILE]
    active, following = log.ahead()
    assert active is not None
    assert following is not None
    assert (active.watermark, following.watermark) == (FILE, FILE)
    # It is no part of the log before a record is in it, and a clean stop takes it away.
    assert log.files == [active]
    log.remove_prepared()
    log.remove_prepared()
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["0" * 20]


def test_a_roll_takes_the_file_that_was_created_ahead(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, b"x" * 100)
    following = log.prepare_next()
    assert log.prepare_next() is following
    append(log, b"y" * (FILE - 8))
    assert log.files[-1] is following
    assert log.ahead()[1] is None


@pytest.mark.parametrize(
    ("written_from", "writes_all"),
    [(1, False), (150, False), (10_000, False), (10_000, True)],
    ids=["written", "both", "mapped", "small ones written"],
)
def test_the_thread_and_the_appender_race_over_many_rolls(
    tmp_path: Path, written_from: int, writes_all: bool
) -> None:
    """The appender goes just as fast as the thread; a zeroed record would be seen."""
    limits = StoreLimits(
        written_from_bytes=written_from,
        preallocate_step_bytes=1024,
        allocate_step_bytes=1024,
        appender_step_bytes=256,
    )
    size = 4096
    log = new_log(tmp_path, size, limits=limits, writes_all=writes_all)
    ahead = preallocator(log, limits=limits)
    stop = threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        try:
            while not stop.is_set():
                ahead.step()
        except Exception as error:  # noqa: BLE001 - reported below
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    # Or each write of the appender costs it 5 ms, for which the threads keep the interpreter.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for thread in threads:
        thread.start()
    places = []
    try:
        for number in range(RACE):
            data = number.to_bytes(4, "big") * (20 + number % 57)
            places.append((append(log, data), data))
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()
    assert failures == []
    assert len(log.files) > RACE // 22
    for position, data in places:
        view = log.slice(position, len(data))
        assert view is not None
        assert bytes(view) == data
    for file in log.files:
        assert log.end - file.start >= size or file.watermark >= log.end - file.start


def test_a_file_that_is_opened_again_is_zero_behind_its_end(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, b"x" * 20_000)
    log.close()
    (file,) = find_log_files(Files(), MappedFiles(16), tmp_path, FILE)
    assert file.clear_from(12_345) == 20_000 - 12_345
    assert file.clear_from(12_345) == 0
    data = file.path.read_bytes()
    assert data == b"x" * 12_345 + bytes(FILE - 12_345)
    assert file.watermark == 12_345


def test_as_many_maps_are_open_as_the_table_allows(tmp_path: Path) -> None:
    maps = MappedFiles(4)
    made = [
        MappedFile.create(Files(), maps, tmp_path / f"{n:020d}", n, 4096, pinned=False)
        for n in range(10)
    ]
    assert len(maps) == 4
    for number, file in enumerate(made):
        file.extend(10, 10)
        file.view[0] = number
    # A file that lost its map in between is synced all the same.
    for file in made:
        file.sync()
    assert [file.view[0] for file in made] == list(range(10))
    assert len(maps) == 4
    for file in made:
        file.remove()
        file.sync()
    assert list(tmp_path.iterdir()) == []


def test_a_recently_used_file_keeps_its_map(tmp_path: Path) -> None:
    maps = MappedFiles(3)

    def make(number: int) -> MappedFile:
        path = tmp_path / f"{number:020d}"
        return MappedFile.create(Files(), maps, path, number, 4096, pinned=False)

    made = [make(number) for number in range(3)]
    kept = made[0].view
    make(3)
    assert made[0].mapped
    assert not made[1].mapped
    assert made[0].view is kept


def test_a_file_that_was_removed_need_not_be_fetched(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    held = file.hold()
    file.remove()
    file.fetch(0, FILE, ahead=FILE)
    assert bytes(held.view) == bytes(FILE)


def test_a_file_that_somebody_else_removed_cannot_be_fetched(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    file.path.unlink()
    with pytest.raises(FileNotFoundError, match="it was removed while it was in use"):
        file.fetch(0, FILE, ahead=0)


def test_a_pinned_file_does_not_count(tmp_path: Path) -> None:
    maps = MappedFiles(2)
    pinned = MappedFile.create(Files(), maps, tmp_path / "a", 0, 4096, pinned=True)
    for number in range(5):
        MappedFile.create(Files(), maps, tmp_path / str(number), 0, 4096, pinned=False)
    assert pinned.mapped
    pinned.unpin()
    pinned.unpin()
    assert len(maps) == 2
