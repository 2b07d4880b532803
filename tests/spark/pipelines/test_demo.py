"""``pocketmq demo --spark``, as somebody types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pocketmq.demo import departures
from pocketmq.demo.plain_delays import counted
from tests.tour import HOME

COUNT = 20_000


@pytest.mark.timeout(200)
def test_the_demo_with_spark_shows_a_table_and_leaves_a_plot(
    tmp_path: Path, all_flights: list[departures.Record]
) -> None:
    page = tmp_path / "delays.html"
    words = ["demo", "--spark", "--limit", str(COUNT), "--plot", str(page), "--json"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pocketmq", *words],
        cwd=HOME,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    expected = counted(all_flights)
    assert told["checked"] is True
    assert (told["flights"], told["batches"]) == (COUNT, 1)
    assert told["figures"] == len(expected)
    assert {(row["origin"], row["carrier"]) for row in told["table"]} == {
        (place.origin, place.carrier) for place, figures in expected.items() if figures.departed
    }
    delays = [row["mean_delay"] for row in told["table"]]
    assert delays == sorted(delays, reverse=True)
    assert page.read_text().count("<polyline") == 3
