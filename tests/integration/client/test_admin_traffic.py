"""What goes on in a cluster: lags of all groups, rates, connections, pending work."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import client
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.route import BrokerData, ClusterInfo
from remoting.protocol.bodies.stats import ConsumeStats, ConsumeStatsList, OffsetWrapper
from remoting.protocol.codes import RequestCode, ResponseCode
from tests.harness.cluster import Cluster
from tests.support.waiting import until


def queue(number: int, broker: str = "broker-a") -> client.MessageQueue:
    return client.MessageQueue("T", broker, number)


async def send(cluster: Any, count: int, number: int = 0, broker: str = "broker-a") -> None:
    place = queue(number, broker)
    async with client.Producer(cluster.nameserver, group="senders") as producer:
        await producer.send_many([client.Message("T", b"x", queue=place) for _ in range(count)])


@pytest.fixture
async def two_brokers(cluster: Cluster, admin: client.Admin) -> Cluster:
    await cluster.start("broker-b")
    await admin.create_topic("T", queues=4)
    for name in ("a", "b", "c", "d"):
        await admin.create_group(name)
    await send(cluster, 5)
    await send(cluster, 7, 1, "broker-b")
    await admin.commit("b", {queue(0): 2, queue(1, "broker-b"): 4})
    await admin.commit("c", {queue(0): 5})
    return cluster


async def pages(admin: client.Admin, limit: int) -> list[list[client.Lag]]:
    found, after = [], ""
    while True:
        page = await admin.lags(after=after, limit=limit)
        found.append(page.groups)
        if page.next is None:
            return found
        after = page.next


async def test_the_lags_of_all_groups_are_those_of_each(two_brokers: Any, admin: client.Admin):
    page = await admin.lags()
    assert {lag.group: lag for lag in page.groups} == {
        name: await admin.lag(name) for name in ("a", "b", "c", "d")
    }
    assert {lag.group: lag.total for lag in page.groups} == {"a": 0, "b": 6, "c": 0, "d": 0}
    assert (page.next, page.unreachable) == (None, {})
    assert "TOOLS_CONSUMER" in {lag.group for lag in (await admin.lags(internal=True)).groups}


async def test_lags_are_paged_by_the_names_of_groups(two_brokers: Any, admin: client.Admin):
    everything = (await admin.lags()).groups
    for limit in (1, 3, 1000):
        found = await pages(admin, limit)
        assert [lag for part in found for lag in part] == everything
        assert max(map(len, found)) <= limit
    with pytest.raises(client.UsageError, match="limit"):
        await admin.lags(limit=0)


async def test_lags_without_a_broker_that_is_down_say_so(two_brokers: Cluster, admin: client.Admin):
    await admin.lags()
    listed = await admin.cluster()
    address = listed.broker_addr_table["broker-b"].broker_addrs[0]
    await two_brokers.stop("broker-b")

    class HalfDown(client.Admin):
        async def cluster(self) -> ClusterInfo:
            return listed  # the name server hasn't noticed yet

    async with HalfDown(two_brokers.nameserver) as half:
        page = await half.lags()
        assert {lag.group: lag.total for lag in page.groups}["b"] == 3
        assert address in str(page.unreachable["broker-b"])
        await two_brokers.stop("broker-a")
        with pytest.raises(client.Unavailable):
            await half.lags()


async def test_an_apache_broker_lists_all_groups_at_once(fake: Any):
    def stats(number: int) -> dict[str, list[ConsumeStats]]:
        place = client.MessageQueue("T", "fake", number)
        return {f"g{number}": [ConsumeStats({place: OffsetWrapper(9, number)}, 1.5)]}

    body = ConsumeStatsList([stats(number) for number in range(3)])
    broker = BrokerData(cluster="c", broker_name="fake", broker_addrs={0: fake.address})
    fake.answers |= {
        RequestCode.GET_BROKER_CLUSTER_INFO: lambda command, _: command.reply(
            body=encode(ClusterInfo({"fake": broker}, {"c": ["fake"]}))
        ),
        20011: lambda command, _: command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        RequestCode.GET_BROKER_CONSUME_STATS: lambda command, _: command.reply(body=encode(body)),
    }
    async with client.Admin(fake.address) as admin:
        first, second = await pages(admin, 2)
    assert [(lag.group, lag.total, lag.per_second) for lag in [*first, *second]] == [
        *(("g0", 9, 1.5), ("g1", 8, 1.5), ("g2", 7, 1.5)),
    ]


async def test_rates_are_what_all_brokers_count(two_brokers: Cluster, admin: client.Admin):
    with pytest.raises(client.TopicNotFound):
        await admin.rates("misspelt")
    async with client.PullConsumer(two_brokers.nameserver, group="b") as consumer:
        consumer.assign([queue(0), queue(1, "broker-b")])
        for place in consumer.assigned:
            await consumer.seek(place, client.BEGIN)
        read = 0
        async with asyncio.timeout(30):
            while read < 12:
                read += len(await consumer.get_many(100, timeout=1.0))
    for broker in two_brokers.brokers.values():
        list(broker.state.traffic.sample(broker.state.monotonic_ms + 3_600_000))
    sent, got = await admin.rates("T"), await admin.rates("T", "b")
    assert sent.messages.minute > 0 < got.messages.minute
    assert got.bytes.minute > got.messages.minute
    assert (await admin.lags()).groups[1].per_second == pytest.approx(got.messages.minute)
    assert sent.dead == got.dead == client.SpanRates(0, 0, 0)


async def test_a_groups_topics_and_the_times_of_its_queues(two_brokers: Any, admin: client.Admin):
    assert await admin.topics_of("b") == ["T"]
    assert await admin.topics_of("nobody") == []
    spans = await admin.time_span("b", "T")
    assert set(spans) == {queue(n, name) for n in range(4) for name in ("broker-a", "broker-b")}
    assert spans[queue(2)] == client.TimeSpan(None, None, None, timedelta(0))
    full = spans[queue(0)]
    assert full.oldest is not None is not full.newest
    assert full.consumed is not None
    assert full.oldest <= full.consumed <= full.newest
    assert (await admin.time_span("c", "T"))[queue(0)].delay == timedelta(0)


async def test_a_brokers_connections_are_listed_by_pages(cluster: Any, admin: client.Admin):
    [broker] = await admin.brokers()
    async with client.Instance(cluster.nameserver) as mq:
        producer = mq.producer(group="senders")
        await producer.send("T", b"x")
        consumer = mq.pull_consumer(group="readers")
        consumer.assign(await consumer.queues("T"))

        async def known() -> bool:
            page = await admin.connections(broker.address)
            return any(one.consumer_groups and one.producer_groups for one in page.connections)

        async with asyncio.timeout(30):
            await until(known)
        page = await admin.connections(broker.address)
        [found] = [one for one in page.connections if one.client_id is not None]
        assert (found.client_id, found.language, found.tls) == (mq.client_id, "PYTHON", False)
        assert (found.producer_groups, found.consumer_groups) == (["senders"], ["readers"])
        assert (page.total, page.next) == (len(page.connections), None)
        first = await admin.connections(broker.address, limit=1)
        rest = await admin.connections(broker.address, after=first.next or "")
        assert first.connections + rest.connections == page.connections


async def test_what_a_broker_still_has_to_deliver(cluster: Any, admin: client.Admin):
    [broker] = await admin.brokers()
    assert await admin.pending(broker.address) == client.PendingWork(0, 0, timedelta(0), 0, None)
    async with client.Producer(cluster.nameserver, group="p") as producer:
        await producer.send("T", b"x", delay_level=18)
        await producer.send("T", b"x", delay=timedelta(hours=1))

        async def waiting() -> bool:
            pending = await admin.pending(broker.address)
            return (pending.delayed, pending.timers, pending.half) == (1, 1, 0)

        async with asyncio.timeout(30):
            await until(waiting)
