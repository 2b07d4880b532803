"""The lag of a query's consumer group, as the tools show it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from client.blocking import Admin
from pocketmq.testing import StandaloneServer

WAIT = 60


def lag(server: StandaloneServer, group: str) -> int:
    """Return the lag that ``pocketmq group lag`` prints."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pocketmq", "group", "lag", group),
            *("--nameserver", server.nameserver, "--json"),
        ],
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=True,
    )
    found: int = json.loads(done.stdout)["lag"]
    return found


@pytest.mark.newer_spark
def test_lag_falls_with_every_batch_and_is_0_after_available_now(
    stream: Any,
    server: StandaloneServer,
    admin: Admin,
    new_topic: Any,
    fill: Any,
    tmp_path: Path,
):
    topic = new_topic()
    fill(topic, 100)
    seen = []

    def look(frame: Any, _: int) -> None:
        seen.append((frame.count(), lag(server, "billing")))

    frame = stream(
        topic, startingOffsets="earliest", consumerGroup="billing", maxOffsetsPerTrigger=40
    )
    query = (
        frame.writeStream.foreachBatch(look)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT)
    assert seen == [(40, 100), (40, 60), (20, 20)]
    assert lag(server, "billing") == 0
    assert "billing" in admin.groups()
    fill(topic, 7, first=100)
    assert lag(server, "billing") == 7
