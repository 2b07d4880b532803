"""Batch and streaming queries read from a slave while its master is down."""

from __future__ import annotations

import asyncio
from pathlib import Path

import client
from broker.limits import BrokerLimits
from spark_connector.source.queue_monitor import Pace
from tests.harness.cluster import Cluster
from tests.integration.spark_connector.querying import (
    Query,
    batch_reader,
    numbers,
    rows,
    stream_reader,
)
from tests.support.ports import free_port
from tests.support.waiting import until

QUICK = BrokerLimits(table_copy_seconds=0.1)
SLAVE = {"brokerName": "broker-a", "brokerRole": "SLAVE", "brokerId": "1"}


async def send(cluster: Cluster, messages: range) -> None:
    async with client.Producer(cluster.nameserver) as producer:
        for number in messages:
            await producer.send("orders", b"%d" % number)


async def test_queries_go_on_from_the_slave_and_return_to_the_master(tmp_path: Path) -> None:
    port = str(free_port())
    async with Cluster(tmp_path) as cluster:
        master = await cluster.start("broker-a", haListenPort=port)
        slave = await cluster.start("slave", limits=QUICK, **SLAVE)
        async with client.Admin(cluster.nameserver) as admin:
            await admin.create_topic("orders", queues=2)
        await send(cluster, range(20))

        def begin() -> Query:
            reader = stream_reader(
                cluster.nameserver,
                pace=Pace(route_period=0.2, idle_refresh=0.2),
                topic="orders",
                startingOffsets="earliest",
                consumerGroup="jobs",
                commitOffsets="broker",
            )
            query = Query(reader)
            query.step()
            assert numbers(query.found) == list(range(20))
            return query

        query = await asyncio.to_thread(begin)
        await send(cluster, range(20, 30))
        await until(lambda: slave.store.log.end == master.store.log.end)
        await until(lambda: slave.state.topics.table == master.state.topics.table)
        await cluster.stop("broker-a")

        def all_rows() -> list[int]:
            return numbers(rows(batch_reader(cluster.nameserver, topic="orders")))

        def go_on() -> None:
            while len(query.found) < 30:
                query.step()
            query.reader.commit(query.log[-1])

        assert await asyncio.to_thread(all_rows) == list(range(30))
        await asyncio.wait_for(asyncio.to_thread(go_on), 60)
        assert slave.state.counters.messages_pulled >= 40
        assert sum(slave.state.offsets.queues_of("jobs", "orders").values()) == 30

        master = await cluster.start("broker-a", haListenPort=port)
        await send(cluster, range(30, 40))

        def finish() -> None:
            while len(query.found) < 40:
                query.step()
            query.reader.stop()

        await asyncio.wait_for(asyncio.to_thread(finish), 60)
        assert numbers(query.found) == list(range(40))
        await until(lambda: sum(master.state.offsets.queues_of("jobs", "orders").values()) >= 30)
