"""What can't be copied is a clear error, and leaves nothing that looks like a copy."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.store.results import StoreError
from broker.storetools.copy import files as file_copy
from tests.unit.broker.store.copy.copies import check, copied
from tests.unit.broker.store.stores import LOG_FILE, bodies, message, opened

COUNT = 300


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A stopped store of three log files."""
    store = opened(tmp_path / "store")
    for number in range(COUNT):
        store.put(message(b"%03d" % number + bytes(80)))
    store.close()
    return tmp_path / "store"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "copy"


def refusal(root: Path, target: Path, **more: object) -> str:
    """Return the error, after checking that the target is unchanged."""
    before = sorted(target.parent.rglob("*"))
    with pytest.raises(StoreError) as caught:
        copied(root, target, **more)
    assert sorted(target.parent.rglob("*")) == before
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_target_that_is_not_empty(root: Path, target: Path) -> None:
    target.mkdir()
    (target / "precious").touch()
    assert "is not empty" in refusal(root, target)


def test_an_empty_target_is_taken(root: Path, target: Path) -> None:
    target.mkdir()
    check(target, copied(root, target))


def test_a_target_that_is_a_file(root: Path, target: Path) -> None:
    target.touch()
    assert "is a file" in refusal(root, target)


def test_a_target_in_the_source_even_by_another_name(root: Path, target: Path) -> None:
    assert "is inside the store to be copied" in refusal(root, root / "backup")
    assert "is inside the store to be copied" in refusal(root, root)
    alias = target.with_name("alias")
    alias.symlink_to(root)
    assert "is inside the store to be copied" in refusal(root, alias / "backup")
    elsewhere = target.with_name("log")
    (root / "commitlog").rename(elsewhere)
    error = refusal(root, elsewhere / "backup", commit_log=str(elsewhere))
    assert "is inside the store to be copied" in error


def test_a_loop_of_links(root: Path, target: Path) -> None:
    target.symlink_to(target)
    with pytest.raises(StoreError):
        copied(root, target)


def test_a_target_without_a_directory_above_it(root: Path, target: Path) -> None:
    assert "directory above it exists" in refusal(root, target / "a" / "b")


def test_an_earlier_interrupted_copy(root: Path, target: Path) -> None:
    target.with_name("copy.part").mkdir()
    assert "copy.part exists" in refusal(root, target)


def test_a_mount_point(root: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target.mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == target)
    assert f"such as {target}/store" in refusal(root, target)


def test_a_directory_that_is_not_a_store(tmp_path: Path, target: Path) -> None:
    assert "there is no store" in refusal(tmp_path / "nothing", target)
    (tmp_path / "other").mkdir()
    assert "there is no commit log" in refusal(tmp_path / "other", target)


def test_an_offset_outside_the_log(root: Path, target: Path) -> None:
    assert "can't be copied up to 999999999" in refusal(root, target, until=999_999_999)
    assert "can't be copied up to 0" in refusal(root, target, until=0)


def no_space(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk(root: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", no_space)
    error = refusal(root, target)
    assert "No space left on device" in error
    assert "make room" in error


def test_a_target_that_cannot_be_synced(
    root: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fails)
    assert "Input/output error" in refusal(root, target)


def test_a_target_that_may_not_be_written(root: Path) -> None:
    # Not even root may.
    with pytest.raises(StoreError, match="this user may write there"):
        copied(root, Path("/sys/copy"))


def test_a_source_that_vanishes(root: Path, target: Path) -> None:
    def vanish(what: str, _: int) -> None:
        if what == "copying the log":
            shutil.rmtree(root, ignore_errors=True)

    with pytest.raises(StoreError):
        copied(root, target, vanish)
    assert list(target.parent.iterdir()) == []


def test_a_source_whose_log_vanishes(root: Path, target: Path) -> None:
    def vanish(what: str, done: int) -> None:
        if what == "copying the log" and done:
            for path in (root / "commitlog").iterdir():
                path.unlink()

    with pytest.raises(StoreError, match="moved or deleted since"):
        copied(root, target, vanish)
    assert not target.exists()
    assert not target.with_name("copy.part").exists()


def test_a_file_truncated_meanwhile_is_damage(root: Path, target: Path) -> None:
    def shorten(what: str, _: int) -> None:
        if what == "copying the log":
            os.truncate(root / "commitlog" / f"{LOG_FILE:020d}", 100)

    *_, fault = copied(root, target, shorten).faults.shown
    assert (fault.begin, fault.end) == (LOG_FILE + 100, 2 * LOG_FILE)
    assert "missing or too short" in fault.reason


def test_an_interrupted_copy_leaves_nothing(root: Path, target: Path) -> None:
    def interrupt(what: str, done: int) -> None:
        if what == "copying the log" and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copied(root, target, interrupt)
    assert [path.name for path in target.parent.iterdir()] == ["store"]


# --- damage


Break = Callable[[bytearray], None]


def flip_body(data: bytearray) -> None:
    data[500] ^= 1


def zero_page(data: bytearray) -> None:
    data[4096:8192] = bytes(4096)


def wrong_lengths(data: bytearray) -> None:
    # The topic's length of the first record.
    data[88 + 83] ^= 3


@pytest.mark.parametrize("damage", [flip_body, zero_page, wrong_lengths])
def test_damage_is_copied_unchanged_and_reported(root: Path, target: Path, damage: Break) -> None:
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)

    report = copied(root, target)

    assert not report.sound
    assert report.faults.count == len(report.faults.shown) > 0
    assert report.records < COUNT
    assert (target / "commitlog" / path.name).read_bytes() == bytes(data)
    copy = opened(target)
    assert len(bodies(copy)) >= report.records
    copy.close()


# --- the ways bytes take


@pytest.mark.parametrize("share", [lambda *_: None, file_copy.share_range])
def test_a_system_without_copy_file_range(
    root: Path, target: Path, share: Callable[..., int | None]
) -> None:
    source = root / "commitlog" / f"{0:020d}"
    end, size, moved = 10_001, source.stat().st_size, list[int]()
    file_copy.copy_beginning(
        source, target, end=end, size=size, on_progress=moved.append, share=share
    )
    assert target.read_bytes() == source.read_bytes()[:end] + bytes(size - end)
    assert sum(moved) == end


def test_unallocated_blocks_stay_unallocated(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"x" * 10_000)
    moved: list[int] = []
    end = (32 << 20) + 5000
    file_copy.copy_beginning(source, target, end=end, size=64 << 20, on_progress=moved.append)
    data = target.read_bytes()
    assert data[: 32 << 20] == bytes(32 << 20)
    assert data[32 << 20 :] == b"x" * 5000 + bytes((32 << 20) - 5000)
    assert target.stat().st_blocks * 512 < 1 << 20
    assert sum(moved) < 1 << 20
