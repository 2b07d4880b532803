"""The statistics of topics and groups: samples over a minute, an hour and a day."""

from __future__ import annotations

import tracemalloc

import pytest

from broker.traffic.counts import GROUP_GET, SPANS, TOPIC_PUT, Traffic, add, key_of
from remoting.protocol.bodies.stats import BrokerStatsItem

TOPICS = 2_000

MINUTE, HOUR, DAY = range(3)


def sample(traffic: Traffic, now_ms: int) -> int:
    """Sample, and return in how many steps."""
    return sum(1 for _ in traffic.sample(now_ms))


def rate(traffic: Traffic, name: str, key: str, span: int = MINUTE) -> BrokerStatsItem:
    found = traffic.find(name, key)
    assert found is not None
    item, column = found
    return item.rate(span, column)


def test_a_rate_is_that_of_the_captured_broker():
    traffic = Traffic()
    for _ in range(8):
        traffic.put("OneQueue", 1, 200)
    for now_ms in range(0, 40_000, 10_000):
        sample(traffic, now_ms)
    assert rate(traffic, "TOPIC_PUT_NUMS", "OneQueue", HOUR) == BrokerStatsItem()
    # v4's first sample is of ten seconds before the first traffic.
    assert rate(traffic, "TOPIC_PUT_NUMS", "OneQueue") == BrokerStatsItem(8, 0.2, 1.0)
    assert rate(traffic, "TOPIC_PUT_SIZE", "OneQueue") == BrokerStatsItem(1600, 40.0, 200.0)
    sample(traffic, 600_000)
    assert rate(traffic, "TOPIC_PUT_NUMS", "OneQueue", HOUR) == BrokerStatsItem(8, 8 / 600, 1.0)


@pytest.mark.parametrize("span", [HOUR, DAY])
def test_hours_and_days_are_first_sampled_an_interval_after_the_start(span: int):
    start_ms, interval_ms = SPANS[DAY].interval_ms // 2, SPANS[span].interval_ms
    traffic = Traffic(started_ms=start_ms)
    traffic.put("T", 1, 100)
    sample(traffic, start_ms + interval_ms - 1)
    assert rate(traffic, "TOPIC_PUT_NUMS", "T", span) == BrokerStatsItem()
    a_little_late_ms = start_ms + interval_ms + 5
    sample(traffic, a_little_late_ms)
    assert rate(traffic, "TOPIC_PUT_NUMS", "T", span).sum == 1
    traffic.put("T", 1, 100)
    sample(traffic, start_ms + 2 * interval_ms)
    assert rate(traffic, "TOPIC_PUT_NUMS", "T", span).sum == 2


def test_messages_of_one_request_are_an_average():
    traffic = Traffic()
    traffic.got("g", "T", 32, 6400)
    traffic.got("g", "T", 16, 3200)
    sample(traffic, 0)
    assert rate(traffic, "GROUP_GET_NUMS", "T@g") == BrokerStatsItem(48, 4.8, 24.0)
    assert rate(traffic, "GROUP_GET_SIZE", "T@g") == BrokerStatsItem(9600, 960.0, 4800.0)
    assert traffic.get_tps("g", "T") == 4.8
    assert traffic.get_tps("g", "U") == 0.0


def test_a_minute_an_hour_and_a_day_have_their_samples():
    traffic, hour_ms = Traffic(), 3_600_000
    for now_ms in range(0, 25 * hour_ms + 1, 10_000):
        traffic.put("T", 10, 1000)
        sample(traffic, now_ms)
    assert rate(traffic, "TOPIC_PUT_NUMS", "T", MINUTE) == BrokerStatsItem(60, 1.0, 10.0)
    assert rate(traffic, "TOPIC_PUT_NUMS", "T", HOUR) == BrokerStatsItem(3600, 1.0, 10.0)
    assert rate(traffic, "TOPIC_PUT_NUMS", "T", DAY) == BrokerStatsItem(86_400, 1.0, 10.0)


def test_a_topic_without_traffic_for_a_minute_has_the_rate_0_and_begins_again():
    traffic = Traffic()
    traffic.put("T", 5, 100)
    for now_ms in range(0, 120_000, 10_000):
        sample(traffic, now_ms)
    assert rate(traffic, "TOPIC_PUT_NUMS", "T") == BrokerStatsItem()
    traffic.put("T", 5, 100)
    sample(traffic, 120_000)
    assert rate(traffic, "TOPIC_PUT_NUMS", "T") == BrokerStatsItem(5, 0.5, 5.0)


def test_unknown_names_and_keys_do_not_exist():
    traffic = Traffic()
    traffic.put("T", 1, 1)
    assert traffic.find("TOPIC_PUT_NUMS", "U") is None
    assert traffic.find("GROUP_GET_LATENCY", "T") is None
    assert traffic.find("", "") is None


def test_deleted_topics_and_groups_are_forgotten():
    traffic = Traffic()
    traffic.put("T", 1, 1)
    for group in ("g", "h"):
        for topic in ("T", "U"):
            traffic.got(group, topic, 1, 1)
    traffic.forget_topic("T")
    assert traffic.find("TOPIC_PUT_NUMS", "T") is None
    assert traffic.items[GROUP_GET].keys() == {"U@g", "U@h"}
    traffic.forget_group("g")
    assert traffic.items[GROUP_GET].keys() == {"U@h"}


def test_above_the_limit_traffic_is_counted_together():
    traffic = Traffic(limit=2)
    for number in range(5):
        traffic.put(f"T{number}", 1, 10)
    assert traffic.items[TOPIC_PUT].keys() == {"T0", "T1"}
    assert list(traffic.others[TOPIC_PUT].count) == [3, 30, 3]


def test_thousands_of_topics_take_little_memory_and_are_sampled_in_steps():
    tracemalloc.start()
    try:
        traffic = Traffic()
        topics = [f"topic-{number:05}" for number in range(TOPICS)]
        # A whole day of samples for every topic.
        for hour in range(26):
            for topic in topics:
                add(traffic.count(TOPIC_PUT, topic), 1, 100)
            steps = sample(traffic, hour * SPANS[DAY].interval_ms)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert steps == 3 * -(-TOPICS // 256)
    assert used < 2600 * TOPICS


def test_a_key_is_the_topic_and_the_group():
    assert key_of("T", "g") == "T@g"
