"""Retries that a consumer sends itself: their topics, and where they end."""

from __future__ import annotations

import pytest

from tests.unit.broker.processors.sends import refusal, stored


def test_a_retry_topic_is_made_with_one_queue(bench):
    reply = bench.send("%RETRY%g", default_topic="NoSuchTemplate", reconsume_times=1)
    assert reply.code == 0
    assert bench.state.topics.get("%RETRY%g").write_queue_nums == 1


def test_a_retry_of_an_unknown_group_is_refused(make_bench):
    bench = make_bench(auto_create_subscription_group=False)
    code, remark = refusal(bench, topic="%RETRY%g")
    assert code == 26
    assert remark.startswith("subscription group not exist, g ")


def test_a_message_out_of_retries_is_dead(bench):
    bench.topic("%RETRY%g")
    reply = bench.send(
        "%RETRY%g", b"dead", reconsume_times=16, properties="DELAY\x015\x02TAGS\x01a"
    )
    assert reply.code == 0
    assert stored(bench, "%RETRY%g") == []
    (record,) = stored(bench, "%DLQ%g")
    assert record.properties == {"DELAY": "0", "TAGS": "a", "CLUSTER": "DefaultCluster"}
    assert bench.state.topics.get("%DLQ%g").perm == 6
    assert bench.changes.topics[-1] == (None, True)


@pytest.mark.parametrize(
    ("version", "most", "topic"),
    [(407, 3, "%DLQ%g"), (120, 3, "%RETRY%g"), (407, None, "%RETRY%g")],
)
def test_the_header_may_set_the_number_of_retries(bench, version, most, topic):
    bench.topic("%RETRY%g")
    bench.send("%RETRY%g", reconsume_times=3, max_reconsume_times=most, version=version)
    assert len(stored(bench, topic)) == 1
