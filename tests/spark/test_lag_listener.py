"""The lag listener on a running query."""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_connector.lag import LagListener, QueryLag

SECONDS = 60.0


@pytest.mark.newer_spark
def test_lag_falls_with_each_batch(
    spark: Any,
    stream: Callable[..., Any],
    new_topic: Callable[..., str],
    fill: Callable[..., None],
    tmp_path: Path,
) -> None:
    topic = new_topic()
    fill(topic, 100)
    received: queue.Queue[QueryLag] = queue.Queue()
    listener = LagListener(received.put)
    spark.streams.addListener(listener)
    try:
        frame = stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger="40")
        query = (
            frame.writeStream.format("noop")
            .queryName("lagging")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            lags = [received.get(timeout=SECONDS) for _ in range(3)]
            assert [lag.messages for lag in lags] == [60, 20, 0]
            assert [lag.batch_id for lag in lags] == [0, 1, 2]
            assert {lag.name for lag in lags} == {"lagging"}
            assert {lag.query_id for lag in lags} == {str(query.id)} == set(listener.lags)
            assert [one.queue.queue_id for one in lags[0].queues] == [0, 1, 2, 3]
            assert [one.messages for one in lags[0].queues] == [15, 15, 15, 15]
            page = listener.prometheus()
            assert f'query="lagging",query_id="{query.id}",queue="0",topic="{topic}"}} 0.0' in page
            fill(topic, 8, first=100)
            assert received.get(timeout=SECONDS).messages == 0
        finally:
            query.stop()
    finally:
        spark.streams.removeListener(listener)
