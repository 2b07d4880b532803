"""The metrics of topics and groups: rates, lag and dead letters, in a bounded number."""

from __future__ import annotations

from typing import Any

from broker.app import Broker
from broker.limits import BrokerLimits
from pocketmq.server.metrics_page import MetricsPage
from pocketmq.server.process import LoopMonitor, RequestTimes
from remoting.protocol.names import retry_topic
from tests.support.clock import ManualClock


def figures(broker: Broker, name: str) -> dict[Any, float]:
    """Return the values of a metric by its labels."""
    page = MetricsPage([], [broker], RequestTimes(), LoopMonitor().stalls)
    return {
        tuple(sample.labels.values()): sample.value
        for family in page.collect()
        for sample in family.samples
        if sample.name == name
    }


async def test_topics_and_groups_have_rates_and_lag(make_broker, connect):
    clock = ManualClock()
    broker = make_broker(clock=clock)
    await broker.start()
    client = await connect(broker)
    for _ in range(3):
        await client.send("T", default_topic_queue_nums=1)
        clock.advance(10)
    await client.pull("T", max_msg_nums=2)
    broker.state.offsets.commit("g", "T", 0, 1)
    broker.state.offsets.commit("ahead", "T", 0, 3)
    await broker.processors.sampler.sample_lags()
    size = broker.store.stats.put_bytes
    assert figures(broker, "pocketmq_topic_messages_in_total") == {("T",): 3}
    assert figures(broker, "pocketmq_topic_messages_in_bytes_total") == {("T",): size}
    assert figures(broker, "pocketmq_group_messages_out_total") == {("T", "g"): 2}
    # The second message is 20 s old.
    assert figures(broker, "pocketmq_group_lag_messages") == {("T", "g"): 2, ("T", "ahead"): 0}
    assert figures(broker, "pocketmq_group_lag_seconds") == {("T", "g"): 20, ("T", "ahead"): 0}


async def test_dead_letters_are_counted_by_group_and_original_topic(make_broker, connect):
    broker = make_broker()
    await broker.start()
    client = await connect(broker)
    await client.send("T")
    reply = await client.send(
        retry_topic("g"),
        reconsume_times=17,
        max_reconsume_times=16,
        properties="RETRY_TOPIC\x01T",
    )
    assert reply.code == 0
    forged = await client.send(
        retry_topic("g"),
        reconsume_times=17,
        max_reconsume_times=16,
        properties="RETRY_TOPIC\x01no@such",
    )
    assert forged.code == 0
    assert figures(broker, "pocketmq_group_dead_letters_total") == {
        ("T", "g"): 1,
        ("%DLQ%g", "g"): 1,
    }


async def test_series_above_the_limit_are_counted_together(make_broker, connect):
    broker = make_broker(limits=BrokerLimits(lag_pairs=2))
    await broker.start()
    client = await connect(broker)
    for number in range(4):
        await client.send(f"T{number}")
        broker.state.offsets.commit("g", f"T{number}", 0, 0)
    await broker.processors.sampler.sample_lags()
    assert figures(broker, "pocketmq_topic_messages_in_total") == {
        ("T0",): 1,
        ("T1",): 1,
        ("(others)",): 2,
    }
    assert len(figures(broker, "pocketmq_group_lag_messages")) == 2
