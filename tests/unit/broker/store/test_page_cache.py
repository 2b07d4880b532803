"""Which pages of a map are in the page cache, without reading them."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store import os_files as page_cache
from broker.store.os_files import address_of, fetch_range, is_range_cached

BLOCK_BYTES = 64 * 1024
SIZE = 4 * BLOCK_BYTES
PAGE = mmap.PAGESIZE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is not in the page cache."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(os.urandom(SIZE))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


@pytest.fixture
def descriptor(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def address(descriptor: int) -> Iterator[int]:
    view = memoryview(mmap.mmap(descriptor, SIZE))
    yield address_of(view)
    view.release()


def test_evicted_pages_are_absent_until_read(descriptor: int, address: int) -> None:
    assert is_range_cached(address, 0, SIZE) is False
    fetch_range(descriptor, BLOCK_BYTES, BLOCK_BYTES)
    assert is_range_cached(address, BLOCK_BYTES, BLOCK_BYTES) is True
    assert is_range_cached(address, 0, SIZE) is False
    fetch_range(descriptor, 0, SIZE)
    assert is_range_cached(address, 0, SIZE) is True


def test_all_pages_that_a_range_touches_count(descriptor: int, address: int) -> None:
    fetch_range(descriptor, PAGE, PAGE)
    assert is_range_cached(address, PAGE, PAGE) is True
    assert is_range_cached(address, PAGE + 100, 1) is True
    assert is_range_cached(address, PAGE - 1, 1) is False
    assert is_range_cached(address, PAGE - 1, 2) is False
    assert is_range_cached(address, 2 * PAGE - 1, 2) is False


def test_written_pages_are_in_memory(descriptor: int, address: int) -> None:
    os.pwrite(descriptor, bytes(BLOCK_BYTES), 2 * BLOCK_BYTES)
    assert is_range_cached(address, 2 * BLOCK_BYTES, BLOCK_BYTES) is True


def test_unmapped_ranges_are_unknown(address: int) -> None:
    assert is_range_cached(0, 0, PAGE) is None


def test_without_mincore_everything_is_unknown(
    address: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "_mincore", None)
    assert is_range_cached(address, 0, SIZE) is None
