"""What is asked of the log's file after each sync."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.store import file_facts
from broker.store.file_facts import links_and_size


@pytest.fixture(params=["statx", "fstat"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "fstat":
        monkeypatch.setattr(file_facts, "_statx", None)


@pytest.mark.usefixtures("_way")
def test_a_file_has_names_and_a_length_until_they_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        assert links_and_size(file.fileno()) == (1, 0)
        os.truncate(path, 5_000_000_000)
        os.link(path, tmp_path / "other")
        assert links_and_size(file.fileno()) == (2, 5_000_000_000)
        path.unlink()
        (tmp_path / "other").unlink()
        assert links_and_size(file.fileno()) == (0, 5_000_000_000)


@pytest.mark.usefixtures("_way")
def test_a_closed_file_can_not_be_asked(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        descriptor = file.fileno()
    with pytest.raises(OSError, match="Bad file descriptor"):
        links_and_size(descriptor)
