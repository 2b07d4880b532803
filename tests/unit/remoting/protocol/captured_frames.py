"""The frames captured from RocketMQ, for the tests that replay them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "golden" / "frames"
FILES = sorted(path.name for path in FOLDER.glob("*.jsonl"))


def lines(file_name: str) -> Iterator[dict[str, Any]]:
    """The lines of one capture, in order."""
    with (FOLDER / file_name).open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
