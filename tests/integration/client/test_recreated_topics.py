"""A topic that is deleted and created again: its groups get exactly its new messages."""

from __future__ import annotations

from typing import Any

import pytest

import client
from client.events import TopicDeleted
from tests.harness.cluster import Cluster
from tests.integration.client.pulling import take
from tests.integration.client.pushing import Bodies, collect, consumer, fill, lag, numbers
from tests.support.waiting import until

OLD = 40


async def recreate(cluster: Cluster, queues: int) -> None:
    async with client.Admin(cluster.nameserver) as admin:
        await admin.delete_topic("T")
        await admin.create_topic("T", queues=queues)


@pytest.mark.parametrize("queues", [1, 4, 8])
@pytest.mark.parametrize("new", [3, 2 * OLD])
@pytest.mark.parametrize("restarts", [False, True], ids=["", "restart"])
async def test_a_group_that_returns_gets_the_new_messages(
    cluster: Cluster, new: int, queues: int, restarts: bool
):
    got: Bodies = []
    async with client.Producer(cluster.nameserver) as producer:
        await fill(producer, OLD)
        async with consumer(cluster, collect(got)):
            await until(lambda: len(got) == OLD)
        await recreate(cluster, queues)
        if restarts:
            await cluster.stop("broker-a")
            await cluster.start()
        await fill(producer, new, first=1000)
    got.clear()
    async with consumer(cluster, collect(got)):
        await until(lambda: len(got) >= new)
    assert sorted(got) == sorted(numbers(new, first=1000))
    assert await lag(cluster) == 0


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("new", [3, 2 * OLD])
async def test_a_group_that_stays_is_told_and_gets_the_new_messages(
    cluster: Cluster, new: int, ordered: bool
):
    got: Bodies = []
    events: list[Any] = []
    options = {"order": client.Orderly()} if ordered else {}
    async with (
        client.Producer(cluster.nameserver) as producer,
        consumer(cluster, collect(got), on_event=events.append, **options),
    ):
        await fill(producer, OLD)
        await until(lambda: len(got) == OLD)
        got.clear()
        await recreate(cluster, 4)
        await fill(producer, new, first=1000)
        await until(lambda: len(got) >= new)
    assert sorted(got) == sorted(numbers(new, first=1000))
    assert [one for one in events if isinstance(one, TopicDeleted)] == [TopicDeleted("g", "T")]


async def test_a_pull_consumer_that_stays_gets_the_new_messages(cluster: Cluster):
    async with (
        client.Producer(cluster.nameserver) as producer,
        client.PullConsumer(cluster.nameserver, group="g") as made,
    ):
        await made.subscribe("T")
        await fill(producer, OLD)
        await take(made, OLD)
        await made.commit()
        await recreate(cluster, 4)
        await fill(producer, 3, first=1000)
        assert sorted(await take(made, 3)) == numbers(3, first=1000)
