"""The files in the console that others have written."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from pocketmq.console import app

STATIC = Path(app.__file__).parent / "static"
VENDORED = json.loads((STATIC / "vendored.json").read_text())


@pytest.mark.parametrize("name", VENDORED["files"])
def test_a_file_is_the_one_that_was_published(name: str) -> None:
    assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == VENDORED["files"][name]


def test_nothing_is_there_that_is_neither_ours_nor_recorded() -> None:
    ours = {"console.css", "console.js", "icon.svg", "vendored.json"}
    assert {path.name for path in STATIC.iterdir()} == ours | VENDORED["files"].keys()


def test_the_first_page_is_small() -> None:
    assert sum(path.stat().st_size for path in STATIC.iterdir()) < 125_000
