"""``python -m benchmarks.spark`` measures every part, and keeps what it has measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sizes import size

HOME = Path(__file__).parents[2]
PARTS = size(ci=("tcp",), soak=("store", "tcp", "sink", "stream"))
"""All but the comparison with Kafka's source, which installs another Spark."""


@pytest.mark.slow
@pytest.mark.newer_spark
@pytest.mark.timeout(600)
def test_every_part_is_measured_and_written(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    only = [word for part in PARTS for word in ("--only", part)]
    sizes = ["--quick", "--rounds", "1", "--messages", "8000", "--json", str(file)]
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.spark", *only, *sizes],
        capture_output=True,
        text=True,
        cwd=HOME,
        check=False,
        timeout=500,
    )
    report = json.loads(file.read_text())
    assert report["absent"] == {}, run.stderr
    # The result is 1 if a bar is missed, as it is with so few messages.
    assert run.returncode in {0, 1}
    assert all(f"{result['name']}" in run.stdout for result in report["results"])
