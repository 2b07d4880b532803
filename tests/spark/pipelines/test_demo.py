"""``python -m examples.demo.spark``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo.plain_delays import counted
from examples.spark import send_flights as departures
from tests.support.tour import HOME

COUNT = 20_000


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_demo_with_spark_shows_a_table_and_leaves_a_plot(
    tmp_path: Path, all_flights: list[departures.Record]
) -> None:
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo.spark", "--limit", str(COUNT)],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(HOME), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    expected = counted(all_flights)
    facts = {line[0]: line[1] for line in lines if len(line) == 2}
    assert facts["figures"].startswith(f"{len(expected):,} of days")
    table = [line for line in lines if len(line) == 5]
    assert {(row[0], row[1]) for row in table} == {
        (place.origin, place.carrier) for place, figures in expected.items() if figures.departed
    }
    assert Path(facts["plot"]).parent == temporary
    assert Path(facts["plot"]).read_text().count("<polyline") == 3
    assert not list(here.iterdir())
