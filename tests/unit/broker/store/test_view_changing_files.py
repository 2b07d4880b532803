"""Files removed or truncated under a reader are clear errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.log_view import Damage
from broker.store.raw_files import StoreChanged, ViewFile
from broker.store.results import StoreError
from broker.storetools.view import StoreView
from tests.unit.broker.store.stores import LOG_FILE
from tests.unit.broker.store.views import copied, filled


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """Four log files and four queue files that no store has open."""
    store = filled(tmp_path / "store")
    yield copied(store)
    store.close()


def test_a_file_that_is_open_may_be_removed(root: Path) -> None:
    view = StoreView(root)
    end = view.log_end().position
    walk = view.log.walk(view.log.start, end, chunk_bytes=1000)
    next(walk)
    (root / "commitlog" / f"{0:020d}").unlink()
    assert sum(1 for found in walk if not isinstance(found, Damage)) > 50


def test_a_missing_file_is_named(root: Path) -> None:
    view = StoreView(root)
    end = view.log_end().position
    path = root / "commitlog" / f"{0:020d}"
    path.unlink()
    with pytest.raises(StoreChanged, match=f"{path} has been removed, by retention or by hand"):
        list(view.log.walk(0, end))
    view = StoreView(root)
    with pytest.raises(StoreChanged, match=f"begins at {LOG_FILE} now"):
        view.log.record_at(0)


def test_a_file_truncated_while_open_is_an_error_and_not_a_signal(root: Path) -> None:
    view = StoreView(root)
    end = view.log_end().position
    os.truncate(root / "commitlog" / f"{0:020d}", 100)
    with pytest.raises(StoreChanged, match="ends at byte 100, though it had 16384 bytes"):
        list(view.log.walk(0, end))


def test_bytes_beyond_the_log_are_not_read(root: Path) -> None:
    view = StoreView(root)
    with pytest.raises(StoreError, match="ends at"):
        view.log.record_at(10**12)
    with pytest.raises(StoreError, match="missing or too short"):
        view.log.read_into(LOG_FILE - 10, memoryview(bytearray(20)))


def test_unused_files_are_closed(root: Path) -> None:
    file = ViewFile(str(root / "checkpoint"), 0, 4096)
    file.open()
    assert file.is_open
    file.close()
    file.close()
    assert not file.is_open
