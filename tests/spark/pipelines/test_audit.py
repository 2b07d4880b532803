"""Pipeline 3 lists the contents of a store, and its damage."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from examples.spark import send_flights as departures
from pocketmq import testing
from tests.spark.pipelines.shared import example

COUNT = 3000
auditing = example("audit")


def test_the_audit_of_a_store_counts_all_and_names_a_flipped_byte(
    spark: Any, tmp_path: Path, all_flights: list[departures.Record]
) -> None:
    store = tmp_path / "store"
    with testing.broker(store=store) as server:
        asyncio.run(departures.send(server.nameserver, "flights", all_flights[:COUNT]))
    found = auditing.records(spark, str(store))
    (row,) = (row for row in auditing.topics(found) if row.topic == "flights")
    assert (row.messages, row.queues) == (COUNT, departures.QUEUES)
    assert row.first <= row.last
    assert auditing.damage(found) == []

    victim = found.filter("topic = 'flights' AND queueId = 2 AND queueOffset = 10").collect()[0]
    (log,) = (store / "commitlog").iterdir()
    with log.open("r+b") as file:
        file.seek(victim.physicalOffset + 88 + 20)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))

    found = auditing.records(spark, str(store))
    (damaged,) = auditing.damage(found)
    assert (damaged.physicalOffset, damaged.storeSize) == (victim.physicalOffset, victim.storeSize)
    assert damaged.file.endswith(log.name)
    (row,) = (row for row in auditing.topics(found) if row.topic == "flights")
    assert row.messages == COUNT - 1
