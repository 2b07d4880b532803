"""The file layer: locks, lengths, atomic replacement, extents."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from broker.store import limits
from broker.store.os_files import DiskUse, Files, is_no_space
from tests.unit.broker.store.stores import open_files

FILES = Files()


def test_a_mapped_file_has_one_length_forever(tmp_path: Path) -> None:
    path = tmp_path / "file"
    region = FILES.open_mapped(path, 8192, create=True)
    region.write(4096, b"written")
    assert bytes(region.view[4096:4103]) == b"written"
    region.view[0:6] = b"stored"
    region.sync()
    assert path.read_bytes()[:6] == b"stored"
    with pytest.raises(OSError, match="8192 bytes instead of 4096"):
        FILES.open_mapped(path, 4096, create=False)
    with pytest.raises(OSError, match="8192 bytes instead of 4096"):
        FILES.open_mapped(path, 4096, create=True)
    with pytest.raises(FileNotFoundError):
        FILES.open_mapped(tmp_path / "none", 4096, create=False)


def test_descriptors_are_closed(tmp_path: Path) -> None:
    for _ in range(50):
        region = FILES.open_mapped(tmp_path / "file", 4096, create=True)
        piece = region.view[:10]
        del region
        with pytest.raises(OSError, match="instead of"):
            FILES.open_mapped(tmp_path / "file", 8192, create=False)
    assert bytes(piece) == bytes(10)
    del piece
    assert open_files(tmp_path) == []


def test_only_written_ranges_are_extents(tmp_path: Path) -> None:
    region = FILES.open_mapped(tmp_path / "file", 1024 * 1024, create=True)
    assert list(region.extents(0)) == []
    region.write(64 * 1024, b"x" * 4096)
    assert list(region.extents(0)) == [(64 * 1024, 68 * 1024)]
    assert list(region.extents(66 * 1024)) == [(66 * 1024, 68 * 1024)]
    assert list(region.extents(68 * 1024)) == []


def test_without_seek_data_a_whole_file_is_an_extent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = FILES.open_mapped(tmp_path / "file", 8192, create=True)
    monkeypatch.delattr(os, "SEEK_DATA")
    assert list(region.extents(100)) == [(100, 8192)]


def test_an_error_of_seek_data_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region = FILES.open_mapped(tmp_path / "file", 8192, create=True)

    def fail(*_: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "lseek", fail)
    with pytest.raises(OSError, match="Input/output"):
        list(region.extents(0))


def test_a_write_that_is_cut_short_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = FILES.open_mapped(tmp_path / "file", 8192, create=True)
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, bytes(data)[:3], at))
    region.write(10, b"abcdefgh")
    monkeypatch.undo()
    assert bytes(region.view[8:20]) == b"\0\0abcdefgh\0\0"
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: 0)
    with pytest.raises(OSError, match="No space left"):
        region.write(10, b"abc")


def test_a_replaced_file_and_its_backup_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(b"damaged")
    FILES.replace(path, b"two", backup=True)
    assert path.read_bytes() == b"two"
    assert (tmp_path / "topics.json.bak").read_bytes() == b"two"
    FILES.replace(path, b"three", backup=False)
    assert path.read_bytes() == b"three"
    assert (tmp_path / "topics.json.bak").read_bytes() == b"two"
    assert FILES.list(tmp_path) == ["topics.json", "topics.json.bak"]


def test_a_small_file_is_written_in_place(tmp_path: Path) -> None:
    FILES.write(tmp_path / "f", b"long text")
    FILES.write(tmp_path / "f", b"text")
    assert FILES.read(tmp_path / "f") == b"text"
    assert FILES.read(tmp_path / "none") is None
    assert FILES.size(tmp_path / "f") == 4
    assert FILES.size(tmp_path / "none") is None


def test_directories_are_listed_created_and_removed(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    FILES.make_directory(deep)
    FILES.make_directory(deep)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (deep / "2").touch()
    (deep / "1").symlink_to(outside)
    assert FILES.list(deep) == ["1", "2"]
    assert FILES.list(tmp_path / "none") == []
    FILES.remove_directory(tmp_path / "a")
    FILES.remove_directory(tmp_path / "a")
    assert FILES.list(tmp_path) == ["outside"]
    assert (outside / "precious").exists()
    FILES.remove(tmp_path / "none")


def test_a_lock_is_held_by_one_store_of_a_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("something longer")
    lock = FILES.lock(path, b"lock")
    assert lock is not None
    assert path.read_bytes() == b"lock"
    assert FILES.lock(path, b"lock") is None
    alias = tmp_path / "alias"
    alias.symlink_to(path)
    assert FILES.lock(alias, b"lock") is None
    lock.release()
    lock.release()
    again = FILES.lock(path, b"lock")
    assert again is not None
    again.release()


def test_a_lock_that_fails_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", fail)
    with pytest.raises(OSError, match="No locks"):
        FILES.lock(tmp_path / "lock", b"lock")
    assert open_files(tmp_path) == []


def test_an_exceeded_quota_counts_as_a_full_disk(tmp_path: Path) -> None:
    assert is_no_space(OSError(errno.ENOSPC, ""))
    assert is_no_space(OSError(errno.EDQUOT, ""))
    assert not is_no_space(OSError(errno.EIO, ""))
    assert FILES.free_bytes(tmp_path) > 0
    use = FILES.disk_use(tmp_path)
    assert 0 < use.ratio < 1
    assert use.ratio == use.used / (use.used + use.free)
    assert DiskUse(0, 0).ratio == 0.0
    assert DiskUse(0, 0).percent == 0


def test_the_usage_of_a_disk_is_what_df_shows(tmp_path: Path) -> None:
    df = subprocess.run(
        ["df", "--output=pcent", tmp_path], capture_output=True, text=True, check=True
    )
    assert f"{FILES.disk_use(tmp_path).percent}%" == df.stdout.split()[-1]


@pytest.mark.parametrize(
    ("used", "free", "percent"), [(1, 999, 1), (750, 250, 75), (751, 249, 76), (5, 0, 100)]
)
def test_a_disk_beyond_a_percent_counts_as_the_next(used: int, free: int, percent: int) -> None:
    assert DiskUse(used, free).percent == percent


@pytest.mark.parametrize(
    ("soft", "wanted", "expected"),
    [
        (1024, 1024, 512),
        (1024, 100, 100),
        (65536, 10**6, 16_384),
        (20, 1000, 16),
        (20_000, 10**6, 11_808),
        (-1, 10**6, 16_384),
        (65536, 1, 16),
    ],
)
def test_open_maps_leave_descriptors_to_sockets(
    monkeypatch: pytest.MonkeyPatch, soft: int, wanted: int, expected: int
) -> None:
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: (soft, -1))
    assert limits.open_maps(wanted) == expected


@pytest.mark.parametrize("size", [4096, limits.SMALL_FILE_BYTES])
def test_a_small_file_keeps_one_descriptor_and_a_large_one_two(tmp_path: Path, size: int) -> None:
    region = Files().open_mapped(tmp_path / "file", size, create=True)
    region.write(7, b"written")
    assert bytes(region.view[7:14]) == b"written"
    assert region.allocate(0, 4096)
    region.sync()
    assert next(region.extents(0))[0] == 0
    assert region.is_whole()
    assert len(open_files(tmp_path)) == (1 if size < limits.SMALL_FILE_BYTES else 2)
    del region
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("size", [4096, limits.SMALL_FILE_BYTES])
def test_a_file_that_was_taken_away_is_not_written_to_by_its_name(
    tmp_path: Path, size: int
) -> None:
    path = tmp_path / "file"
    region = Files().open_mapped(path, size, create=True)
    path.rename(tmp_path / "other")
    path.write_bytes(b"another one")
    if size < limits.SMALL_FILE_BYTES:
        with pytest.raises(FileNotFoundError, match="removed while it was in use"):
            region.write(0, b"mine")
    else:
        region.write(0, b"mine")
    assert path.read_bytes() == b"another one"
    assert region.is_whole()
